"""Mutants of the registry: names, what a pause costs, the turn in which it ends, adoption, long holds."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

FILE = "nemo_rl_deadline_fix/registry.py"
TESTS = ("tests/test_registry.py",)
# Alone, because an exhaustive test that others make unnecessary would be no proof.
TWO_HOLDERS = ("tests/test_interleavings.py::test_every_order_of_two_holders",)
THREE_HOLDERS = ("tests/test_interleavings.py::test_every_order_of_three_holders",)
EDGES = ("tests/test_deadline_edges.py",)

_KNOWS_THE_NAME = "        if holder in self._holders:\n            return\n"
_LETS_GO = "        del self._holders[holder]\n        if self._holders:\n            return\n"
_TO_THE_END = "            except Exception as error:\n                errors.append(error)\n"
_COPY = "        errors: list[Exception] = []\n        deadlines = tuple(self._live)\n"

MUTANTS = (
    Mutant(
        "counts-each-suspend",
        FILE,
        "Two suspends of one name need two resumes, and training suspends once per chunk.",
        TWO_HOLDERS,
        (
            (_KNOWS_THE_NAME, '        while holder in self._holders:\n            holder += "+"\n'),
            (
                "        if holder not in self._holders:\n",
                '        same = [name for name in self._holders if name.rstrip("+") == holder]\n'
                "        holder = same[-1] if same else holder\n"
                "        if holder not in self._holders:\n",
            ),
        ),
    ),
    Mutant(
        "counts-instead-of-naming",
        FILE,
        "Whoever lets go takes one hold off, so a weight sync frees a snapshot's.",
        THREE_HOLDERS,
        (
            (
                "        if holder not in self._holders:\n",
                "        holder = next(iter(self._holders), holder)\n"
                "        if holder not in self._holders:\n",
            ),
        ),
    ),
    Mutant(
        "one-flag-for-all",
        FILE,
        "Any resume frees everyone, which is the defect of the registry upstream.",
        TWO_HOLDERS,
        (("        del self._holders[holder]\n", "        self._holders.clear()\n"),),
    ),
    Mutant(
        "first-release-restarts-the-clocks",
        FILE,
        "The names are right, but the clocks run while another one still holds.",
        TWO_HOLDERS,
        ((_LETS_GO, _LETS_GO.replace("        if self._holders:\n            return\n", "")),),
    ),
    Mutant(
        "restarts-while-two-hold",
        FILE,
        "A release that leaves two holders restarts the clocks; with two names in play nothing shows.",
        THREE_HOLDERS,
        ((_LETS_GO, _LETS_GO.replace("if self._holders:", "if len(self._holders) == 1:")),),
    ),
    Mutant(
        "unknown-release-is-an-error",
        FILE,
        "A weight sync on an engine that is not colocated resumes what nobody suspended.",
        TESTS,
        (
            (
                '            logger.debug("%s let go of the rollout clocks without holding them: '
                'nothing to do", holder)\n            return\n',
                "            raise RuntimeError(holder)\n",
            ),
        ),
    ),
    Mutant(
        "each-holder-stops-them-again",
        FILE,
        "A second name's suspend goes through all live deadlines, however many there are.",
        TESTS,
        (("        if not first:\n            return\n", ""),),
    ),
    Mutant(
        "empty-name-holds",
        FILE,
        "A holder without a name cannot be told in any message.",
        TESTS,
        (("    if not holder:\n", "    if False:\n"),),
    ),
    Mutant(
        "suspended-for-good",
        FILE,
        "The flag that upstream's code reads says suspended long after the last release.",
        TESTS,
        (("        self._held = False\n        seconds = ", "        seconds = "),),
    ),
    Mutant(
        "hold-outlasts-an-error",
        FILE,
        "A block that is left by an exception never lets go.",
        TESTS,
        (
            (
                "            yield\n        finally:\n            self.resume(holder)\n",
                "            yield\n        except GeneratorExit:\n            raise\n"
                "        else:\n            self.resume(holder)\n",
            ),
        ),
    ),
    Mutant(
        "drops-the-suspend",
        FILE,
        "The names are kept, and the clocks of live deadlines run on.",
        TESTS,
        (("        self._stop_all()\n", ""),),
    ),
    Mutant(
        "drops-the-resume",
        FILE,
        "The clocks of live deadlines never run again, so a hung rollout never times out.",
        TESTS,
        (("        self._restart_all()\n", ""),),
    ),
    Mutant(
        "born-while-held-runs",
        FILE,
        "A rollout that is dispatched during a pause loses budget in it.",
        TESTS,
        (
            (
                "        self._live.add(deadline)\n        if self._held:\n",
                "        self._live.add(deadline)\n        if False:\n",
            ),
        ),
    ),
    Mutant(
        "failed-add-stays",
        FILE,
        "A deadline that was never entered is resumed with the others for the rest of the run.",
        TESTS,
        (
            (
                "                self._live.discard(deadline)\n                raise\n",
                "                raise\n",
            ),
        ),
    ),
    Mutant(
        "left-deadline-stays",
        FILE,
        "Deadlines of finished rollouts pile up, and each hold goes through all of them.",
        TESTS,
        (('is a no-op."""\n        self._live.discard(deadline)\n', 'is a no-op."""\n'),),
    ),
    Mutant(
        "first-error-stops-the-stopping",
        FILE,
        "One deadline that cannot be suspended leaves the others running while the registry is suspended.",
        TESTS,
        (
            (
                f"                deadline.suspend()\n{_TO_THE_END}",
                "                deadline.suspend()\n            except Exception as error:\n"
                '                raise _could_not_be("suspended", [error], deadlines) from None\n',
            ),
        ),
    ),
    Mutant(
        "first-error-stops-the-restart",
        FILE,
        "One deadline that cannot be resumed leaves the others stopped, and a later resume is a no-op.",
        TESTS,
        (
            (
                f"                    deadline.resume()\n{_TO_THE_END}",
                "                    deadline.resume()\n            except Exception as error:\n"
                '                raise _could_not_be("resumed", [error], deadlines) from None\n',
            ),
        ),
    ),
    Mutant(
        "stops-them-without-a-copy",
        FILE,
        "A deadline that is entered while all are told breaks the loop over them.",
        TESTS,
        (
            (
                f"    def _stop_all(self) -> None:\n{_COPY}",
                f"    def _stop_all(self) -> None:\n{_COPY.replace('tuple(self._live)', 'self._live')}",
            ),
        ),
    ),
    Mutant(
        "restarts-them-without-a-copy",
        FILE,
        "A deadline that is left while all are told breaks the loop over them.",
        TESTS,
        (
            (
                f"    def _restart_all(self) -> None:\n{_COPY}",
                f"    def _restart_all(self) -> None:\n{_COPY.replace('tuple(self._live)', 'self._live')}",
            ),
        ),
    ),
    Mutant(
        "spent-budget-fires-at-once",
        FILE,
        "A reply of the loop turn in which the pause ends loses against a deadline with nothing left.",
        TESTS,
        (("if loop is not None and _nothing_left(deadline):\n", "if False:\n"),),
    ),
    Mutant(
        "spent-budget-without-the-millisecond",
        FILE,
        "A reply that takes some more turns of the loop to reach the rollout loses.",
        TESTS,
        (("            deadline._remaining = SMALLEST_BUDGET_S\n", ""),),
    ),
    Mutant(
        "spent-budget-fires-while-held-again",
        FILE,
        "Held again before the turn ends, a rollout that is parked times out.",
        TESTS,
        (("if deadline in self._live and not self._holders and", "if deadline in self._live and"),),
    ),
    Mutant(
        "spent-budget-of-a-left-deadline",
        FILE,
        "A deadline that was left in the meantime is re-armed, which asyncio refuses.",
        TESTS,
        (("if deadline in self._live and not self._holders and", "if not self._holders and"),),
    ),
    Mutant(
        "every-budget-is-spent",
        FILE,
        "Each pause takes from every rollout all but a millisecond.",
        EDGES,
        (("deadline._remaining < SMALLEST_BUDGET_S)", "deadline._remaining < 1e9)"),),
    ),
    Mutant(
        "a-pause-gives-a-second",
        FILE,
        "A pause is a present to a rollout that was too slow.",
        EDGES,
        (("SMALLEST_BUDGET_S = 0.001\n", "SMALLEST_BUDGET_S = 1.0\n"),),
    ),
    Mutant(
        "overlaps-count-twice",
        FILE,
        "The seconds given back are those of the last holder, not of the pause.",
        TESTS,
        (
            (
                "        if not self._held:\n            self._paused_since = now\n",
                "        self._paused_since = now\n        if not self._held:\n",
            ),
        ),
    ),
    Mutant(
        "forgets-earlier-pauses",
        FILE,
        "The total of the seconds given back is that of the last pause.",
        TESTS,
        (("        self._paused_before += seconds\n", "        self._paused_before = seconds\n"),),
    ),
    Mutant(
        "running-hold-is-not-counted",
        FILE,
        "The stats show a hold only when it has ended, which a hold that is stuck never does.",
        TESTS,
        (("HolderStats(stats.holds + 1, ", "HolderStats(stats.holds, "),),
    ),
    Mutant(
        "trip-counts-a-hold-twice",
        FILE,
        "A registry that is held when it is shipped to the actor has held once more there.",
        TESTS,
        (("holds=stats.holds - (name in self._holders))", "holds=stats.holds)"),),
    ),
    Mutant(
        "ends-a-long-hold-by-force",
        FILE,
        "A timer that frees the clocks while the gate is closed brings the defect back.",
        TESTS,
        (
            (
                "        self._warn_in(_running_loop(), 2 * waited)\n",
                "        for holder in tuple(self._holders):\n            self.resume(holder)\n",
            ),
        ),
    ),
    Mutant(
        "warns-once",
        FILE,
        "A hold that lasts for hours is told of once, early.",
        TESTS,
        (("        self._warn_in(_running_loop(), 2 * waited)\n", ""),),
    ),
    Mutant(
        "warning-stays-behind",
        FILE,
        "Each hold leaves a timer, which later warns of a pause that is over.",
        TESTS,
        (("            self._warning.cancel()\n", ""),),
    ),
    Mutant(
        "adopts-a-copy",
        FILE,
        "Live deadlines and the rollout implementation keep the old object, which nobody holds.",
        TESTS,
        (
            (
                "        adopted: RequestDeadlineRegistry = registry\n",
                "        adopted = cls.__new__(cls)\n        adopted._live = registry._live\n",
            ),
        ),
    ),
    Mutant(
        "adoption-frees-the-suspended",
        FILE,
        "A training pause that was there before the first snapshot ends in its deadlines' eyes only.",
        TESTS,
        (("        if was_suspended:\n", "        if False:\n"),),
    ),
    Mutant(
        "adopts-what-it-cannot-replace",
        FILE,
        "A method that only upstream's later class has is gone, and its next caller crashes.",
        TESTS,
        (("        if lost:\n", "        if False:\n"),),
    ),
    Mutant(
        "refused-adoption-changes-it",
        FILE,
        "A registry that is refused has lost its flag all the same.",
        TESTS,
        (
            (
                '        was_suspended = state["suspended"]\n',
                '        was_suspended = state.pop("suspended")\n',
            ),
            ('        del state["suspended"]\n', ""),
        ),
    ),
    Mutant(
        "pickle-frees-the-clocks",
        FILE,
        "A registry that is held when it is shipped to the actor arrives with running clocks.",
        TESTS,
        (('        for holder in state["holders"]:\n            self._take(holder)\n', ""),),
    ),
)
