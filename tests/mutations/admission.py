"""Mutants of the wrappers' bodies: when the clocks stop, when they run again, what comes out."""

from __future__ import annotations

from tests.mutations.mutant import Mutant

FILE = "nemo_rl_deadline_fix/gate.py"
TESTS = ("tests/test_admission.py",)
STORY = ("tests/test_regression.py",)
TELEMETRY = ("tests/test_observing.py",)

_STOPS = "        _attempt(registry.suspend)\n    return await release_prepared("
_BODY = "        return await original(controller, *args, **kwargs)\n    finally:\n"

MUTANTS = (
    Mutant(
        "hold-after-the-first-await",
        FILE,
        "A deadline that is due in the turn of the close fires although its rollout is parked.",
        TESTS,
        (
            (
                _STOPS,
                "        import asyncio\n\n"
                "        asyncio.get_running_loop().call_soon(_attempt, registry.suspend)\n"
                "    return await release_prepared(",
            ),
        ),
    ),
    Mutant(
        "hold-from-the-end-of-the-call",
        FILE,
        "The clocks run through prepare and commit, which is where a snapshot is slow.",
        STORY,
        ((_STOPS, "        pass\n    return await release_prepared("),),
    ),
    Mutant(
        "only-the-first-snapshot-holds",
        FILE,
        "Only a controller's first snapshot stops the clocks.",
        TESTS,
        (
            (
                _STOPS,
                '        if not getattr(controller, "_held_before", False):\n'
                "            controller._held_before = True\n"
                "            _attempt(registry.suspend)\n"
                "    return await release_prepared(",
            ),
        ),
    ),
    Mutant(
        "release-in-finally",
        FILE,
        "Prepare and commit return with the gate closed, and the snapshot is still to be published.",
        STORY,
        (("            _follow(registry, controller)\n", "            _attempt(registry.resume)\n"),),
    ),
    Mutant(
        "release-on-success-only",
        FILE,
        "A prepare that fails reopens the gate, and the clocks stand still until the next snapshot.",
        TESTS,
        (
            (
                f"    try:\n{_BODY}",
                "    result = await original(controller, *args, **kwargs)\n    try:\n        return result\n"
                "    finally:\n",
            ),
        ),
    ),
    Mutant(
        "cancellation-is-no-end",
        FILE,
        "A snapshot that is cancelled reopens the gate and leaves the clocks stopped.",
        TESTS,
        (
            (
                f"    try:\n{_BODY}",
                "    result: Any = None\n    failed: Exception | None = None\n    try:\n"
                "        result = await original(controller, *args, **kwargs)\n"
                "    except Exception as error:\n        failed = error\n"
                "    try:\n        if failed is not None:\n            raise failed\n        return result\n"
                "    finally:\n",
            ),
        ),
    ),
    Mutant(
        "release-on-any-error",
        FILE,
        "After a failed abort or release the gate stays closed, and parked rollouts time out.",
        TESTS,
        (
            (
                "            _follow(registry, controller)\n",
                "            import sys\n\n"
                "            failed = sys.exc_info()[0] is not None\n"
                "            _attempt(registry.resume) if failed else _follow(registry, controller)\n",
            ),
        ),
    ),
    Mutant(
        "never-releases",
        FILE,
        "The first snapshot stops the clocks for good, and a hung rollout never times out.",
        TESTS,
        (("    _attempt(registry.resume)\n", "    pass\n"),),
    ),
    Mutant(
        "release-before-gym-has-confirmed",
        FILE,
        "The clocks run while Gym is still asked to resume, and for good if it cannot.",
        TESTS,
        (
            (
                f"    try:\n{_BODY}",
                '    if "committed" in kwargs:\n'
                "        registry = _registry(controller)\n"
                "        if registry is not None:\n"
                "            _attempt(registry.resume)\n"
                f"    try:\n{_BODY}",
            ),
        ),
    ),
    Mutant(
        "follows-one-turn-later",
        FILE,
        "Between the gate and the clocks other tasks run, and see one without the other.",
        TESTS,
        (
            (
                "            _follow(registry, controller)\n",
                "            import asyncio\n\n"
                "            asyncio.get_running_loop().call_soon(_follow, registry, controller)\n",
            ),
        ),
    ),
    Mutant(
        "holds-under-the-engines-name",
        FILE,
        "A weight sync that ends in mid-snapshot frees the clocks.",
        STORY,
        (("        step(HOLDER)\n", '        step("engine")\n'),),
    ),
    Mutant(
        "waits-for-the-other-gate",
        FILE,
        "A weight sync that has the other gate closed keeps the snapshot's hold, or frees it.",
        TESTS,
        (
            (
                "    if not getattr(controller, GATE).is_set():\n",
                "    if not controller._rollout_permitted.is_set():\n",
            ),
        ),
    ),
    Mutant(
        "deadlines-error-fails-the-snapshot",
        FILE,
        "A deadline that does not follow takes the snapshot's own outcome away.",
        TESTS,
        (
            (
                "    except Exception:\n        logger.exception",
                "    except ZeroDivisionError:\n        logger.exception",
            ),
        ),
    ),
    Mutant(
        "missing-gate-crashes",
        FILE,
        "A controller of another shape crashes in mid-run instead of running as without the fix.",
        TESTS,
        (
            (
                '        if not callable(getattr(getattr(controller, GATE, None), "is_set", None)):\n',
                "        if False:\n",
            ),
        ),
    ),
    Mutant(
        "refused-registry-crashes",
        FILE,
        "A registry that cannot be adopted makes each snapshot fail.",
        TESTS,
        (
            (
                "    except Exception as error:\n        if not getattr",
                "    except ZeroDivisionError as error:\n        if not getattr",
            ),
        ),
    ),
    Mutant(
        "tells-it-each-time",
        FILE,
        "One ERROR per snapshot for the whole run.",
        TESTS,
        (("        if not getattr(controller, _TOLD, False):\n", "        if True:\n"),),
    ),
    Mutant(
        "drops-keywords",
        FILE,
        "`committed=` does not arrive, so no snapshot is released.",
        TESTS,
        ((_BODY, "        return await original(controller, *args)\n    finally:\n"),),
    ),
    Mutant(
        "drops-the-result",
        FILE,
        "The controller gets no manifest to publish.",
        TESTS,
        ((_BODY, "        await original(controller, *args, **kwargs)\n    finally:\n"),),
    ),
    Mutant(
        "telemetry-costs-an-error",
        FILE,
        "A logger that raises leaves the release with its error.",
        TELEMETRY,
        (
            (
                "        except Exception:\n            logger.debug",
                "        except ZeroDivisionError:\n            logger.debug",
            ),
        ),
    ),
    Mutant(
        "telemetry-without-a-hold",
        FILE,
        "Calls that end no hold log seconds of none.",
        TELEMETRY,
        (
            (
                "    seconds = registry.held_seconds.get(HOLDER)\n",
                "    seconds = registry.held_seconds.get(HOLDER, 0.0)\n",
            ),
        ),
    ),
)
