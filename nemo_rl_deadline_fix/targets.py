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
NIGHTLY_FILES = tuple(name for name in SNAPSHOT_FILES if "checkpointing" in name)
"""Where the newest of them does, of which only the documentation is known."""
DOCUMENTED = "NeMo RL's documentation says that it is fixed"
NOT_MENDED = (
    "in a form that this package does not mend: newer versions of NeMo RL have the fix themselves "
    "(named holders)"
)

HOLDER = "gym_checkpoint"
"""The name under which the clocks are held while the gate is closed."""
DEFAULT_HOLDER = "generation_stand_down"
"""The name of calls that give none, training's and weight sync's, as NeMo RL's newer line has it."""
TELEMETRY = "_log_telemetry_metrics"
"""The controller's way to W&B and TensorBoard, where it has one."""
METRIC_PREFIX = "rollout/deadlines"
"""Common beginning of every metric's name."""

LEDGER = "_rollout_recovery_ledger"
"""The controller's attribute that holds RL's `RolloutRecoveryLedger`: which attempts RL can still use."""
LEDGER_NAMES = ("_groups", "discard_group", "pending_completed_execution_acknowledgements")
"""What `stranded` uses of the ledger: its groups, how one leaves it, and the ACKs still to be sent."""
UNUSABLE_ATTEMPTS = ("abandoned", "failed")
"""Words of the ledger for a current attempt whose reply RL can never use."""
SEALED_ATTEMPT = "sealed"
"""The ledger's word for an attempt whose reply RL has taken."""
GYM_ACTOR = "_nemo_gym_checkpoint_actor"
"""The controller's method that returns its Gym actor (versions A and B)."""
GYM_ACTORS = "_nemo_gym_checkpoint_instances"
"""The controller's method that returns its Gym actors, each with a label (version C)."""
GYM_ACTOR_NAMES = ("_control", "_checkpoint_participants", "acknowledge_completed_executions")
"""What `stranded` calls of a Gym actor: one HTTP request, its participants, RL's own way to ACK."""
GYM_CHECKPOINT_MODULE = "nemo_rl.environments.gym_checkpoint"
RETIRE_PATH = "GYM_AGENT_RETIRE_PATH"
"""A name in that module where RL itself retires what it gives up."""
AGENT_ROUTES = "/ng-control/v1/agent-checkpoint"
"""Common beginning of an agent's routes, in Gym's v1: `status` and `completion-receipt` are read here."""
AGENT_CLOSED = "preparing"
"""An agent's state, in its status, while its admission is closed."""
AGENT_COMPONENT = "responses_api_agents"
CHECKPOINT_MODE = "export_restore"
"""The mode of a participant that takes part in snapshots."""
UNACKNOWLEDGED = "completed_unacknowledged"
"""Gym's word for finished replies that nobody has ACKed; with one of them no agent is ready."""
STRANDED_PREFIX = "rollout/stranded"
"""Common beginning of the metrics about replies that NeMo RL gave up on."""

TRIED = {"ray": ">=2.55,<3", "nemo_rl": ">=0.6.0.dev0,<1"}
"""Version ranges that were tried, by module. Outside of them there is a warning; the shape decides."""
