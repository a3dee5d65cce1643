"""Is this run exposed to the stall, and how far? Findings about a NeMo RL config, before the run.

A config tells what a run will do, not whether NeMo RL has the fix; the code tells that (`check PATH`). So
"exposed" always means: unless NeMo RL has the fix.

Severity: an *error* breaks the run or loses snapshots; a *warning* is a setting that does not do what it
says, or a margin that is too thin. Both make exit code 1. An *info* is worth knowing and does not.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nemo_rl_deadline_fix.config.loading import DEFAULT, RunConfig, Setting
from nemo_rl_deadline_fix.config.settings import Key, Settings, read_settings
from nemo_rl_deadline_fix.errors import InvalidInputError

_SECTIONS = frozenset(
    "async_rl checkpointing cluster data distillation dpo env eval generation grpo logger loss_fn"
    " on_policy_distillation policy ppo rm rollout_checkpointing rollout_recovery sft token_capture".split()
)
_REFUSES = "NeMo RL refuses to start"


@dataclass(frozen=True)
class Finding:
    """One thing to change, or to know; each text is one line.

    Attributes:
        id: Stable: EX001 and so on.
        severity: "error", "warning" or "info".
        setting: The key to look at, its value and where that came from.
        message: What is wrong.
        why: The values that make it so here.
        consequence: What follows.
        advice: What to do; overrides and commands in it can be pasted.
    """

    id: str
    severity: str
    setting: Setting
    message: str
    why: str
    consequence: str
    advice: str


@dataclass(frozen=True)
class Exposure:
    """What a config says about the stall.

    Attributes:
        exposed: Whether a snapshot can make a rollout miss its deadline; None if a wrong value hides it.
        verdict: The same in one line, with the reason.
        values: The settings that decide, in a fixed order.
        findings: What was found, by id.
    """

    exposed: bool | None
    verdict: str
    values: tuple[Setting, ...]
    findings: tuple[Finding, ...]

    @property
    def exit_code(self) -> int:
        """2 if it could not be decided, 1 if a finding is more than an info, else 0."""
        if self.exposed is None:
            return 2
        return int(any(finding.severity != "info" for finding in self.findings))


def assess(config: RunConfig) -> Exposure:
    """Find out whether a run is exposed, and what else its deadlines and snapshots do to one another.

    Raises:
        InvalidInputError: A key that decides cannot be resolved, or this is not a NeMo RL config.
    """
    sections = [str(key) for key in config.tree]
    if not _SECTIONS.intersection(sections):
        raise InvalidInputError(
            f"{config.path} does not look like a NeMo RL run config",
            found="top-level keys " + (", ".join(sections[:8]) or "none"),
            supported="a mapping with sections such as policy, grpo, env, async_rl",
        )
    run = read_settings(config)
    exposed, verdict = _verdict(run)
    findings = [_exposed(run)] if exposed else []
    for found in (_stall, _router, _interval):
        findings += found(run)
    findings += [*_misplaced(config), *_refused(run), *_both_schemas(run, config), *_requirements(run)]
    findings += _idle(run)
    return Exposure(exposed, verdict, tuple(run.read.values()), tuple(findings))


def _verdict(run: Settings) -> tuple[bool | None, str]:
    conditions = (
        (run.on_gym, f"{Key.GYM} is false"),
        (run[Key.DEADLINE] is not None if run.known(Key.DEADLINE) else None, "no rollout deadline is set"),
        (run.parks_rollouts, "Gym participant snapshots are off"),
        (run.takes_snapshots, "nothing takes a snapshot"),
    )
    if missing := [reason for holds, reason in conditions if holds is False]:
        return False, "not exposed: " + ", ".join(missing)
    if any(holds is None for holds, _ in conditions):
        return None, "cannot tell whether this run is exposed: a value that decides is wrong"
    return True, "exposed to the stall unless NeMo RL has the fix (`check PATH` tells)"


def _exposed(run: Settings) -> Finding:
    """What is lost, and where the fix comes from, differs by NeMo RL's line."""
    budget, phase, hold, interval = run[Key.DEADLINE], run.phase_s, run.hold_s, run[Key.INTERVAL]
    often = f"every {_s(interval)}" if interval else "per trainer checkpoint"
    hit = "any rollout in flight" if hold >= budget else f"rollouts past {_s(budget - hold)}"
    if run.newer:
        takes, then = f"{_s(phase)} for each call to Gym", "the next snapshot may end the run"
        advice = "update NeMo RL: newer builds of its line stop the clocks themselves"
    else:
        takes = f"{_s(phase)} to prepare, {_s(hold)} in all"
        then = f"later snapshots fail, {run[Key.FAILURES]} end the run"
        advice = "start it with `nemo-rl-deadline-fix run`, or use install() or `apply`"
    return Finding(
        "EX001",
        "error",
        run.read[Key.DEADLINE],
        f"a rollout's budget of {_s(budget)} runs on while a Gym snapshot parks it",
        f"a snapshot {often}, up to {takes}",
        f"{hit} can time out; {then}",
        advice,
    )


def _stall(run: Settings) -> Iterator[Finding]:
    """The watchdog counts wall time, also while a snapshot holds the rollouts, with or without the fix."""
    decides = (Key.STALL, Key.STALL_ACTION, Key.DEADLINE, Key.PREPARE, Key.CONTROL)
    if not run.known(*decides) or run.parks_rollouts is None or run.takes_snapshots is None:
        return
    stall, budget, setting = run[Key.STALL], run[Key.DEADLINE] or 0, run.read[Key.STALL]
    held = run.parks_rollouts and run.takes_snapshots and run.on_gym
    # A prepare that runs into its timeout is common; three phases that just do not are rare.
    failed, enough = (budget + run.phase_s, budget + run.hold_s) if held else (budget, budget)
    advice = f"++{Key.STALL}={_n(enough + 60)}" if enough < math.inf else "lower the other limits"
    if stall <= budget:
        why = f"stall_timeout_s is {_s(stall)}, rollout_timeout_s {_s(budget)}"
        what = "the stall watchdog does not wait for the rollout deadline"
        yield Finding("EX002", "error", setting, what, why, _REFUSES, advice)
    elif run[Key.STALL_ACTION] == "abort" and stall <= enough:
        what = "the watchdog can end the run while a snapshot holds its rollouts"
        took, takes = ("prepare", failed) if stall <= failed else ("snapshot", enough)
        why = f"it waits {_s(stall)}; a {took} that takes all its time makes {_s(takes)}"
        then = "the run ends as stalled; the fix stops rollout clocks, not this one"
        severity = "error" if stall <= failed else "warning"
        yield Finding("EX002", severity, setting, what, why, then, f"{advice} or stall_action=warn")


def _router(run: Settings) -> Iterator[Finding]:
    backend, budget = run[Key.ROUTER_TIMEOUT], run[Key.DEADLINE]
    known = run.known(Key.ROUTER, Key.ROUTER_TIMEOUT, Key.DEADLINE)
    if known and run[Key.ROUTER] and budget is not None and backend > budget:
        what = "one request to a backend may take longer than a whole rollout"
        why = f"backend_timeout_s is {_s(backend)}, rollout_timeout_s {_s(budget)}"
        advice = f"++{Key.ROUTER_TIMEOUT}={_n(budget)}"
        yield Finding("EX003", "error", run.read[Key.ROUTER_TIMEOUT], what, why, _REFUSES, advice)


def _interval(run: Settings) -> Iterator[Finding]:
    """In the newer schema the limit of a call is for a server that is gone, not for a slow snapshot."""
    interval, phase, hold = run[Key.INTERVAL], run.phase_s, run.hold_s
    applies = run.known(Key.PREPARE) and run.parks_rollouts and run.on_gym and not run.newer
    if applies and interval is not None and interval < hold:
        severity, takes = ("warning", phase) if interval < phase else ("info", hold)
        what = "the next snapshot is due sooner than one may take"
        why = f"after {_s(interval)}; {'prepare alone' if takes is phase else 'one'} may take {_s(takes)}"
        then = "rollouts may get little time between"
        advice = f"++{Key.INTERVAL}={_n(hold)}" if hold < math.inf else f"lower {Key.PREPARE}"
        yield Finding("EX004", severity, run.read[Key.INTERVAL], what, why, then, advice)


def _misplaced(config: RunConfig) -> Iterator[Finding]:
    name = Key.DEADLINE.rpartition(".")[2]
    for path, setting in config.named(name):
        # What lies under env.nemo_gym is Gym's own config, whose keys are not ours to judge.
        if path == tuple(Key.DEADLINE.split(".")) or path[:2] == ("env", "nemo_gym"):
            continue
        moved = path == ("async_rl", name)
        what = f"{name} stands where NeMo RL does not read it"
        then = f"it has moved, and {_REFUSES}" if moved else "it gives no rollout a deadline"
        advice = "write it as nested blocks" if setting.key == Key.DEADLINE else f"move it to {Key.DEADLINE}"
        yield Finding("EX005", "error" if moved else "warning", setting, what, _is(setting), then, advice)


def _refused(run: Settings) -> Iterator[Finding]:
    for wrong in run.invalid.values():
        what, advice = "NeMo RL does not take this value", f"give {wrong.expected}"
        yield Finding("EX006", "error", wrong.setting, what, _is(wrong.setting), _REFUSES, advice)


def _both_schemas(run: Settings, config: RunConfig) -> Iterator[Finding]:
    block, level = Key.PARTICIPANTS.rpartition(".")[0], run.read[Key.LEVEL]
    if run.known(Key.LEVEL) and level.origin != DEFAULT and config.has(block):
        what = "the keys of two lines of NeMo RL at once"
        then = f"newer builds refuse {block}, older ones ignore target_level"
        advice = f"~{block} for a newer build, ~{Key.LEVEL} for an older one"
        yield Finding("EX006", "error", level, what, f"{Key.LEVEL} and {block}", then, advice)


def _requirements(run: Settings) -> Iterator[Finding]:
    """What NeMo RL asks for before it starts a run with `target_level` turn or prefix."""
    wanted = {
        Key.BACKEND: (run[Key.BACKEND] in (None, "vllm"), "vllm"),
        Key.GYM: (run.on_gym, "true"),
        Key.INTERVAL: (run[Key.INTERVAL] is not None, "600"),
        Key.CAPTURE: (run[Key.CAPTURE], "true"),
        Key.RESTORE: (run[Key.RESTORE] == "latest", "latest"),
        Key.SAVES: (run[Key.SAVES] is not False, "true"),
        Key.DATA_PLANE: (run[Key.DATA_PLANE], "true"),
    }
    missing = {key: value for key, (holds, value) in wanted.items() if run.known(key) and not holds}
    if run.newer and missing:
        what = f"target_level={run[Key.LEVEL]} needs what is not set"
        why = ", ".join(f"{key} is {shown(run.read[key].value)}" for key in missing)
        advice = " ".join(f"++{key}={value}" for key, value in missing.items())
        yield Finding("EX006", "error", run.read[Key.LEVEL], what, why, _REFUSES, advice)


def _idle(run: Settings) -> Iterator[Finding]:
    """Settings that are right in themselves and have no effect in this run."""
    if run[Key.DEADLINE] is not None and not run.on_gym:
        what, then = "no rollout has this deadline", "NeMo RL refuses it on the native path"
        why, advice = f"{Key.GYM} is false", f"++{Key.DEADLINE}=null"
        yield Finding("EX007", "warning", run.read[Key.DEADLINE], what, why, then, advice)
    elif run.parks_rollouts and run.takes_snapshots is False and not run.newer:
        what, then = "Gym snapshots are on, but nothing takes one", "no rollout state is saved"
        why = f"{Key.SAVES} is false, and there is no interval"
        advice = f"++{Key.SAVES}=true if you want snapshots"
        yield Finding("EX007", "info", run.snapshot_setting, what, why, then, advice)


def shown(value: Any) -> str:
    """A value as YAML writes it, on one line and in ASCII."""
    if isinstance(value, float) and not math.isfinite(value):
        return f".{value}".replace(".-", "-.")
    return json.dumps(value, default=str)


def _is(setting: Setting) -> str:
    return f"{setting.key} = {shown(setting.value)} ({setting.origin})"


def _n(seconds: float) -> str:
    return f"{seconds:.12g}"


def _s(seconds: float) -> str:
    return f"{_n(seconds)} s"
