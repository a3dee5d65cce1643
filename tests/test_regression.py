"""The regression suite: upstream's functional numbers and the reviewer's scratch run, on every target.

Runs on the embedded model, on an installed NeMo RL where there is one, and on `--rl PATH`.
"""

from __future__ import annotations

import pytest

from nemo_rl_deadline_fix.replay import simulation
from nemo_rl_deadline_fix.replay.parameters import Overlap, Parameters
from tests.conftest import Target

OVERLAPS = pytest.mark.parametrize("overlap", list(Overlap))

# The background document's scratch run: a budget of 50 ms that a snapshot outlasts.
SCRATCH = Parameters(
    budget=0.05,
    snapshot_at=0.03,
    snapshot_for=0.2,
    second_at=0.6,
    prepare_timeout=0.3,
    work=0.045,
    turn=0.01,
)


@OVERLAPS
def test_a_slow_snapshot_makes_rl_give_up_and_stops_the_next_snapshot(
    target: Target, overlap: Overlap
) -> None:
    """Without the fix a parked rollout times out at 180 s and the second snapshot fails at 750 s."""
    run = simulation.run(target.unfixed(), Parameters(overlap=overlap))

    first, second = run.snapshots
    assert (first.outcome, first.at, first.ended_at) == ("committed", 150.0, 210.0)
    assert (first.ready_to_commit, first.parked, first.deadlines_suspended) == (True, 1, False)
    given_up = run.attempts[0]
    assert (given_up.outcome, given_up.at, given_up.state_when_given_up) == ("timeout", 180.0, "parked")
    assert given_up.error == "NeMo-Gym prompt group exceeded 180.0s"
    assert not given_up.acknowledged
    assert (second.at, second.ready_to_commit, second.completed_unacknowledged) == (450.0, False, 1)
    assert (second.outcome, second.ended_at) == ("failed", 750.0)
    assert second.error.startswith("TimeoutError")
    assert run.stalls


@OVERLAPS
def test_with_the_fix_the_parked_rollout_replies_and_the_next_snapshot_is_ready(
    target: Target, overlap: Overlap
) -> None:
    """With the fix try 0 replies before 240 s, is ACKed, and the second snapshot is ready at once."""
    run = simulation.run(target.after, Parameters(overlap=overlap))

    first, second = run.snapshots
    assert (first.outcome, first.at, first.ended_at) == ("committed", 150.0, 210.0)
    assert first.deadlines_suspended
    (reply,) = run.attempts
    assert (reply.index, reply.outcome, reply.reward, reply.acknowledged) == (0, "reply", 1.0, True)
    assert 210.0 < reply.at < 240.0
    assert (second.outcome, second.ready_to_commit, second.completed_unacknowledged) == ("committed", True, 0)
    assert (run.bodies_started, run.bodies_finished) == (1, 1)
    assert run.holders_left == ()
    assert not run.stalls


def test_scratch_run_before(target: Target) -> None:
    """The reviewer's run: RL gives up on a parked rollout and its reply blocks the next prepare."""
    run = simulation.run(target.unfixed(), SCRATCH)

    assert (run.snapshots[0].ready_to_commit, run.snapshots[0].parked) == (True, 1)
    assert not run.snapshots[0].deadlines_suspended
    assert run.attempts[0].error == "NeMo-Gym prompt group exceeded 0.05s"
    assert run.attempts[0].state_when_given_up == "parked"
    assert not run.snapshots[1].ready_to_commit
    assert run.snapshots[1].completed_unacknowledged >= 1


def test_scratch_run_after(target: Target) -> None:
    """The reviewer's run with the fix: suspended while parked, one body, one reply, ready again."""
    run = simulation.run(target.after, SCRATCH)

    assert (run.snapshots[0].ready_to_commit, run.snapshots[0].parked) == (True, 1)
    assert run.snapshots[0].deadlines_suspended
    assert [attempt.reward for attempt in run.attempts] == [1.0]
    assert (run.bodies_started, run.bodies_finished) == (1, 1)
    assert run.snapshots[1].ready_to_commit


@OVERLAPS
def test_the_pause_costs_nothing_and_gives_nothing(target: Target, overlap: Overlap) -> None:
    """A rollout whose work fits its budget by a second replies; one that is a second too long does not."""
    # Work begins to count at 0, and stands from 160, the boundary after 150, to 210. The clock stands
    # from 150 to 210, and on to 220 while a training switch holds it too.
    spare = 10.0 if overlap is Overlap.TRAINING else 0.0
    fits = Parameters(overlap=overlap, work=189.0 + spare, retry_work=10.0, turn=20.0)
    too_long = Parameters(overlap=overlap, work=191.0 + spare, retry_work=10.0, turn=20.0)

    assert simulation.run(target.after, fits).attempts[0].outcome == "reply"
    late = simulation.run(target.after, too_long).attempts[0]
    assert (late.outcome, late.at, late.state_when_given_up) == ("timeout", 240.0 + spare, "running")


def test_a_really_slow_rollout_still_strands_its_reply(target: Target) -> None:
    """The limit of the fix: a rollout that outlasts its budget while running blocks later snapshots."""
    run = simulation.run(target.after, Parameters(work=220.0, retry_work=10.0))

    assert run.attempts[0].state_when_given_up == "running"
    assert run.stalls
    assert run.holders_left == ()


def test_a_first_snapshot_that_never_gets_ready_leaves_no_hold(target: Target) -> None:
    """A prepare that fails because a turn is too long releases the clocks as it reopens admission."""
    run = simulation.run(
        target.after,
        Parameters(turn=170.0, prepare_timeout=5.0, snapshot_for=60.0, work=170.0),
    )

    assert run.snapshots[0].outcome == "failed"
    assert run.attempts[0].outcome == "reply"
    assert run.holders_left == ()
