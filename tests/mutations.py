"""Wrong versions of the fix, as data: what is broken, and which tests must go red for it.

`tests.mutants` runs them. Each is a mistake that somebody could make, or a fix that somebody could propose
instead.
"""

from __future__ import annotations

from tests.support.mutant import Mutant

PACKAGE = "nemo_rl_deadline_fix"
DIFF = "patches/0001-fix-sc-pause-request-deadlines-during-gym-snapshots.diff"
PATCHES = ("tests/test_patches.py::test_0002_is_red_before_0001_and_green_after",)

STRANDED = f"{PACKAGE}/stranded.py"
RULES = "tests/test_stranded.py::"
ANY_ORDER = ("tests/test_stranded_model.py",)

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "diff-without-the-hold",
        "The clocks run while rollouts are parked.",
        PATCHES,
        DIFF,
        line=r"suspend_request_deadlines\(\"gym_checkpoint\"\)",
    ),
    Mutant(
        "dispatched-counts-as-given-up",
        "A row that RL is still reading is released.",
        ANY_ORDER,
        STRANDED,
        "verdict",
        line=r"unusable = current\.status in targets\.UNUSABLE_ATTEMPTS",
        put='unusable = current.status in (*targets.UNUSABLE_ATTEMPTS, "dispatched")',
    ),
    Mutant(
        "outbox-is-not-looked-at",
        "What RL is about to ACK itself is ACKed twice.",
        (f"{RULES}test_outbox_is_rls_own",),
        STRANDED,
        "verdict",
        line=r"if key in outbox",
        put="if False",
    ),
    Mutant(
        "memory-before-ledger",
        "A group that comes back under a discarded id is taken for the old one.",
        (f"{RULES}test_verdict",),
        STRANDED,
        "verdict",
        line=r"^group = .*",
        put="group = None if key in remembered else ledger._groups.get(group_id)",
    ),
    Mutant(
        "no-grace",
        "A reply that the ledger does not know is released at its second look.",
        (f"{RULES}test_unknown_reply_is_acknowledged_after_the_grace",),
        STRANDED,
        "Snapshot.is_due",
        line=r"return .*",
        put="return True",
    ),
    Mutant(
        "unknown-for-ever",
        "What left the ledger before the first snapshot blocks every snapshot.",
        ANY_ORDER,
        STRANDED,
        "Snapshot.is_due",
        line=r" or seen_s >= self\.grace_s",
        put="",
    ),
    Mutant(
        "unknown-is-given-up",
        "Where nothing is known of a reply, that counts as proof.",
        (f"{RULES}test_verdict",),
        STRANDED,
        "verdict",
        line=r"return Verdict\.GIVEN_UP if key in remembered else Verdict\.UNKNOWN",
        put="return Verdict.GIVEN_UP",
    ),
    Mutant(
        "grace-longer-than-a-prepare",
        "The first snapshots after each start fail.",
        (f"{RULES}test_unknown_reply_is_acknowledged_after_the_grace",),
        STRANDED,
        "_grace_s",
        line=r"/ 2",
        put="* 2",
    ),
    Mutant(
        "receipt-of-another-attempt",
        "What the agent sends for another execution is sent back as this one's receipt.",
        (f"{RULES}test_receipt_of_another_attempt_is_not_sent",),
        STRANDED,
        "Agent._receipt",
        line=r"if \(receipt.*",
        put="if False:",
    ),
    Mutant(
        "asks-for-the-next-receipt",
        "The receipt that is asked for is that of the attempt RL is waiting for.",
        ANY_ORDER,
        STRANDED,
        "Agent._receipt",
        line=r"attempt_index=key\[1\]",
        put="attempt_index=key[1] + 1",
    ),
    Mutant(
        "superseded-is-wanted",
        "A reply of an earlier attempt blocks every snapshot.",
        ANY_ORDER,
        STRANDED,
        "verdict",
        line=r"unusable = attempt_index < .*",
        put="unusable = False",
    ),
    Mutant(
        "newer-than-the-ledger-is-given-up",
        "An attempt that the ledger has not heard of yet is released.",
        (f"{RULES}test_verdict",),
        STRANDED,
        "verdict",
        line=r"unusable = attempt_index < .*",
        put="unusable = True",
    ),
    Mutant(
        "abandoned-is-wanted",
        "A reply that was abandoned and not tried again blocks every snapshot.",
        ANY_ORDER,
        STRANDED,
        "verdict",
        line=r"unusable = current\.status in targets\.UNUSABLE_ATTEMPTS",
        put="unusable = False",
    ),
    Mutant(
        "first-look",
        "A reply is released in the moment in which it is first seen.",
        (f"{RULES}test_second_look_is_waited_for",),
        STRANDED,
        "Agent._look",
        line=r"if key in before and",
        put="if",
    ),
    Mutant(
        "not-judged-again",
        "Between the look and the ACK the outbox may have got an entry.",
        (f"{RULES}test_judged_again_before_the_ack",),
        STRANDED,
        "Agent._send",
        line=r"unwanted = .*",
        put="unwanted = [(key, Verdict.GIVEN_UP) for key, _receipt in entries]",
    ),
    Mutant(
        "retires-what-it-gave-up",
        "The session of a retired run stays, and a snapshot that is saved cannot be restored.",
        (f"{RULES}test_parked_run_that_was_given_up_is_left_alone",),
        STRANDED,
        "Agent.watch",
        line=r"due = await self\._look\(status\['executions'\]\)",
        put=(
            'due = await self._look(status["executions"])\n'
            'parked = [one for one in status["executions"] if one["state"] == "parked"]\n'
            'parked = [(one["rollout_id"], one["attempt_index"]) for one in parked]\n'
            "for key, _said in self.snapshot.unwanted(parked):\n"
            '    body, name = {"rollout_id": key[0], "attempt_index": key[1]}, self.identity.server_name\n'
            '    path = f"{targets.AGENT_ROUTES}/retire"\n'
            '    await self.actor._control.remote("POST", path, server_name=name, json=body)'
        ),
    ),
    Mutant(
        "sealed-is-remembered-as-unused",
        "What RL took is remembered as given up.",
        (f"{RULES}test_discarded_group_is_remembered",),
        STRANDED,
        "Memory.remember",
        line=r"if current\.status == targets\.SEALED_ATTEMPT",
        put="if False",
    ),
    Mutant(
        "memory-without-end",
        "A long run remembers every attempt that ever left the ledger.",
        ANY_ORDER,
        STRANDED,
        "Memory.remember",
        line=r"while len\(self\) > REMEMBERED",
        put="while False",
    ),
    Mutant(
        "copy-acts-on-the-original",
        "A copied ledger discards from the one it was copied from.",
        (f"{RULES}test_copied_ledger_is_its_own",),
        STRANDED,
        "_DiscardGroup.__reduce__",
        line=r"return .*",
        put="return object.__reduce_ex__(self, 4)",
    ),
    Mutant(
        "batch-or-nothing",
        "One reply that Gym refuses keeps its whole batch.",
        (f"{RULES}test_batch_that_is_refused_goes_one_by_one",),
        STRANDED,
        "Agent._acknowledge",
        line=r"len\(entries\) > 1",
        put="False",
    ),
    Mutant(
        "one-look",
        "A call that fails is never tried again.",
        (f"{RULES}test_call_that_fails_is_tried_again",),
        STRANDED,
        "Agent.watch",
        line=r"self\.snapshot\.refused\(.*",
        put="return",
    ),
    Mutant(
        "agents-one-after-the-other",
        "An agent that hangs holds up all that come after it.",
        (f"{RULES}test_broken_agent_holds_up_no_other",),
        STRANDED,
        "Snapshot.find_agents",
        line=r"self\.tasks \+= .*",
        put="[await agent.watch() for agent in agents]",
    ),
    Mutant(
        "watch-outlives-the-snapshot",
        "Calls go on after the snapshot has ended.",
        (f"{RULES}test_no_call_begins_after_the_end",),
        STRANDED,
        "Snapshot.end",
        line=r"task\.cancel\(\)",
        put="pass",
    ),
    Mutant(
        "only-the-first-task-is-cancelled",
        "The agents' watches outlive the snapshot.",
        (f"{RULES}test_no_call_begins_after_the_end",),
        STRANDED,
        "Snapshot.end",
        line=r"for task in self\.tasks",
        put="for task in self.tasks[:1]",
    ),
    Mutant(
        "looks-on-while-gym-writes",
        "A long commit is asked for its executions all the time.",
        (f"{RULES}test_nothing_is_looked_at_while_gym_writes",),
        STRANDED,
        "Agent.watch",
        line=r"if status\.get\(.*",
        put="if False:",
    ),
    Mutant(
        "its-own-error-comes-out",
        "A controller that lacks a name takes no snapshots any more.",
        (f"{RULES}test_stays_out",),
        STRANDED,
        "_begin",
        line=r"reason = f.*",
        put="raise",
    ),
    Mutant(
        "beside-a-nemo-rl-that-retires",
        "Two give replies back at once.",
        (f"{RULES}test_stays_out_where_rl_retires_by_itself",),
        STRANDED,
        "_unfit",
        line=r"if hasattr\(sys\..*",
        put="if False:",
    ),
)
