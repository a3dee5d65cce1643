"""Mutants of what is acknowledged: which replies, when, with what, and what it may cost."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

FILE = "nemo_rl_deadline_fix/stranded.py"
MODEL = ("tests/test_stranded_model.py",)
VERDICT = ("tests/test_stranded.py::test_verdict",)

_DUE = "        return said is Verdict.GIVEN_UP or seen_s >= self.grace_s\n"

MUTANTS = (
    Mutant(
        "dispatched-counts-as-given-up",
        FILE,
        "A row that RL is still reading is released, and its next dispatch is refused.",
        MODEL,
        (
            (
                "        unusable = current.status in targets.UNUSABLE_ATTEMPTS\n",
                '        unusable = current.status in (*targets.UNUSABLE_ATTEMPTS, "dispatched")\n',
            ),
        ),
    ),
    Mutant(
        "outbox-is-not-looked-at",
        FILE,
        "What RL is about to ACK itself is ACKed twice.",
        ("tests/test_stranded.py::test_outbox_is_rls_own",),
        (("    if key in outbox:\n", "    if False:\n"),),
    ),
    Mutant(
        "memory-before-ledger",
        FILE,
        "A group that comes back under a discarded id is taken for the old one.",
        VERDICT,
        (
            (
                "    if key in outbox:\n",
                "    if key in remembered:\n        return Verdict.GIVEN_UP\n    if key in outbox:\n",
            ),
        ),
    ),
    Mutant(
        "no-grace",
        FILE,
        "A reply that the ledger does not know is released at its second look.",
        ("tests/test_stranded.py::test_unknown_reply_is_acknowledged_after_the_grace",),
        ((_DUE, "        return True\n"),),
    ),
    Mutant(
        "unknown-is-given-up",
        FILE,
        "Where nothing is known of a reply, that counts as proof.",
        VERDICT,
        (
            (
                "        return Verdict.GIVEN_UP if key in remembered else Verdict.UNKNOWN\n",
                "        return Verdict.GIVEN_UP\n",
            ),
        ),
    ),
    Mutant(
        "unknown-for-ever",
        FILE,
        "What left the ledger before the first snapshot blocks every snapshot.",
        MODEL,
        ((_DUE, "        return said is Verdict.GIVEN_UP\n"),),
    ),
    Mutant(
        "grace-longer-than-a-prepare",
        FILE,
        "The first snapshots after each start fail.",
        ("tests/test_stranded.py::test_unknown_reply_is_acknowledged_after_the_grace",),
        (("gym.prepare_timeout_s) / 2)\n", "gym.prepare_timeout_s) * 2)\n"),),
    ),
    Mutant(
        "receipt-of-another-attempt",
        FILE,
        "What the agent sends for another execution is sent back as this one's receipt.",
        ("tests/test_stranded.py::test_receipt_of_another_attempt_is_not_sent",),
        (('        if (receipt["rollout_id"], receipt["attempt_index"]) != key:\n', "        if False:\n"),),
    ),
    Mutant(
        "asks-for-the-next-receipt",
        FILE,
        "The receipt that is asked for is that of the attempt RL is waiting for.",
        MODEL,
        (("attempt_index=key[1])\n", "attempt_index=key[1] + 1)\n"),),
    ),
    Mutant(
        "superseded-is-wanted",
        FILE,
        "A reply of an earlier attempt blocks every snapshot.",
        MODEL,
        (("        unusable = attempt_index < current.attempt_index\n", "        unusable = False\n"),),
    ),
    Mutant(
        "newer-than-the-ledger-is-given-up",
        FILE,
        "An attempt that the ledger has not heard of yet is released.",
        VERDICT,
        (("        unusable = attempt_index < current.attempt_index\n", "        unusable = True\n"),),
    ),
    Mutant(
        "abandoned-is-wanted",
        FILE,
        "A reply that was abandoned and not tried again blocks every snapshot.",
        MODEL,
        (("        unusable = current.status in targets.UNUSABLE_ATTEMPTS\n", "        unusable = False\n"),),
    ),
    Mutant(
        "first-look",
        FILE,
        "A reply is released in the moment in which it is first seen.",
        ("tests/test_stranded.py::test_second_look_is_waited_for",),
        (("                if key in before and self", "                if self"),),
    ),
    Mutant(
        "not-judged-again",
        FILE,
        "Between the look and the ACK the outbox may have got an entry.",
        ("tests/test_stranded.py::test_judged_again_before_the_ack",),
        (
            (
                "        unwanted = self.snapshot.unwanted([key for key, _receipt in entries])\n",
                "        unwanted = [(key, Verdict.GIVEN_UP) for key, _receipt in entries]\n",
            ),
        ),
    ),
    Mutant(
        "retires-what-runs",
        FILE,
        "A snapshot after it is saved and cannot be restored: the session stays without its run.",
        ("tests/test_stranded.py::test_parked_run_that_was_given_up_is_left_alone",),
        (
            (
                "                for keys in _pieces(due, BATCH):\n",
                '                running = [x for x in status["executions"] if x["state"] == "parked"]\n'
                '                running = [(x["rollout_id"], x["attempt_index"]) for x in running]\n'
                "                for key, _said in self.snapshot.unwanted(running):\n"
                "                    await self.actor._control.remote(\n"
                '                        "POST",\n'
                '                        f"{targets.AGENT_ROUTES}/retire",\n'
                "                        server_name=self.identity.server_name,\n"
                '                        json={"rollout_id": key[0], "attempt_index": key[1]},\n'
                "                    )\n"
                "                for keys in _pieces(due, BATCH):\n",
            ),
        ),
    ),
    Mutant(
        "sealed-is-remembered-as-unused",
        FILE,
        "What RL took is remembered as given up.",
        ("tests/test_stranded.py::test_discarded_group_is_remembered",),
        (("current.status == targets.SEALED_ATTEMPT", "False"),),
    ),
    Mutant(
        "memory-without-end",
        FILE,
        "A long run remembers every attempt that ever left the ledger.",
        MODEL,
        (("        while len(self) > REMEMBERED:\n", "        while False:\n"),),
    ),
    Mutant(
        "bookkeeping-raises-into-rl",
        FILE,
        "A group of another shape cannot be discarded any more.",
        ("tests/test_stranded.py::test_bookkeeping_never_raises_into_rl",),
        (
            (
                "        with suppress(Exception):\n            for group_id in named.keys()",
                "        with suppress(ZeroDivisionError):\n            for group_id in named.keys()",
            ),
        ),
    ),
    Mutant(
        "copy-acts-on-the-original",
        FILE,
        "A copied ledger discards from the one it was copied from.",
        ("tests/test_stranded.py::test_copied_ledger_is_its_own",),
        (
            (
                '        return getattr, (self._ledger, "discard_group")\n',
                "        return object.__reduce_ex__(self, 4)\n",
            ),
        ),
    ),
    Mutant(
        "batch-or-nothing",
        FILE,
        "One reply that Gym refuses keeps its whole batch.",
        ("tests/test_stranded.py::test_batch_that_is_refused_goes_one_by_one",),
        (
            (
                "        if not await self._send(entries) and len(entries) > 1:\n",
                "        if not await self._send(entries) and False:\n",
            ),
        ),
    ),
    Mutant(
        "one-look",
        FILE,
        "A call that fails is never tried again.",
        ("tests/test_stranded.py::test_call_that_fails_is_tried_again",),
        (
            (
                '            except Exception as error:\n                self.snapshot.refused(f"the look',
                "            except Exception as error:\n                return\n"
                '                self.snapshot.refused(f"the look',
            ),
        ),
    ),
    Mutant(
        "agents-one-after-the-other",
        FILE,
        "An agent that hangs holds up all that come after it.",
        ("tests/test_stranded.py::test_broken_agent_holds_up_no_other",),
        (
            (
                "        self.tasks += [asyncio.create_task(agent.watch()) for agent in agents]\n",
                "        for agent in agents:\n            await agent.watch()\n",
            ),
        ),
    ),
    Mutant(
        "watch-outlives-the-snapshot",
        FILE,
        "Calls go on after the snapshot has ended.",
        ("tests/test_stranded.py::test_no_call_begins_after_the_end",),
        (("            task.cancel()\n", "            pass\n"),),
    ),
    Mutant(
        "only-the-first-task-is-cancelled",
        FILE,
        "The agents' watches outlive the snapshot.",
        ("tests/test_stranded.py::test_no_call_begins_after_the_end",),
        (("        for task in self.tasks:\n", "        for task in self.tasks[:1]:\n"),),
    ),
    Mutant(
        "looks-on-while-gym-writes",
        FILE,
        "A long commit is asked for its executions ten times a minute.",
        ("tests/test_stranded.py::test_nothing_is_looked_at_while_gym_writes",),
        (('status.get("state") == targets.AGENT_CLOSED:', "False:"),),
    ),
    Mutant(
        "its-own-error-comes-out",
        FILE,
        "A controller that lacks a name takes no snapshots any more.",
        ("tests/test_stranded.py::test_stays_out",),
        (
            (
                "    except Exception as error:\n        reason",
                "    except ZeroDivisionError as error:\n        reason",
            ),
        ),
    ),
    Mutant(
        "beside-a-nemo-rl-that-retires",
        FILE,
        "Two give replies back at once.",
        ("tests/test_stranded.py::test_stays_out_where_rl_retires_by_itself",),
        (
            (
                "    if hasattr(sys.modules.get(targets.GYM_CHECKPOINT_MODULE), targets.RETIRE_PATH):\n",
                "    if False:\n",
            ),
        ),
    ),
)
