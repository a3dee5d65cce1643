"""Mutants of how the fix gets on a class: wrapping, switching on and off, what shapes are let in."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

WRAPPING = "nemo_rl_deadline_fix/wrapping.py"
INSTALLING = "nemo_rl_deadline_fix/installing.py"
SHAPES = "nemo_rl_deadline_fix/shapes.py"
TESTS = ("tests/test_installing.py",)
STORY = ("tests/test_regression.py",)
REFUSED = ("tests/test_installing.py::test_unsupported",)
LAUNCHER = ("tests/test_launching.py::test_the_fix_is_on_and_the_tools_stay_out",)

MUTANTS = (
    Mutant(
        "wraps-prepare-only",
        WRAPPING,
        "The clocks stop at the first snapshot and nobody runs them again.",
        STORY,
        (("            if not has_ours:\n", "            if not has_ours and name == PREPARE:\n"),),
    ),
    Mutant(
        "wraps-release-only",
        WRAPPING,
        "The clocks run through prepare and commit.",
        STORY,
        (("            if not has_ours:\n", "            if not has_ours and name == RELEASE:\n"),),
    ),
    Mutant(
        "prepare-gets-the-releases-body",
        WRAPPING,
        "The hold follows the gate, but only when prepare and commit have ended.",
        STORY,
        (("{PREPARE: gate.prepare_and_commit,", "{PREPARE: gate.release_prepared,"),),
    ),
    Mutant(
        "wraps-again-each-time",
        WRAPPING,
        "Each install() puts another wrapper on, and uninstall() takes one off.",
        TESTS,
        (("            if not has_ours:\n", "            if True:\n"),),
    ),
    Mutant(
        "half-patched-on-failure",
        WRAPPING,
        "The clocks stop and are not let go, because the second method could not be replaced.",
        TESTS,
        (
            (
                "        for name in done:\n            _restore(controller, name)\n        raise",
                "        raise",
            ),
        ),
    ),
    Mutant(
        "wraps-on-the-base",
        WRAPPING,
        "An importable base is imported afresh in the actor, without the wrapper.",
        TESTS,
        (
            (
                "                setattr(controller, name, _wrap(",
                "                owner = next(one for one in controller.__mro__ if name in vars(one))\n"
                "                setattr(owner, name, _wrap(",
            ),
        ),
    ),
    Mutant(
        "wrapper-is-a-plain-function",
        WRAPPING,
        "Ray looks at the function to know an asyncio method, and runs this one in a thread.",
        TESTS,
        (
            (
                "    async def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:\n        return await",
                "    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:\n        return",
            ),
        ),
    ),
    Mutant(
        "takes-off-one-of-two",
        WRAPPING,
        "Under somebody's wrapper ours stays on one method, where it does harm.",
        TESTS,
        (
            (
                "    if not left:\n        for name in ours:\n",
                "    if True:\n        for name in set(ours) - set(left):\n",
            ),
        ),
    ),
    Mutant(
        "leaves-a-copy-of-an-inherited-method",
        WRAPPING,
        "After uninstall() the class has methods of its own that it had not before.",
        TESTS,
        (("    if original is _lookup(controller, name, controller.__mro__[1:]):\n", "    if False:\n"),),
    ),
    Mutant(
        "takes-a-proxy-for-ours",
        WRAPPING,
        "A wrapt proxy shows the code of what it wraps, and is taken off although it is a stranger's.",
        TESTS,
        (
            (
                "    return type(function) is FunctionType and ",
                "    return hasattr(function, '__code__') and ",
            ),
        ),
    ),
    Mutant(
        "does-not-look-through-closures",
        WRAPPING,
        "Under a stranger's plain closure ours is not seen, and put on a second time.",
        TESTS,
        (('            if not _is_ours(one) and hasattr(one, "__code__"):\n', "            if False:\n"),),
    ),
    Mutant(
        "patches-the-undecorated-class",
        INSTALLING,
        "Ray made a class of its own of the decorated one, and that one is shipped.",
        TESTS,
        (('    found = getattr(metadata, "modified_class", found)\n', ""),),
    ),
    Mutant(
        "ray-keeps-the-old-export",
        INSTALLING,
        "A class that was shipped once is not shipped again, so new actors are without the fix.",
        TESTS,
        (("    metadata.last_export_cluster_and_job = None\n    return True\n", "    return True\n"),),
    ),
    Mutant(
        "one-method-of-two-is-patched",
        INSTALLING,
        "The status says patched although one method has lost its wrapper.",
        TESTS,
        (("    if all(covered(controller)):\n", "    if any(covered(controller)):\n"),),
    ),
    Mutant(
        "unknown-shape-is-no-error",
        INSTALLING,
        "The run goes on without the fix, and install() has said nothing.",
        TESTS,
        (("    if state is State.UNSUPPORTED:\n        raise unsupported(found)\n", ""),),
    ),
    Mutant(
        "hook-acts-after-uninstall",
        INSTALLING,
        "Switched off before NeMo RL is imported, the fix is on all the same.",
        TESTS,
        (("    if not _enabled:\n        return\n", ""),),
    ),
    Mutant(
        "hook-breaks-the-import",
        INSTALLING,
        "A bug of ours in the hook takes the user's training code down.",
        TESTS,
        (
            (
                "    except Exception:\n        logger.exception(",
                "    except ZeroDivisionError:\n        logger.exception(",
            ),
        ),
    ),
    Mutant(
        "hook-counts-as-waiting-for-good",
        INSTALLING,
        "A module that is imported again is never patched again, and counts as pending.",
        TESTS,
        (("    global _hook_waits\n    _hook_waits = False\n", ""),),
    ),
    Mutant(
        "gate-that-others-open-is-fine",
        SHAPES,
        "Where another method reopens the gate, nobody tells the clocks.",
        REFUSED,
        (("    if elsewhere:\n", "    if False:\n"),),
    ),
    Mutant(
        "gate-by-a-local-name-is-not-seen",
        SHAPES,
        "`gate = self...; gate.set()` in another method goes unseen.",
        REFUSED,
        (('renamed and ("LOAD_FAST" in before or "LOAD_DEREF" in before)', "False"),),
    ),
    Mutant(
        "gate-that-stays-closed-is-fine",
        SHAPES,
        "A release that does not reopen the gate never ends the hold.",
        REFUSED,
        (('    if "set" not in {', "    if None in {"),),
    ),
    Mutant(
        "fixed-without-names",
        SHAPES,
        "A tree that suspends with upstream's one flag counts as fixed.",
        REFUSED,
        (
            (
                "        if registry is not None and not takes_holder(registry):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "fixed-without-a-resume",
        SHAPES,
        "A tree that suspends and does not resume counts as fixed.",
        REFUSED,
        (
            (
                "        if not _calls_manager(code, _reached(code, (RELEASE,)), RESUME):\n",
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "launcher-without-the-fix",
        "nemo_rl_deadline_fix/launching.py",
        "The script runs as under Python alone.",
        LAUNCHER,
        (("        )\n    install()\n", "        )\n"),),
    ),
)
