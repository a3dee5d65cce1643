"""NeMo RL trees of several shapes, before and after the fix, made from the one under `trees/pinned`.

Each shape is the pinned tree with a few files of another one, or a few replacements, and what the fix
looks like in it is written out by hand, so that no test compares the rewriting with itself. All of them
run (ray is all they import). A shape with one capital letter is that version of NeMo RL.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from nemo_rl_deadline_fix.source.checkout import plan, write

TREES = Path(__file__).parent / "trees"
PINNED = TREES / "pinned"
PATCHES = Path(__file__).parent.parent.parent / "patches"
CONTROLLER = "nemo_rl/algorithms/single_controller.py"
MANAGER = "nemo_rl/experience/rollout_manager.py"
FORWARDS = (
    "    def suspend_request_deadlines(self) -> None:",
    "    def resume_request_deadlines(self) -> None:",
)

Replacement = tuple[str, str]

HOLD = 'self._rollout_manager.suspend_request_deadlines("gym_checkpoint")'
LET_GO = 'self._rollout_manager.resume_request_deadlines("gym_checkpoint")'
CLEAR = "self._gym_checkpoint_rollout_permitted.clear()"
SET = "self._gym_checkpoint_rollout_permitted.set()"
WHY = "# Rollouts park until admission reopens. Their deadlines must not run meanwhile."

MANAGER_FIX: tuple[Replacement, ...] = (
    (
        "        self.suspended = False\n\n    def add",
        "        # By name: one holder's resume must not end another one's pause.\n"
        "        self._holders: set[str] = set()\n"
        "        self.suspended = False\n\n    def add",
    ),
    (
        "    def suspend(self) -> None:\n        if self.suspended:",
        '    def suspend(self, holder: str = "generation_stand_down") -> None:\n'
        "        self._holders.add(holder)\n"
        "        if self.suspended:",
    ),
    (
        "    def resume(self) -> None:\n        if not self.suspended:",
        '    def resume(self, holder: str = "generation_stand_down") -> None:\n'
        "        self._holders.discard(holder)\n"
        "        if self._holders:\n"
        "            return\n"
        "        if not self.suspended:",
    ),
    (
        "        self._timeout.reschedule(asyncio.get_running_loop()",
        "        # Expiry at once would come ahead of a reply that becomes ready in this same\n"
        "        # turn of the event loop. A timer comes after it.\n"
        "        self._remaining = max(self._remaining, 0.001)\n"
        "        self._timeout.reschedule(asyncio.get_running_loop()",
    ),
    (
        FORWARDS[0],
        '    def suspend_request_deadlines(self, holder: str = "generation_stand_down") -> None:',
    ),
    ("        self._request_deadlines.suspend()", "        self._request_deadlines.suspend(holder)"),
    (
        FORWARDS[1],
        '    def resume_request_deadlines(self, holder: str = "generation_stand_down") -> None:',
    ),
    ("        self._request_deadlines.resume()", "        self._request_deadlines.resume(holder)"),
)

CLOSE_FIX: Replacement = (
    f"        prepared = False\n        {CLEAR}",
    f"        prepared = False\n        {WHY}\n        {HOLD}\n        {CLEAR}",
)
FAILURE_FIX: Replacement = (
    f"\n                {SET}\n",
    f"\n                {SET}\n                {LET_GO}\n",
)
RELEASE_FIX: Replacement = (
    f"stays closed.\n        {SET}",
    f"stays closed.\n        {SET}\n        {LET_GO}",
)


@dataclass(frozen=True)
class Shape:
    """A tree before the fix, as edits of the pinned one, and the controller's edits that fix it.

    Attributes:
        made: Replacements in the controller that make this shape; each fits once.
        fix: Replacements in this shape's controller that fix it; each fits once.
        tree: The folder under `trees` whose files take the place of the pinned ones.
        manager: Replacements in the pinned manager that make this shape; each fits once.
    """

    made: tuple[Replacement, ...] = ()
    fix: tuple[Replacement, ...] = (CLOSE_FIX, FAILURE_FIX, RELEASE_FIX)
    tree: str = "pinned"
    manager: tuple[Replacement, ...] = ()

    @property
    def before(self) -> dict[str, str]:
        """Text by file, as it is without the fix."""
        controller = (TREES / self.tree / CONTROLLER).read_text()
        return {
            CONTROLLER: edited(controller, *self.made),
            MANAGER: edited(pinned(MANAGER), *self.manager),
        }

    @property
    def after(self) -> dict[str, str]:
        """Text by file, as it is with the fix."""
        return {
            CONTROLLER: edited(self.before[CONTROLLER], *self.fix),
            MANAGER: edited(self.before[MANAGER], *MANAGER_FIX),
        }


def pinned(name: str) -> str:
    """The text of a file of the pinned tree, with the lines that patch 0001 finds its place by."""
    text = (PINNED / name).read_text()
    if name == MANAGER:
        # Two of them are sentences of NeMo RL's, which stand in the diff and nowhere else.
        sentences = re.findall(r'^-( +""".*"""\n)', the_patch("0001").read_text(), re.MULTILINE)
        assert len(sentences) == len(FORWARDS)
        for forward, sentence in zip(FORWARDS, sentences, strict=True):
            text = re.sub(rf'({re.escape(forward)}\n) +""".*"""\n', rf"\g<1>{sentence}", text)
    return text


def edited(text: str, *replacements: Replacement) -> str:
    """A text with each of some parts, which must be there exactly once, replaced."""
    for old, new in replacements:
        assert text.count(old) == 1, f"{text.count(old)} times: {old}"
        text = text.replace(old, new)
    return text


def make_tree(folder: Path, shape: Shape | str = "pinned", *, fixed: bool = False) -> Path:
    """Write a tree into an empty folder; return its root.

    Args:
        folder: Where to put it; made if it is not there.
        shape: A shape, or its name in `SHAPES` or `VERSIONS`.
        fixed: Whether to write it as it is with the fix.
    """
    if isinstance(shape, str):
        shape = (SHAPES | VERSIONS)[shape]
    # Only shapes with the gate that the fix follows have the pinned file of Gym's answers.
    without = ["__pycache__", *([] if shape.fix else ["gym_checkpoint.py"])]
    for tree in (PINNED, TREES / shape.tree):
        shutil.copytree(tree, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(*without))
    for name, text in (shape.after if fixed else shape.before).items():
        (folder / name).write_text(text)
    return folder


def older_tree(folder: Path, shape: Shape | str = "pinned") -> Path:
    """As `make_tree` with the fix, as 0.1.0 of this package wrote it: the default was another name."""
    root = make_tree(folder, shape, fixed=True)
    text = (root / MANAGER).read_text()
    assert text.count('holder: str = "generation_stand_down"') == 4
    (root / MANAGER).write_text(text.replace('"generation_stand_down"', '"engine"'))
    return root


def applied_tree(folder: Path, shape: Shape | str = "pinned") -> Path:
    """As `make_tree`, with the fix written into it by `apply`."""
    root = make_tree(folder, shape)
    write(plan(root).changes)
    return root


def patched_tree(folder: Path, shape: Shape | str = "pinned") -> Path:
    """As `make_tree`, with the fix put on it by `git apply patches/0001-*.diff`."""
    root = make_tree(folder, shape)
    # Outside of any repository: else git applies relative to the repository it finds above.
    subprocess.run(
        ["git", "apply", str(the_patch("0001"))],
        cwd=root,
        check=True,
        env={"PATH": "/usr/bin:/bin:/usr/local/bin", "GIT_CEILING_DIRECTORIES": str(root.parent)},
    )
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Bytes of the two files that the fix is written to, by name."""
    return {name: (root / name).read_bytes() for name in (CONTROLLER, MANAGER)}


def the_patch(number: str) -> Path:
    """The one diff in `patches/` that begins with a number."""
    (found,) = PATCHES.glob(f"{number}-*.diff")
    return found


_PREFIX_CUTS = (
    (
        "        self._gym_acknowledgements: list[Any] = []\n",
        "        self._generation_prefix_cuts_enabled = (\n"
        "            master_config.rollout_checkpointing.gym.generation_prefix_cuts_enabled\n"
        "        )\n"
        "        self._generation_checkpoint_id: Optional[str] = None\n"
        "        self._gym_acknowledgements: list[Any] = []\n",
    ),
    (
        "            answer = await gym_actor.prepare_checkpoint.remote(\n",
        "            if self._generation_prefix_cuts_enabled:\n"
        "                await asyncio.to_thread(\n"
        "                    self._gen.begin_generation_checkpoint, timeout_s=timeout_s\n"
        "                )\n"
        "                self._generation_checkpoint_id = checkpoint_id\n"
        "            answer = await gym_actor.prepare_checkpoint.remote(\n",
    ),
    (
        f"            else:\n                {SET}\n",
        "            else:\n"
        "                if self._generation_checkpoint_id == checkpoint_id:\n"
        "                    try:\n"
        "                        await asyncio.to_thread(\n"
        "                            self._gen.finish_generation_checkpoint, timeout_s=timeout_s\n"
        "                        )\n"
        "                    except BaseException as fence_error:\n"
        "                        recovery_errors.append(fence_error)\n"
        "                    else:\n"
        "                        self._generation_checkpoint_id = None\n"
        f"                {SET}\n",
    ),
    (
        "        # Not reached where Gym did not confirm: then admission stays closed.\n",
        "        if self._generation_checkpoint_id == checkpoint_id:\n"
        "            await asyncio.to_thread(\n"
        "                self._gen.finish_generation_checkpoint, timeout_s=timeout_s\n"
        "            )\n"
        "            self._generation_checkpoint_id = None\n"
        "        # Not reached where Gym did not confirm: then admission stays closed.\n",
    ),
)

_CUTS_ARE_PAUSES = (
    (
        "    GymCheckpointPrepareResult,\n    validate",
        "    GymCheckpointPrepareResult,\n    gym_generation_cut_staging_keys,\n    validate",
    ),
    (
        "        self._gym_acknowledgements: list[Any] = []\n",
        "        self._generation_prefix_cuts_enabled = (\n"
        "            master_config.rollout_checkpointing.gym.generation_prefix_cuts_enabled\n"
        "        )\n"
        "        self._generation_checkpoint_pause_id: Optional[str] = None\n"
        "        self._generation_checkpoint_decoding_resumed = False\n"
        "        self._generation_cut_rows: set[str] = set()\n"
        "        self._gym_acknowledgements: list[Any] = []\n",
    ),
    (
        "    async def _prepare_and_commit_gym_checkpoint(\n",
        "    async def _clear_generation_cut_staging_rows(self, keys: set[str]) -> None:\n"
        '        """Forget what a snapshot that failed has cut."""\n'
        "        if not keys:\n"
        "            return\n"
        "        await asyncio.to_thread(self._generation_cut_rows.difference_update, keys)\n"
        "\n"
        "    async def _prepare_and_commit_gym_checkpoint(\n",
    ),
    (
        f"        prepared = False\n        {CLEAR}\n",
        f"        prepared = False\n        generation_cut_staging_keys: set[str] = set()\n        {CLEAR}\n",
    ),
    (
        "            answer = await gym_actor.prepare_checkpoint.remote(\n",
        "            if self._generation_prefix_cuts_enabled:\n"
        "                await asyncio.to_thread(\n"
        "                    self._gen.pause_generation_for_checkpoint, timeout_s=timeout_s\n"
        "                )\n"
        "                self._generation_checkpoint_pause_id = checkpoint_id\n"
        "            answer = await gym_actor.prepare_checkpoint.remote(\n",
    ),
    (
        "            if not prepare.ready:\n",
        "            generation_cut_staging_keys = gym_generation_cut_staging_keys(prepare)\n"
        "            if not prepare.ready:\n",
    ),
    (
        "            prepared = True\n",
        "            prepared = True\n"
        "            if self._generation_checkpoint_pause_id == checkpoint_id:\n"
        "                await asyncio.to_thread(\n"
        "                    self._gen.resume_generation_after_cut, timeout_s=timeout_s\n"
        "                )\n"
        "                self._generation_checkpoint_decoding_resumed = True\n",
    ),
    (
        "            if prepared:\n",
        "            try:\n"
        "                await self._clear_generation_cut_staging_rows(\n"
        "                    generation_cut_staging_keys\n"
        "                )\n"
        "            except BaseException as cleanup_error:\n"
        "                recovery_errors.append(cleanup_error)\n"
        "            if prepared:\n",
    ),
    (
        f"            else:\n                {SET}\n",
        "            else:\n"
        "                if self._generation_checkpoint_pause_id == checkpoint_id:\n"
        "                    try:\n"
        "                        await asyncio.to_thread(\n"
        "                            self._gen.resume_generation_after_checkpoint,\n"
        "                            timeout_s=timeout_s,\n"
        "                        )\n"
        "                    except BaseException as pause_error:\n"
        "                        recovery_errors.append(pause_error)\n"
        "                    else:\n"
        "                        self._generation_checkpoint_pause_id = None\n"
        f"                {SET}\n",
    ),
    (
        "        # Not reached where Gym did not confirm: then admission stays closed.\n",
        "        if self._generation_checkpoint_pause_id == checkpoint_id:\n"
        "            end_pause = (\n"
        "                self._gen.finish_generation_checkpoint\n"
        "                if self._generation_checkpoint_decoding_resumed\n"
        "                else self._gen.resume_generation_after_checkpoint\n"
        "            )\n"
        "            await asyncio.to_thread(end_pause, timeout_s=timeout_s)\n"
        "            self._generation_checkpoint_pause_id = None\n"
        "            self._generation_checkpoint_decoding_resumed = False\n"
        "        # Not reached where Gym did not confirm: then admission stays closed.\n",
    ),
)

SHAPES: dict[str, Shape] = {
    "pinned": Shape(),
    "prefix_cuts": Shape(made=_PREFIX_CUTS),
    "B": Shape(
        made=_CUTS_ARE_PAUSES,
        fix=(
            (
                f"set[str] = set()\n        {CLEAR}",
                f"set[str] = set()\n        {WHY}\n        {HOLD}\n        {CLEAR}",
            ),
            FAILURE_FIX,
            RELEASE_FIX,
        ),
    ),
    "C": Shape(
        tree="sharded",
        fix=(
            (
                f"attempted = False\n        {CLEAR}",
                f"attempted = False\n        {WHY}\n        {HOLD}\n        {CLEAR}",
            ),
            (
                f"        {CLEAR}\n        calls = []",
                f"        {WHY}\n        {HOLD}\n        {CLEAR}\n        calls = []",
            ),
            (
                f"        {CLEAR}\n        with_models",
                f"        {WHY}\n        {HOLD}\n        {CLEAR}\n        with_models",
            ),
            FAILURE_FIX,
            RELEASE_FIX,
            (f'("restore", calls)\n        {SET}', f'("restore", calls)\n        {SET}\n        {LET_GO}'),
        ),
    ),
    "renamed_local": Shape(
        made=(
            (
                f"        prepared = False\n        {CLEAR}\n",
                "        is_ready = False\n"
                "        admission = self._gym_checkpoint_rollout_permitted\n"
                "        admission.clear()\n",
            ),
            ("            prepared = True\n", "            is_ready = True\n"),
            ("            if prepared:\n", "            if is_ready:\n"),
            (
                f"                {SET}\n            if len",
                "                admission.set()\n            if len",
            ),
        ),
        fix=(
            ("        admission.clear()", f"        {WHY}\n        {HOLD}\n        admission.clear()"),
            (
                "                admission.set()",
                f"                admission.set()\n                {LET_GO}",
            ),
            RELEASE_FIX,
        ),
    ),
    "code_between": Shape(
        made=(
            (
                f"        {CLEAR}\n        try:\n",
                f"        {CLEAR}\n"
                "        started = time.monotonic()\n"
                '        print(f"snapshot {checkpoint_id}: admission is closed", flush=True)\n'
                "        try:\n"
                "            timeout_s = max(timeout_s, time.monotonic() - started)\n",
            ),
        ),
    ),
    "extra_reopen": Shape(
        made=(
            (
                "    async def _release_committed_gym_checkpoint(",
                "    def _abandon_gym_checkpoint(self, reason: str) -> None:\n"
                '        """Give a snapshot up from outside of it."""\n'
                "        if self._pending_gym_checkpoint_release is None:\n"
                "            # Nobody else would open it.\n"
                "\n"
                "            # And it must be open.\n"
                f"            {SET}  # now\n"
                "            print(reason, flush=True)\n"
                "\n"
                "    async def _release_committed_gym_checkpoint(",
            ),
        ),
        fix=(
            CLOSE_FIX,
            FAILURE_FIX,
            RELEASE_FIX,
            (f"            {SET}  # now", f"            {SET}  # now\n            {LET_GO}"),
        ),
    ),
    "reopen_in_finally": Shape(
        made=(
            (
                f"            else:\n                {SET}\n            if len(recovery_errors) > 1:\n",
                "            if len(recovery_errors) > 1:\n",
            ),
            (
                'BaseExceptionGroup("snapshot and abort failed", recovery_errors)\n            raise\n',
                'BaseExceptionGroup("snapshot and abort failed", recovery_errors)\n            raise\n'
                "        finally:\n"
                "            if not prepared:\n"
                f"                {SET}\n",
            ),
        ),
    ),
    "helper_closes": Shape(
        made=(
            (
                f"        {CLEAR}\n        try:\n",
                "        self._close_gym_admission()\n        try:\n",
            ),
            (
                "    async def _prepare_and_commit_gym_checkpoint(",
                "    def _close_gym_admission(self) -> None:\n"
                '        """Admit no more rollouts."""\n'
                f"        {CLEAR}\n"
                "\n"
                "    async def _prepare_and_commit_gym_checkpoint(",
            ),
        ),
        fix=(
            (f"        {CLEAR}", f"        {WHY}\n        {HOLD}\n        {CLEAR}"),
            FAILURE_FIX,
            RELEASE_FIX,
        ),
    ),
    "refit_suspends": Shape(
        made=(
            (
                "        self._rollout_permitted.clear()\n        await asyncio.to_thread(self._weight",
                "        self._rollout_permitted.clear()\n"
                "        self._rollout_manager.suspend_request_deadlines()\n"
                "        await asyncio.to_thread(self._weight",
            ),
        ),
    ),
}
"""By name: every shape that the fix is written into."""

_DISPATCH_GATE = (
    (
        "from dataclasses import dataclass\n",
        "from collections.abc import AsyncIterator\n"
        "from contextlib import asynccontextmanager\n"
        "from dataclasses import dataclass\n",
    ),
    (
        "class RequestDeadlineRegistry:\n",
        "class RolloutDispatchAdmissionGate:\n"
        '    """Keeps new rollouts back; those that Gym has already are none of its business."""\n'
        "\n"
        "    def __init__(self) -> None:\n"
        "        self._condition = asyncio.Condition()\n"
        "        self._closed = False\n"
        "        self._active_submissions = 0\n"
        "\n"
        "    @asynccontextmanager\n"
        "    async def admission(self) -> AsyncIterator[None]:\n"
        '        """Send one rollout to Gym, as soon as the gate is open."""\n'
        "        async with self._condition:\n"
        "            await self._condition.wait_for(lambda: not self._closed)\n"
        "            self._active_submissions += 1\n"
        "        try:\n"
        "            yield\n"
        "        finally:\n"
        "            async with self._condition:\n"
        "                self._active_submissions -= 1\n"
        "                self._condition.notify_all()\n"
        "\n"
        "    @asynccontextmanager\n"
        "    async def closed(self) -> AsyncIterator[None]:\n"
        '        """Keep the gate closed for the body, and wait for what is on its way first."""\n'
        "        async with self._condition:\n"
        "            await self._condition.wait_for(lambda: not self._closed)\n"
        "            self._closed = True\n"
        "        try:\n"
        "            async with self._condition:\n"
        "                await self._condition.wait_for(lambda: not self._active_submissions)\n"
        "            yield\n"
        "        finally:\n"
        "            async with self._condition:\n"
        "                self._closed = False\n"
        "                self._condition.notify_all()\n"
        "\n"
        "\n"
        "class RequestDeadlineRegistry:\n",
    ),
    (
        "    def set_weight_version(self, version: int) -> None:\n",
        "    def set_rollout_dispatch_admission_gate(\n"
        "        self, gate: RolloutDispatchAdmissionGate\n"
        "    ) -> None:\n"
        "        self._dispatch_gate = gate\n"
        "\n"
        "    def set_weight_version(self, version: int) -> None:\n",
    ),
)
_NAMED_HOLDERS = (
    (
        "    def __init__(self) -> None:\n"
        '        self._live: set["_Deadline"] = set()\n'
        "        self.suspended = False\n",
        '    _DEFAULT_HOLDER = "generation_stand_down"\n'
        "\n"
        "    def __init__(self) -> None:\n"
        '        self._live: set["_Deadline"] = set()\n'
        "        self._suspension_holders: set[str] = set()\n"
        "\n"
        "    @property\n"
        "    def suspended(self) -> bool:\n"
        "        return bool(self._suspension_holders)\n",
    ),
    (
        "    def suspend(self) -> None:\n"
        "        if self.suspended:\n"
        "            return\n"
        "        self.suspended = True\n",
        "    def suspend(self, holder: str = _DEFAULT_HOLDER) -> None:\n"
        "        first = not self._suspension_holders\n"
        "        self._suspension_holders.add(holder)\n"
        "        if not first:\n"
        "            return\n",
    ),
    (
        "    def resume(self) -> None:\n"
        "        if not self.suspended:\n"
        "            return\n"
        "        self.suspended = False\n",
        "    def resume(self, holder: str = _DEFAULT_HOLDER) -> None:\n"
        "        if holder not in self._suspension_holders:\n"
        "            return\n"
        "        self._suspension_holders.remove(holder)\n"
        "        if self._suspension_holders:\n"
        "            return\n",
    ),
    *(
        (
            forward,
            forward.replace(
                "(self)", "(\n        self, holder: str = RequestDeadlineRegistry._DEFAULT_HOLDER\n    )"
            ),
        )
        for forward in FORWARDS
    ),
    ("        self._request_deadlines.suspend()", "        self._request_deadlines.suspend(holder)"),
    ("        self._request_deadlines.resume()", "        self._request_deadlines.resume(holder)"),
)
_RETIRES = (
    (
        "    @contextlib.asynccontextmanager\n",
        "    async def _retire_dropped_gym_episodes(\n"
        "        self, coordinator: GymCheckpointCoordinator, checkpoint_id: str\n"
        "    ) -> None:\n"
        '        """Have Gym end what RL gave up on; it refuses that once it is prepared."""\n'
        "        dropped = {\n"
        "            label: tuple(self._dropped_gym_episodes.pop(label, ()))\n"
        "            for label in coordinator.instance_ids\n"
        "        }\n"
        "        if any(dropped.values()):\n"
        "            await coordinator.retire(checkpoint_id, dropped)\n"
        "\n"
        "    @contextlib.asynccontextmanager\n",
    ),
    (
        "            async with coordinator.prepared(checkpoint_id):\n",
        "            await self._retire_dropped_gym_episodes(coordinator, checkpoint_id)\n"
        "            async with coordinator.prepared(checkpoint_id):\n",
    ),
)
_SUSPENDS = (
    (
        "\n\n@ray.remote(",
        "\n# Whose pause of the rollouts' clocks it is.\n"
        '_GYM_CHECKPOINT_DEADLINE_HOLDER = "gym_checkpoint"\n'
        "\n\n@ray.remote(",
    ),
    (
        "            await self._retire_dropped_gym_episodes(coordinator, checkpoint_id)\n"
        "            async with coordinator.prepared(checkpoint_id):\n"
        "                commit = await coordinator.commit(\n"
        "                    checkpoint_id,\n"
        "                    checkpoint_path,\n"
        "                    self._gym_checkpoint_inventory(coordinator),\n"
        "                )\n"
        "                yield commit\n",
        "            self._rollout_manager.suspend_request_deadlines(\n"
        "                _GYM_CHECKPOINT_DEADLINE_HOLDER\n"
        "            )\n"
        "            try:\n"
        "                await self._retire_dropped_gym_episodes(coordinator, checkpoint_id)\n"
        "                async with coordinator.prepared(checkpoint_id):\n"
        "                    commit = await coordinator.commit(\n"
        "                        checkpoint_id,\n"
        "                        checkpoint_path,\n"
        "                        self._gym_checkpoint_inventory(coordinator),\n"
        "                    )\n"
        "                    yield commit\n"
        "            finally:\n"
        "                self._rollout_manager.resume_request_deadlines(\n"
        "                    _GYM_CHECKPOINT_DEADLINE_HOLDER\n"
        "                )\n",
    ),
)

VERSIONS: dict[str, Shape] = {
    "before": Shape(tree="before", fix=()),
    "A": SHAPES["pinned"],
    "B": SHAPES["B"],
    "C": SHAPES["C"],
    "E": Shape(tree="coordinator", manager=_DISPATCH_GATE, fix=()),
    "F": Shape(tree="coordinator", made=_RETIRES, manager=_DISPATCH_GATE, fix=()),
    "D": Shape(
        tree="coordinator",
        made=(*_RETIRES, *_SUSPENDS),
        manager=(*_DISPATCH_GATE, *_NAMED_HOLDERS),
        fix=(),
    ),
    "N": Shape(tree="nightly", manager=(*_DISPATCH_GATE, *_NAMED_HOLDERS), fix=()),
    "A's controller, D's manager": Shape(manager=(*_DISPATCH_GATE, *_NAMED_HOLDERS)),
    "D's controller, A's manager": Shape(tree="coordinator", made=(*_RETIRES, *_SUSPENDS), fix=()),
}
"""By name: every NeMo RL that is known, and two that were put together from two of them."""
