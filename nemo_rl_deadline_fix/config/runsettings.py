"""The settings that decide about deadlines and snapshots: keys, NeMo RL's defaults, what NeMo RL accepts."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from nemo_rl_deadline_fix.config.runconfig import RunConfig, Setting

DEADLINE = "async_rl.rollout_failure.nemo_gym.rollout_timeout_s"
STALL = "async_rl.stall_watchdog.stall_timeout_s"
STALL_ACTION = "async_rl.stall_watchdog.stall_action"
ROUTER = "async_rl.generation_router.enabled"
BACKEND = "async_rl.generation_router.backend_timeout_s"
PARTICIPANTS = "rollout_checkpointing.gym.participant_checkpointing_enabled"
PREPARE = "rollout_checkpointing.gym.prepare_timeout_s"
INTERVAL = "rollout_checkpointing.snapshot_attempt_interval_s"
FAILURES = "rollout_checkpointing.max_consecutive_failures"
LEVEL = "rollout_recovery.target_level"
GYM = "env.should_use_nemo_gym"
SAVES = "checkpointing.enabled"
PERIOD = "checkpointing.save_period"

GYM_LEVELS = ("turn", "prefix")
"""The values of LEVEL that put the state of Gym's participants into a snapshot (the newer schema)."""


@dataclass(frozen=True)
class Wrong:
    """A value that NeMo RL refuses.

    Attributes:
        setting: The key, its value and where that came from.
        expected: What would be accepted.
    """

    setting: Setting
    expected: str


@dataclass(frozen=True)
class Settings:
    """The settings of one run, converted as NeMo RL would.

    Attributes:
        read: Every setting as it was read, by key, in a fixed order.
        wrong: Those that NeMo RL refuses; the default stands in for them.
    """

    read: dict[str, Setting]
    wrong: tuple[Wrong, ...]
    _values: dict[str, Any] = field(repr=False)
    _unknown: frozenset[str] = field(repr=False)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def known(self, *keys: str) -> bool:
        """Whether all these hold a value that NeMo RL accepts."""
        return not self._unknown.intersection(keys)

    @property
    def newer(self) -> bool:
        """Whether the newer schema makes snapshots park rollouts; it has no key for how long one may take."""
        return self[LEVEL] in GYM_LEVELS

    @property
    def parks(self) -> bool:
        """Whether a snapshot parks rollouts, by either schema."""
        return bool(self[PARTICIPANTS]) or self.newer

    @property
    def snapshots(self) -> bool:
        """Whether anything takes a snapshot; a fragment that does not speak of saving counts as saving."""
        return self[INTERVAL] is not None or self[SAVES] is not False

    @property
    def on_gym(self) -> bool:
        """Whether rollouts go through Gym; a fragment that does not say so counts as Gym's."""
        return self[GYM] is not False

    @property
    def switch(self) -> Setting:
        """The setting that makes snapshots park rollouts."""
        return self.read[LEVEL if self.newer else PARTICIPANTS]


def settle(config: RunConfig) -> Settings:
    """Read and convert every setting.

    Raises:
        InvalidInputError: One of them cannot be resolved.
    """
    read = {key: config.read(key, default) for key, (default, _) in _KEYS.items()}
    values: dict[str, Any] = {}
    wrong: list[Wrong] = []
    unknown: set[str] = set()
    blocks = {key.rsplit(".", cut)[0] for key in _KEYS for cut in range(1, key.count(".") + 1)}
    for block in sorted(blocks):
        setting = config.read(block, {}, shallow=True)
        if not isinstance(setting.value, dict):
            wrong.append(Wrong(setting, "a mapping"))
            unknown.update(key for key in _KEYS if key.startswith(f"{block}."))
    for key, (default, convert) in _KEYS.items():
        try:
            values[key] = convert(read[key].value)
        except ValueError as error:
            values[key] = default
            wrong.append(Wrong(read[key], str(error)))
            unknown.add(key)
    return Settings(read, tuple(wrong), values, frozenset(unknown))


def _seconds(value: Any) -> float:
    try:
        seconds = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ValueError("a number of seconds above 0")
    return seconds


def _seconds_or_none(value: Any) -> float | None:
    try:
        return None if value is None else _seconds(value)
    except ValueError as error:
        raise ValueError(f"{error}, or null for none") from None


def _count(value: Any) -> int:
    try:
        if not isinstance(value, bool) and float(value) == int(value) >= 1:
            return int(value)
    except (TypeError, ValueError, OverflowError):
        pass
    raise ValueError("a whole number of at least 1")


def _switch(value: Any) -> bool:
    # What NeMo RL's models take for a bool, words included.
    word = str(value).lower()
    if word in ("true", "yes", "on", "y", "t", "1", "1.0"):
        return True
    if word in ("false", "no", "off", "n", "f", "0", "0.0"):
        return False
    raise ValueError("true or false")


def _truth(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _action(value: Any) -> str:
    if value not in ("warn", "abort"):
        raise ValueError("warn or abort")
    return str(value)


def _word(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise ValueError("a word such as turn or prefix")
    return value


def _whole(value: Any) -> int | None:
    # Said in a message only, so a value that NeMo RL may refuse is not ours to report.
    return value if isinstance(value, int) else None


_KEYS: dict[str, tuple[Any, Callable[[Any], Any]]] = {
    DEADLINE: (None, _seconds_or_none),
    PARTICIPANTS: (False, _switch),
    LEVEL: (None, _word),
    INTERVAL: (None, _seconds_or_none),
    PREPARE: (300.0, _seconds),
    FAILURES: (3, _count),
    SAVES: (None, _truth),
    PERIOD: (None, _whole),
    STALL: (600.0, _seconds),
    STALL_ACTION: ("warn", _action),
    ROUTER: (False, _switch),
    BACKEND: (600.0, _seconds),
    GYM: (None, _truth),
}
"""Every key that is read: its default in NeMo RL, and what turns its value into ours."""
