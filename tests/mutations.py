"""Wrong versions of the fix, as data: what is broken, and which tests must go red for it.

`tests.mutants` runs them. Each is a mistake that somebody could make, or a fix that somebody could propose
instead.
"""

from __future__ import annotations

from tests.support.mutant import Mutant

PACKAGE = "nemo_rl_deadline_fix"
GATE = f"{PACKAGE}/gate.py"
REGISTRY = f"{PACKAGE}/registry.py"
WRAPPING = f"{PACKAGE}/wrapping.py"
STRANDED = f"{PACKAGE}/stranded.py"
JUDGING = f"{PACKAGE}/source/judging.py"
CONTROLLER = f"{PACKAGE}/source/controller.py"
CHECKOUT = f"{PACKAGE}/source/checkout.py"
DIFF = "patches/0001-fix-sc-pause-request-deadlines-during-gym-snapshots.diff"

PATCHES = ("tests/test_patches.py::test_0002_is_red_before_0001_and_green_after",)
ENDINGS = ("tests/test_gate.py::test_hold_follows_the_gate_however_a_snapshot_ends",)
LAST_TURN = ("tests/test_registry.py", "-k", "reply")
CHOICE = ("tests/test_source_judging.py::test_a_fix_that_is_not_ours_is_unknown_and_not_changed",)
VERDICTS = ("tests/test_stranded.py::test_verdict",)

CLOCKS = (
    Mutant(
        "set-releases-nothing",
        "The clocks stand still for ever after the first snapshot.",
        ENDINGS,
        GATE,
        "_Follower._agree",
        r"self\._release\(\)",
    ),
    Mutant(
        "clear-holds-too-late",
        "The clocks run while the gate is being closed.",
        ("tests/test_gate.py::test_the_hold_is_there_before_the_gate_closes_and_until_it_is_open",),
        GATE,
        "_Follower._attach",
        r"closing=True",
        "closing=False",
    ),
    Mutant(
        "never-looks-again",
        "A gate or a registry that is replaced after the first snapshot is not followed.",
        ("tests/test_gate.py", "-k", "replaced"),
        GATE,
        "follow_gate",
        r"vars\(controller\)\.setdefault\(_FOLLOWER, _Follower\(controller\)\)",
        "_FOLLOWER in vars(controller) or vars(controller).setdefault(_FOLLOWER, _Follower(controller))",
    ),
    Mutant(
        "a-closed-gate-is-not-seen",
        "A gate that was closed before the fix came holds nothing.",
        ("tests/test_gate.py::test_a_gate_that_closed_before_the_fix_came_holds_at_once",),
        GATE,
        "_Follower.look_again",
        r"self\._agree\(gate\)",
    ),
    Mutant(
        "the-old-gate-still-counts",
        "A gate that was replaced goes on holding and releasing.",
        ("tests/test_gate.py::test_a_gate_that_is_replaced_between_snapshots_is_followed",),
        GATE,
        "_Follower._agree",
        r"gate is not self\._gate or ",
    ),
    Mutant(
        "any-release-frees-all",
        "A weight sync that ends in mid-snapshot frees the snapshot's hold.",
        ("tests/test_registry.py", "tests/test_interleavings.py"),
        REGISTRY,
        "RequestDeadlineRegistry.resume",
        r"last = not self\._holders",
        "last = True",
    ),
    Mutant(
        "holding-counts",
        "A second hold under one name needs a second release.",
        ("tests/test_registry.py", "tests/test_interleavings.py"),
        REGISTRY,
        "RequestDeadlineRegistry.suspend",
        r"if holder in self\._holders:",
        "if holder in self._holders and not self._holders.update({holder + '+': 0.0}):",
    ),
    Mutant(
        "upstreams-flag-is-forgotten",
        "A deadline born while held runs on in a registry that was taken over.",
        ("tests/test_registry.py",),
        REGISTRY,
        "RequestDeadlineRegistry._set_suspended",
        r"self\._upstream\.suspended = suspended",
    ),
    Mutant(
        "no-turns-for-the-last-moment",
        "A reply that is ready when the pause ends is lost.",
        LAST_TURN,
        REGISTRY,
        "",
        r"RESTART_TURNS = 5",
        "RESTART_TURNS = 0",
    ),
    Mutant(
        "only-nothing-left-waits",
        "On uvloop a busy turn outlasts the few milliseconds that are left.",
        LAST_TURN,
        REGISTRY,
        "",
        r"LAST_MOMENT_S = 0\.1",
        "LAST_MOMENT_S = 0.001",
    ),
    Mutant(
        "a-new-hold-leaves-the-restart",
        "A spent deadline fires although somebody holds again.",
        ("tests/test_registry.py::test_exhausted_deadline_stays_stopped_when_held_again",),
        REGISTRY,
        "RequestDeadlineRegistry.suspend",
        r"self\._restart\.cancel\(\)",
    ),
    Mutant(
        "a-log-handler-can-stop-a-snapshot",
        "What a user's handler raises comes out of the gate.",
        ("tests/test_gate.py", "-k", "log_handler"),
        f"{PACKAGE}/observing.py",
        "log",
        r"with suppress\(Exception\):",
        "if True:",
    ),
    Mutant(
        "status-does-not-know-the-actor",
        "In the actor the fix looks as if it were off.",
        ("tests/test_installing.py",),
        WRAPPING,
        "_arrive",
        r"= \(True, acknowledge\)",
        "= (False, acknowledge)",
    ),
)

SOURCE = (
    Mutant(
        "an-unclear-use-is-a-read",
        "A gate that is handed on is changed unseen.",
        ("tests/test_source_judging.py::test_code_that_is_not_known_is_unknown_and_not_changed",),
        CONTROLLER,
        "_use",
        r"in \('is_set', 'wait'\)",
        "not in ('set', 'clear')",
    ),
    Mutant(
        "the-writer-does-not-look-again",
        "A mistake of ours is written to the user's tree.",
        ("tests/test_source_bytes.py::test_a_result_that_would_not_be_fixed_is_refused",),
        CHECKOUT,
        "_plan",
        r"state is not new:",
        "state is not new and False:",
    ),
    Mutant(
        "0-1-0-is-not-known",
        "A tree that 0.1.0 fixed is unknown and cannot be reverted.",
        ("tests/test_source_bytes.py",),
        f"{PACKAGE}/source/manager.py",
        "",
        r"'engine'",
        "'other'",
    ),
    Mutant(
        "a-sparse-checkout-goes-unseen",
        "Nothing to fix, says check of a tree whose controller git left out.",
        ("tests/test_source_versions.py::test_what_git_leaves_out_of_a_sparse_checkout_is_missed",),
        JUDGING,
        "_without_snapshots",
        r"startswith\('S '\)",
        "startswith('X ')",
    ),
    Mutant(
        "diff-without-the-hold",
        "The clocks run while rollouts are parked.",
        PATCHES,
        DIFF,
        line=r"suspend_request_deadlines\(\"gym_checkpoint\"\)",
    ),
    Mutant(
        "diff-without-the-release",
        "The clocks stand still for ever after the first snapshot.",
        PATCHES,
        DIFF,
        line=r"\n         self\._gym_checkpoint_rollout_permitted\.set\(\)\n",
    ),
    Mutant(
        "diff-without-the-names",
        "A weight sync that ends in mid-snapshot frees the snapshot's hold.",
        PATCHES,
        DIFF,
        line=r"\+        if self\._holders:",
    ),
)

OTHERS = (
    Mutant(
        "a-fragment-is-merged-with-nothing",
        "The block that it replaces in its neighbour stays.",
        ("tests/test_config.py::test_every_form_is_merged_as_by_nemo_rls_own_loader",),
        f"{PACKAGE}/config/loading.py",
        "_with_parents",
        r"\(parents := _parents\(own, path\)\) is None",
        "(parents := _parents(own, path) or []) is None",
    ),
    Mutant(
        "undecided-is-a-finding",
        "A config that could not be judged looks like one that was.",
        ("tests/test_config.py::test_a_wrong_value_hides_the_answer_only_where_it_decides",),
        f"{PACKAGE}/config/findings.py",
        "Exposure.exit_code",
        r"return 2",
        "return 1",
    ),
)

LAUNCHER = (
    Mutant(
        "the-hook-stays-behind",
        "An import hook that comes later imports the controller past the fix.",
        ("tests/test_launching.py::test_ours_goes_to_the_front_again",),
        f"{PACKAGE}/importing.py",
        "ControllerHook.find_spec",
        r"if at:",
        "if False:",
    ),
    Mutant(
        "a-refusal-can-be-swallowed",
        "A script's `except Exception` lets an unprotected run go on.",
        ("tests/test_launching.py::test_fails_closed",),
        f"{PACKAGE}/startup/sitecustomize.py",
        "_fix",
        r"raise SystemExit\(2\)",
        "raise RuntimeError(line)",
    ),
    Mutant(
        "output-that-nobody-took-is-a-finding",
        "`verify | head` says that it still stalls.",
        ("tests/test_cli.py::test_a_closed_pipe_is_no_finding",),
        f"{PACKAGE}/cli/__init__.py",
        "",
        r"\(130, 141\)",
        "(130, 1)",
    ),
)

REPLAY = (
    Mutant(
        "a-try-lost-while-parked-is-fine",
        "verify calls a fix good that lets RL give up on parked rollouts.",
        ("tests/test_verify.py::test_a_fix_that_does_nothing_is_a_finding",),
        f"{PACKAGE}/replay/records.py",
        "Replay.trouble",
        r"== 'parked'",
        "== ''",
    ),
    Mutant(
        "a-hold-left-is-fine",
        "verify calls a fix good that never releases the clocks.",
        ("tests/test_verify.py::test_a_fix_that_never_releases_is_a_finding",),
        f"{PACKAGE}/replay/records.py",
        "Replay.trouble",
        r"held = .*",
        "held = ''",
    ),
    Mutant(
        "a-pending-abort-is-forgotten",
        "Versions that keep a failed abort are simulated wrongly.",
        ("tests/test_verify.py::test_a_failed_abort_is_retried_under_the_same_id",),
        f"{PACKAGE}/replay/simulation.py",
        "finish_pending",
        r"_pending_gym_checkpoint_abort', None\)\) is not None",
        "_pending_gym_checkpoint_abort', None)) is False",
    ),
    Mutant(
        "the-own-init-is-not-run",
        "A later version of NeMo RL cannot be simulated.",
        ("tests/test_verify.py::test_a_later_version_is_simulated_with_the_attributes_of_its_own_init",),
        f"{PACKAGE}/replay/loading.py",
        "_World.initialise",
        r"^for step in self\._steps:",
        "for step in ():",
    ),
)

ACKNOWLEDGING = (
    Mutant(
        "dispatched-counts-as-given-up",
        "A reply that RL is about to read is ACKed under it.",
        VERDICTS,
        STRANDED,
        "verdict",
        r"unusable = current\.status in targets\.UNUSABLE_ATTEMPTS",
        "unusable = True",
    ),
    Mutant(
        "the-outbox-is-not-looked-at",
        "RL's own ACK finds its reply gone.",
        ("tests/test_stranded.py",),
        STRANDED,
        "verdict",
        r"if key in outbox:",
        "if False:",
    ),
    Mutant(
        "memory-before-ledger",
        "A group that came back from a restore is taken for the one that left.",
        VERDICTS,
        STRANDED,
        "verdict",
        r"group = ledger\._groups\.get\(group_id\)",
        "group = None if key in remembered else ledger._groups.get(group_id)",
    ),
    Mutant(
        "no-grace",
        "A reply is ACKed before RL's ledger can know of it.",
        ("tests/test_stranded.py::test_unknown_reply_is_acknowledged_after_the_grace",),
        STRANDED,
        "Snapshot.is_due",
        r"seen_s >= self\.grace_s",
        "seen_s >= 0",
    ),
    Mutant(
        "unknown-is-given-up",
        "What the ledger does not know is ACKed at once.",
        VERDICTS,
        STRANDED,
        "verdict",
        r"else Verdict\.UNKNOWN",
        "else Verdict.GIVEN_UP",
    ),
    Mutant(
        "any-receipt-will-do",
        "The receipt of another attempt is sent.",
        ("tests/test_stranded.py::test_receipt_of_another_attempt_is_not_sent",),
        STRANDED,
        "Agent._receipt",
        r"!= key",
        "== ()",
    ),
)

MUTANTS: tuple[Mutant, ...] = (*CLOCKS, *SOURCE, *OTHERS, *LAUNCHER, *REPLAY, *ACKNOWLEDGING)
