"""Is this run exposed to the stall, and how far? Findings about a NeMo RL config, before the run.

A config tells what a run will do, not whether NeMo RL has the fix; the code tells that (`check PATH`). So
"exposed" always means: unless NeMo RL has the fix.

Severity: an *error* breaks the run or loses snapshots; a *warning* is a setting that does not do what it
says, or a margin that is too thin. Both make exit code 1. An *info* is worth knowing and does not.

How long may a snapshot hold the rollouts? Prepare, commit and release get `prepare_timeout_s` each. One of
them is what a snapshot that fails takes; all three, and the time to publish, what one that succeeds may take.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from nemo_rl_deadline_fix.config.runconfig import RunConfig, Setting
from nemo_rl_deadline_fix.config.runsettings import (
    BACKEND,
    DEADLINE,
    FAILURES,
    GYM,
    INTERVAL,
    LEVEL,
    PARTICIPANTS,
    PERIOD,
    PREPARE,
    ROUTER,
    SAVES,
    STALL,
    STALL_ACTION,
    Settings,
    settle,
)
from nemo_rl_deadline_fix.errors import InvalidInputError

PHASES = 3
"""Prepare, commit, release: each may take `prepare_timeout_s`."""

_SECTIONS = frozenset(
    "async_rl checkpointing cluster data distillation dpo env eval generation grpo logger loss_fn"
    " on_policy_distillation policy ppo rm rollout_checkpointing rollout_recovery sft token_capture".split()
)


@dataclass(frozen=True)
class Finding:
    """One thing to change, or to know.

    Attributes:
        id: Stable: EX001 and so on.
        severity: "error", "warning" or "info".
        key: The key to look at.
        value: Its value.
        origin: Where that came from.
        message: What is wrong with it, in one line.
        advice: What to do, in one line.
    """

    id: str
    severity: str
    key: str
    value: Any
    origin: str
    message: str
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
    def counts(self) -> bool:
        """Whether a finding is more than an info."""
        return any(finding.severity != "info" for finding in self.findings)


def assess(config: RunConfig) -> Exposure:
    """Find out whether a run is exposed, and what else its deadlines and snapshots do to one another.

    Raises:
        InvalidInputError: A key that decides cannot be resolved, or this is no NeMo RL config.
    """
    sections = [str(key) for key in config.tree]
    if not _SECTIONS.intersection(sections):
        raise InvalidInputError(
            f"{config.path} does not look like a NeMo RL run config",
            found="top-level keys " + (", ".join(sections[:8]) or "none"),
            supported="a mapping with sections such as policy, grpo, env, async_rl",
        )
    run = settle(config)
    exposed, verdict = _verdict(run)
    findings = _exposed(run) if exposed else []
    findings += [
        *_stall(run),
        *_router(run),
        *_interval(run),
        *_misplaced(config),
        *_refused(run),
        *_idle(run),
    ]
    return Exposure(exposed, verdict, tuple(run.read.values()), tuple(findings))


def _verdict(run: Settings) -> tuple[bool | None, str]:
    if not run.known(DEADLINE, PARTICIPANTS, LEVEL, INTERVAL):
        return None, "cannot tell whether this run is exposed: a value that decides is wrong"
    reasons = (
        (not run.on_gym, f"{GYM} is false"),
        (run[DEADLINE] is None, "no rollout deadline is set"),
        (not run.parks, "Gym participant snapshots are off"),
        (not run.snapshots, "nothing takes a snapshot"),
    )
    if why := [reason for holds, reason in reasons if holds]:
        return False, "not exposed: " + ", ".join(why)
    return True, "exposed to the stall unless NeMo RL has the fix (`check PATH` tells)"


def _exposed(run: Settings) -> list[Finding]:
    budget, phase, hold = run[DEADLINE], run[PREPARE], _hold(run)
    if phase >= budget:
        reach = "prepare alone may outlast the whole budget, so every rollout in flight can time out"
    elif hold >= budget:
        reach = "together they may outlast the whole budget, so every rollout in flight can time out"
    else:
        reach = f"a rollout that has used more than {_s(budget - hold)} when a snapshot starts can time out"
    message = (
        f"exposed to the stall unless NeMo RL has the fix: the budget of {_s(budget)} runs on while a Gym"
        f" snapshot parks the rollout; one is taken {_how_often(run)} and may take {_s(phase)} each for"
        f" prepare, commit and release{_assumed(run)}: {reach}; its reply is then never read, every later"
        f" snapshot fails, and {run[FAILURES]} failures in a row end the run"
    )
    advice = (
        "`nemo-rl-deadline-fix check PATH` tells whether your NeMo RL has the fix; if not, start the run with"
        " `nemo-rl-deadline-fix run`, or call install() in it, or `apply` the fix to the checkout; until then"
        f" turn {run.switch.key} off"
    )
    return [_finding("EX001", "error", run.read[DEADLINE], message, advice)]


def _stall(run: Settings) -> list[Finding]:
    """The watchdog counts wall time, also while a snapshot holds the rollouts, with or without the fix."""
    if not run.known(STALL, STALL_ACTION, DEADLINE, PREPARE, PARTICIPANTS, LEVEL, INTERVAL):
        return []
    stall, budget, setting = run[STALL], run[DEADLINE], run.read[STALL]
    held = run.parks and run.snapshots and run.on_gym
    enough = (budget or 0) + (_hold(run) if held else 0)
    if budget is not None and stall <= budget:
        message = (
            f"the watchdog's {_s(stall)} are not above rollout_timeout_s ({_s(budget)}): NeMo RL refuses it"
        )
        return [_finding("EX002", "error", setting, message, f"set it above {_s(enough)}")]
    if run[STALL_ACTION] != "abort" or stall > enough:
        return []
    # A prepare that runs into its timeout is common; three phases that just do not are rare.
    failed = (budget or 0) + run[PREPARE]
    severity, sum_, took = (
        ("error", failed, "prepare") if stall <= failed else ("warning", enough, "snapshot")
    )
    spent = f"rollout_timeout_s ({_s(budget)}) plus " if budget is not None else ""
    message = (
        f"the watchdog's {_s(stall)} are not above {spent}the time a snapshot may hold the rollouts: a {took}"
        f" that takes all its time makes {_s(sum_)} without a finished rollout, and stall_action=abort then"
        " ends the run as stalled; the fix stops the rollouts' clocks, not the watchdog's"
    )
    advice = f"set it above {_s(enough)}, or set stall_action=warn{_or_shorten(run)}"
    return [_finding("EX002", severity, setting, message, advice)]


def _router(run: Settings) -> list[Finding]:
    backend, budget = run[BACKEND], run[DEADLINE]
    if not run.known(ROUTER, BACKEND, DEADLINE) or not run[ROUTER] or budget is None or backend <= budget:
        return []
    message = (
        f"one request to a backend may take {_s(backend)}, longer than a whole rollout ({_s(budget)}): NeMo"
        " RL refuses it, since the request's own timeout would never fire"
    )
    advice = f"set it to {_s(budget)} or less, or raise rollout_timeout_s"
    return [_finding("EX003", "error", run.read[BACKEND], message, advice)]


def _interval(run: Settings) -> list[Finding]:
    interval, phase, hold = run[INTERVAL], run[PREPARE], _hold(run)
    if not run.known(INTERVAL, PREPARE, PARTICIPANTS, LEVEL) or not (run.parks and run.on_gym):
        return []
    if interval is None or interval >= hold:
        return []
    thin = interval < phase
    took = f"prepare alone may take {_s(phase)}" if thin else f"a snapshot may take {_s(hold)} in all"
    message = (
        f"the next snapshot is due after {_s(interval)}, but {took}: rollouts may get little time between"
    )
    advice = f"set it to {_s(hold)} or more{_or_shorten(run)}"
    return [_finding("EX004", "warning" if thin else "info", run.read[INTERVAL], message, advice)]


def _misplaced(config: RunConfig) -> list[Finding]:
    findings = []
    for path, setting in config.named(DEADLINE.rpartition(".")[2]):
        # What lies under env.nemo_gym is Gym's own config, whose keys are not ours to judge.
        if path == tuple(DEADLINE.split(".")) or path[:2] == ("env", "nemo_gym"):
            continue
        moved = path == ("async_rl", "rollout_timeout_s")
        message = (
            "NeMo RL refuses this key: it has moved"
            if moved
            else "ignored here: it gives no rollout a deadline"
        )
        advice = f"move it to {DEADLINE} (nested blocks, not a dotted name), or take it out"
        findings.append(_finding("EX005", "error" if moved else "warning", setting, message, advice))
    return findings


def _refused(run: Settings) -> list[Finding]:
    return [
        _finding(
            "EX006",
            "error",
            wrong.setting,
            f"NeMo RL refuses {shown(wrong.setting.value)} for this key",
            f"give {wrong.expected}",
        )
        for wrong in run.wrong
    ]


def _idle(run: Settings) -> list[Finding]:
    """Settings that are right in themselves and have no effect in this run."""
    if run[DEADLINE] is not None and not run.on_gym:
        message = f"{GYM} is false, so no rollout has this deadline: NeMo RL refuses it on the native path"
        return [_finding("EX007", "warning", run.read[DEADLINE], message, f"take it out, or set {GYM}=true")]
    if run.parks and not run.snapshots and run.known(INTERVAL):
        message = f"nothing takes a snapshot: {INTERVAL} is not set and {SAVES} is false"
        return [_finding("EX007", "info", run.switch, message, f"set {INTERVAL} if you want snapshots")]
    return []


def _hold(run: Settings) -> float:
    return float(PHASES * run[PREPARE])


def _how_often(run: Settings) -> str:
    period = run[PERIOD] or 1
    saves = (
        f"with a trainer checkpoint every {period} steps" if period > 1 else "with every trainer checkpoint"
    )
    if run[INTERVAL] is None:
        return saves
    return f"every {_s(run[INTERVAL])}" + (f" and {saves}" if run[SAVES] is not False else "")


def _assumed(run: Settings) -> str:
    # The newer schema has no key for it.
    return " (assumed: this schema does not say)" if run.newer and not run[PARTICIPANTS] else ""


def _or_shorten(run: Settings) -> str:
    return "" if run.newer and not run[PARTICIPANTS] else f", or lower {PREPARE}"


def _finding(id: str, severity: str, setting: Setting, message: str, advice: str) -> Finding:
    return Finding(id, severity, setting.key, setting.value, setting.origin, message, advice)


def shown(value: Any) -> str:
    """A value as YAML writes it, on one line and in ASCII."""
    return json.dumps(value, default=str)


def _s(seconds: float) -> str:
    return f"{seconds:.12g} s"
