"""The settings that decide about deadlines and snapshots: keys, NeMo RL's defaults, what NeMo RL accepts.

There are two schemas. In the pinned one, switches under `rollout_checkpointing.gym` put the state of Gym's
participants into a snapshot. In the newer one `rollout_recovery.target_level` does.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, PositiveFloat, PositiveInt, TypeAdapter, ValidationError

from nemo_rl_deadline_fix.config.loading import DEFAULT, RunConfig, Setting


class Key(StrEnum):
    """The keys that are read."""

    DEADLINE = "async_rl.rollout_failure.nemo_gym.rollout_timeout_s"
    PARTICIPANTS = "rollout_checkpointing.gym.participant_checkpointing_enabled"
    LEVEL = "rollout_recovery.target_level"
    INTERVAL = "rollout_checkpointing.snapshot_attempt_interval_s"
    PREPARE = "rollout_checkpointing.gym.prepare_timeout_s"
    CONTROL = "token_capture.control_timeout_s"
    FAILURES = "rollout_checkpointing.max_consecutive_failures"
    RESTORE = "rollout_checkpointing.restore_mode"
    SAVES = "checkpointing.enabled"
    DATA_PLANE = "checkpointing.save_data_plane"
    CAPTURE = "token_capture.enabled"
    STALL = "async_rl.stall_watchdog.stall_timeout_s"
    STALL_ACTION = "async_rl.stall_watchdog.stall_action"
    ROUTER = "async_rl.generation_router.enabled"
    ROUTER_TIMEOUT = "async_rl.generation_router.backend_timeout_s"
    GYM = "env.should_use_nemo_gym"
    BACKEND = "policy.generation.backend"


GYM_LEVELS = ("turn", "prefix")
"""The values of `Key.LEVEL` that put the state of Gym's participants into a snapshot."""
PHASES = 3
"""Prepare, commit, release: each may take `prepare_timeout_s`."""
REPLY_GRACE_S = 5.0
"""How many seconds past a control call's deadline the newer NeMo RL waits for its reply, at most."""

_SECONDS = PositiveFloat, "a number of seconds above 0"
_SECONDS_OR_NONE = PositiveFloat | None, "a number of seconds above 0, or null for none"
_SWITCH = bool, "true or false"
_LEVEL = Literal["prefix", "turn", "sibling", "prompt_group"], "prefix, turn, sibling or prompt_group"
_RESTORE = Literal["latest", "trainer_checkpoint"], "latest or trainer_checkpoint"

# The default in NeMo RL, or None where it has none; the field's type there, and how to say it.
_SCHEMA: dict[Key, tuple[Any, tuple[Any, str]]] = {
    Key.DEADLINE: (None, _SECONDS_OR_NONE),
    Key.PARTICIPANTS: (False, _SWITCH),
    Key.LEVEL: ("sibling", _LEVEL),
    Key.INTERVAL: (None, _SECONDS_OR_NONE),
    Key.PREPARE: (300.0, _SECONDS),
    Key.CONTROL: (60.0, _SECONDS),
    Key.FAILURES: (3, (PositiveInt, "a whole number of at least 1")),
    Key.RESTORE: ("latest", _RESTORE),
    Key.SAVES: (None, _SWITCH),
    Key.DATA_PLANE: (False, _SWITCH),
    Key.CAPTURE: (False, _SWITCH),
    Key.STALL: (600.0, _SECONDS),
    Key.STALL_ACTION: ("warn", (Literal["warn", "abort"], "warn or abort")),
    Key.ROUTER: (False, _SWITCH),
    Key.ROUTER_TIMEOUT: (600.0, _SECONDS),
    # A plain dict to NeMo RL, which asks for truth alone: the word 'no' is on.
    Key.GYM: (None, (Annotated[bool, BeforeValidator(bool)], "")),
    Key.BACKEND: (None, (Any, "")),
}


@dataclass(frozen=True)
class InvalidSetting:
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
        read: Every setting as it was read, in a fixed order.
        values: The same converted; the default stands in for what NeMo RL refuses.
        invalid: What NeMo RL refuses, by key: a setting, or a block that is not a mapping.
    """

    read: dict[Key, Setting]
    values: dict[Key, Any]
    invalid: dict[str, InvalidSetting]

    def __getitem__(self, key: Key) -> Any:
        return self.values[key]

    def known(self, *keys: Key) -> bool:
        """Whether all these hold a value that NeMo RL accepts."""
        return not any(f"{key}.".startswith(f"{wrong}.") for key in keys for wrong in self.invalid)

    @property
    def newer(self) -> bool:
        """Whether it is the newer schema that makes snapshots park rollouts."""
        return self[Key.LEVEL] in GYM_LEVELS and not self[Key.PARTICIPANTS]

    @property
    def parks_rollouts(self) -> bool | None:
        """Whether a snapshot parks rollouts, by either schema; None if a wrong value hides it."""
        if self[Key.PARTICIPANTS] or self.newer:
            return True
        return False if self.known(Key.PARTICIPANTS, Key.LEVEL) else None

    @property
    def takes_snapshots(self) -> bool | None:
        """Whether anything takes one; a fragment that does not speak of saving counts as saving."""
        if self[Key.INTERVAL] is not None or (self.known(Key.SAVES) and self[Key.SAVES] is not False):
            return True
        return False if self.known(Key.INTERVAL, Key.SAVES) else None

    @property
    def on_gym(self) -> bool:
        """Whether rollouts go through Gym; a fragment that does not say so counts as Gym's."""
        return self[Key.GYM] is not False

    @property
    def snapshot_setting(self) -> Setting:
        """The setting that makes snapshots park rollouts."""
        return self.read[Key.LEVEL if self.newer else Key.PARTICIPANTS]

    @property
    def phase_s(self) -> float:
        """How many seconds one call to Gym may take."""
        control = float(self[Key.CONTROL])
        return control + min(control, REPLY_GRACE_S) if self.newer else float(self[Key.PREPARE])

    @property
    def hold_s(self) -> float:
        """How many seconds a snapshot may hold the rollouts; in the newer schema one slow call of it."""
        return self.phase_s if self.newer else PHASES * self.phase_s


def read_settings(config: RunConfig) -> Settings:
    """Read and convert every setting.

    Raises:
        InvalidInputError: One of them cannot be resolved.
    """
    run = Settings({}, {}, {})
    for key, (default, (kind, expected)) in _SCHEMA.items():
        setting = config.read(key, default)
        run.values[key] = default
        if setting.key != key and kind is not Any:
            run.invalid[setting.key] = InvalidSetting(setting, "a mapping")
        if setting.key != key:
            setting = Setting(key, default, DEFAULT)
        elif setting.origin != DEFAULT:
            try:
                run.values[key] = TypeAdapter(kind).validate_python(setting.value)
            except ValidationError:
                run.invalid[key] = InvalidSetting(setting, expected)
        run.read[key] = setting
    return run
