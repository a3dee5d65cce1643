"""What is patched, as data: everyone who looks for the defect or mends it shares these names.

Names and shapes are facts about NeMo RL, read at the commit that brings Gym snapshots (pin 98b3b6c).
"""

from __future__ import annotations

CONTROLLER_MODULE = "nemo_rl.algorithms.single_controller"
CONTROLLER_FILE = "nemo_rl/algorithms/single_controller.py"
CONTROLLER_CLASS = "SingleControllerActor"

MANAGER_MODULE = "nemo_rl.experience.rollout_manager"
MANAGER_FILE = "nemo_rl/experience/rollout_manager.py"
MANAGER_CLASS = "RolloutManager"
REGISTRY_CLASS = "RequestDeadlineRegistry"
DEADLINE_CLASS = "_Deadline"

TIMEOUT_CLASS = "RolloutTimeout"

PREPARE = "_prepare_and_commit_gym_checkpoint"
"""Closes the gate before its first await; reopens it where it fails before Gym has prepared."""
RELEASE = "_release_prepared_gym_checkpoint"
"""Reopens the gate as its last step, when Gym has confirmed."""
RELEASE_COMMITTED = "_release_committed_gym_checkpoint"
"""Calls RELEASE and keeps the pending release while that fails."""
METHODS = (PREPARE, RELEASE)
"""The controller's methods that close and reopen the gate."""
COORDINATED = "_prepared_gym_checkpoint"
"""What newer lines of NeMo RL have instead: a context manager around the snapshot, with another gate."""

GATE = "_gym_checkpoint_rollout_permitted"
"""The controller's `asyncio.Event`: set while a Gym snapshot lets rollouts be admitted."""
MANAGER = "_rollout_manager"
"""The controller's attribute that holds the `RolloutManager`."""
REGISTRY = "_request_deadlines"
"""The manager's attribute that holds the `RequestDeadlineRegistry`."""
SUSPEND = "suspend_request_deadlines"
RESUME = "resume_request_deadlines"
"""The manager's two forwards to the registry."""

SNAPSHOT_NAMES = ("_gym_checkpoint", "GymCheckpoint", "RolloutDispatchAdmissionGate")
"""Parts of names that a NeMo RL with Gym snapshots has, in whatever form, and no other."""
SNAPSHOT_FILES = (
    "nemo_rl/environments/nemo_gym_checkpoint.py",
    "nemo_rl/environments/gym_checkpoint_coordinator.py",
    "nemo_rl/environments/gym_checkpoint_adapter.py",
    "nemo_rl/environments/checkpointing/nemo_gym.py",
    "nemo_rl/algorithms/rollout_checkpointing",
)
"""Where NeMo RL's lines keep what they have of Gym snapshots outside of the controller's file."""

HOLDER = "gym_checkpoint"
"""The name under which the clocks are held while the gate is closed."""
DEFAULT_HOLDER = "generation_stand_down"
"""The name of calls that give none, training's and weight sync's, as NeMo RL's newer line has it."""
TELEMETRY = "_log_telemetry_metrics"
"""The controller's way to W&B and TensorBoard, where it has one."""
METRIC_PREFIX = "rollout/deadlines"
"""Common beginning of every metric's name."""

SUPPORTED = {"ray": ">=2.55,<3", "nemo_rl": ">=0.6.0.dev0,<1"}
"""Version ranges that were tried, by distribution. Outside of them a warning; the shape decides."""
