"""`check --config`: a config is read as NeMo RL reads it, and each finding is there when it should be."""

from __future__ import annotations

import json
from pathlib import Path
from textwrap import dedent

import pytest
from omegaconf import OmegaConf

from nemo_rl_deadline_fix.cli.run_config import check_config
from nemo_rl_deadline_fix.config import exposure, runconfig, runsettings
from nemo_rl_deadline_fix.errors import InvalidInputError

EXPOSED = """\
grpo:
  num_prompts_per_step: 32
env:
  should_use_nemo_gym: true
checkpointing:
  enabled: true
  save_period: 1
async_rl:
  max_inflight_prompts: ${not_there.at_all}
  rollout_failure:
    nemo_gym:
      rollout_timeout_s: 180
  stall_watchdog:
    stall_timeout_s: 7200
rollout_checkpointing:
  snapshot_attempt_interval_s: 3600
  gym:
    participant_checkpointing_enabled: true
    prepare_timeout_s: 300
"""
ABORT = "++async_rl.stall_watchdog.stall_action=abort"


@pytest.fixture
def write(tmp_path):
    """Write a file and get its path."""

    def put(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return path

    return put


@pytest.fixture
def run(write):
    """The exposed run's file."""
    return write("run.yaml", EXPOSED)


def assess(path: Path, *overrides: str) -> exposure.Exposure:
    """What is found in a file with these overrides."""
    return exposure.assess(runconfig.load(path, overrides))


def ids(result: exposure.Exposure) -> list[str]:
    """Id and severity of every finding."""
    return [f"{finding.id} {finding.severity}" for finding in result.findings]


def origin(result: exposure.Exposure, key: str) -> str:
    """Where a value came from."""
    return next(setting.origin for setting in result.values if setting.key == key)


# ---- reading


def test_parents_come_in_order_and_relative_to_their_own_folder(write):
    """The last one to set a key wins, lists are replaced, mappings merged, and origins name file and line."""
    write("conf/deep/above.yaml", "policy: {x: 0}\nenv: {should_use_nemo_gym: true}\n")
    write("conf/deep/a.yaml", "defaults: above.yaml\npolicy: {x: 1, y: 1, many: [1, 2]}\n")
    write("conf/b.yaml", "defaults: deep/a.yaml\npolicy: {x: 2}\n")
    write("conf/c.yaml", "policy: {y: 3, many: [9]}\n")
    path = write("conf/run.yaml", "defaults:\n  - b.yaml\n  - c.yaml\npolicy:\n  z: 4\n")
    config = runconfig.load(path)
    assert OmegaConf.to_container(config.tree) == {
        "policy": {"x": 2, "y": 3, "z": 4, "many": [9]},
        "env": {"should_use_nemo_gym": True},
    }
    folder = path.parent
    assert config.read("policy.x").origin == f"{folder / 'b.yaml'}:2"
    assert config.read("policy.y").origin == f"{folder / 'c.yaml'}:1"
    assert config.read("policy.z").origin == f"{path}:5"
    assert config.read("env.should_use_nemo_gym").origin == f"{folder / 'deep' / 'above.yaml'}:2"
    assert config.read("policy.none", "x") == runconfig.Setting("policy.none", "x", "default")


def test_two_children_may_share_a_parent(write):
    """A file that is reached twice on two ways is no cycle."""
    write("base.yaml", "policy: {x: 1}\n")
    write("a.yaml", "defaults: base.yaml\n")
    write("b.yaml", "defaults: [base.yaml]\n")
    assert runconfig.load(write("run.yaml", "defaults: [a.yaml, b.yaml]\n")).read("policy.x").value == 1


def test_a_block_of_the_top_level_may_replace_its_parents(write):
    """`_override_: true` drops what the parents said in that block, origins included."""
    write("base.yaml", EXPOSED)
    path = write("run.yaml", "defaults: base.yaml\nasync_rl: {_override_: true, max_inflight_prompts: 1}\n")
    result = assess(path)
    assert result.exposed is False
    assert origin(result, runsettings.DEADLINE) == "default"
    assert "_override_" not in runconfig.load(path).tree.async_rl
    asking = write(
        "asking.yaml", "defaults: base.yaml\nenv: {_override_: true, should_use_nemo_gym: '???'}\n"
    )
    with pytest.raises(InvalidInputError, match=r"asking\.yaml:2"):
        assess(asking)


def test_a_block_that_is_replaced_takes_its_origins_along(write):
    """An interpolation over a mapping sets the key: in a file, under `_override_`, on the command line."""
    write("base.yaml", EXPOSED + "mine: {nemo_gym: {rollout_timeout_s: 7}}\n")
    plain = write("plain.yaml", "defaults: base.yaml\nasync_rl: {rollout_failure: '${mine}'}\n")
    whole = write(
        "whole.yaml", "defaults: base.yaml\nasync_rl: {_override_: true, rollout_failure: '${mine}'}\n"
    )
    for config, where in (
        (runconfig.load(plain), f"{plain}:2"),
        (runconfig.load(whole), f"{whole}:2"),
        (runconfig.load(plain.parent / "base.yaml", ["async_rl.rollout_failure=${mine}"]), "command line"),
    ):
        assert config.read(runsettings.DEADLINE) == runconfig.Setting(runsettings.DEADLINE, 7, where)


def test_an_empty_parent_is_an_empty_mapping(write):
    """NeMo RL takes a parent without content, and so do we; only the run's own file has to say something."""
    write("base.yaml", "# nothing yet\n")
    assert assess(write("run.yaml", "defaults: base.yaml\npolicy: {}\n")).exposed is False


def test_a_missing_value_is_left_to_the_parent(write):
    """`???` over a value changes neither the value nor where it came from."""
    write("base.yaml", EXPOSED)
    path = write("run.yaml", 'defaults: base.yaml\nenv: {should_use_nemo_gym: "???"}\n')
    assert origin(assess(path), runsettings.GYM).endswith("base.yaml:4")


@pytest.mark.parametrize(
    ("override", "value", "where"),
    [
        ("async_rl.rollout_failure.nemo_gym.rollout_timeout_s=99", 99, "command line"),
        ("++async_rl.rollout_failure.nemo_gym.rollout_timeout_s=99", 99, "command line"),
        ("async_rl.rollout_failure={nemo_gym: {rollout_timeout_s: 99}}", 99, "command line"),
        ("+async_rl.rollout_failure.nemo_gym.other=1", 180, "file"),
        ("~async_rl.rollout_failure.nemo_gym", None, "default"),
    ],
)
def test_overrides_are_hydras(run, override, value, where):
    """Plain, `+`, `++`, `~` and mapping overrides do what they do in NeMo RL, and the origin follows."""
    setting = runconfig.load(run, [override]).read(runsettings.DEADLINE)
    assert setting.value == value
    assert setting.origin == (f"{run}:12" if where == "file" else where)


def test_interpolations_are_resolved_with_nemo_rls_resolvers_and_leave_none_behind(write, monkeypatch):
    """Keys, environment and arithmetic resolve; OmegaConf's registry is as it was."""
    monkeypatch.setenv("A_BUDGET", "180")
    path = write(
        "run.yaml",
        """\
        grpo: {n: 4}
        async_rl: {rollout_failure: {nemo_gym: {rollout_timeout_s: "${oc.decode:${oc.env:A_BUDGET}}"}}}
        rollout_checkpointing: {snapshot_attempt_interval_s: "${add:${mul:${grpo.n},8},${div:4,${max:1,2}}}"}
        """,
    )
    config = runconfig.load(path)
    assert config.read(runsettings.DEADLINE).value == 180
    assert config.read(runsettings.INTERVAL).value == 34
    assert not OmegaConf.has_resolver("mul")


def test_a_block_may_be_an_interpolation(write):
    """A key inside of a block that refers to another block is read through it."""
    path = write(
        "run.yaml", "mine: {rollout_timeout_s: 7}\nasync_rl: {rollout_failure: {nemo_gym: '${mine}'}}\n"
    )
    assert runconfig.load(path).read(runsettings.DEADLINE) == runconfig.Setting(
        runsettings.DEADLINE, 7, f"{path}:2"
    )


def test_yaml_anchors_and_merge_keys_count_as_set(write):
    """`<<: *block` sets the keys of the block, at the lines of the block."""
    path = write(
        "run.yaml",
        """\
        shared: &shared
          rollout_timeout_s: 7
        async_rl:
          rollout_failure:
            nemo_gym:
              <<: *shared
        """,
    )
    assert runconfig.load(path).read(runsettings.DEADLINE) == runconfig.Setting(
        runsettings.DEADLINE, 7, f"{path}:2"
    )


def test_bom_and_crlf_are_fine(write):
    """A file from another system is the same file."""
    path = write("run.yaml", b"\xef\xbb\xbf" + EXPOSED.replace("\n", "\r\n").encode())
    assert assess(path).exposed is True


# ---- findings


def test_exposed_says_how_far_and_where(run):
    """Deadline, Gym snapshots and an interval make EX001, with budget, holds and how often in its message."""
    result = assess(run)
    assert result.exposed is True
    assert ids(result) == ["EX001 error"]
    (finding,) = result.findings
    assert (finding.key, finding.value, finding.origin) == (runsettings.DEADLINE, 180, f"{run}:12")
    for fact in (
        "180 s",
        "every 3600 s",
        "with every trainer checkpoint",
        "300 s each",
        "unless NeMo RL has the fix",
    ):
        assert fact in finding.message
    assert "check PATH" in finding.advice


@pytest.mark.parametrize(
    ("prepare", "reach"),
    [
        (180, "prepare alone may outlast"),
        (179, "together they may outlast"),
        (60, "together they may outlast"),
        (50, "used more than 30 s"),
    ],
)
def test_how_far_depends_on_the_time_a_snapshot_may_take(run, prepare, reach):
    """One phase, three phases or less than the budget are told apart at their exact border."""
    (finding,) = assess(run, f"rollout_checkpointing.gym.prepare_timeout_s={prepare}").findings
    assert reach in finding.message


@pytest.mark.parametrize(
    ("overrides", "verdict"),
    [
        (["async_rl.rollout_failure.nemo_gym.rollout_timeout_s=null"], "no rollout deadline is set"),
        (
            ["rollout_checkpointing.gym.participant_checkpointing_enabled=false"],
            "Gym participant snapshots are off",
        ),
        (["~rollout_checkpointing"], "Gym participant snapshots are off"),
        (
            ["rollout_checkpointing.snapshot_attempt_interval_s=null", "checkpointing.enabled=false"],
            "nothing takes a snapshot",
        ),
        (["env.should_use_nemo_gym=false"], "env.should_use_nemo_gym is false"),
        (["~rollout_checkpointing", "++rollout_recovery.target_level=sibling"], "snapshots are off"),
    ],
)
def test_each_condition_is_needed(run, overrides, verdict):
    """Without any one of them the run is not exposed, and the verdict says which one it is."""
    result = assess(run, *overrides)
    assert result.exposed is False
    assert verdict in result.verdict
    assert "EX001" not in str(ids(result))


def test_snapshots_with_trainer_checkpoints_alone_expose_as_well(run):
    """Gym's state goes into every trainer checkpoint too, so an interval is not needed."""
    result = assess(
        run, "rollout_checkpointing.snapshot_attempt_interval_s=null", "checkpointing.save_period=10"
    )
    assert result.exposed is True
    assert "one is taken with a trainer checkpoint every 10 steps" in result.findings[0].message


def test_what_a_fragment_does_not_say_is_no_excuse(run):
    """Only an explicit false for saving or for Gym makes a run unexposed; silence does not."""
    interval = "rollout_checkpointing.snapshot_attempt_interval_s=null"
    assert assess(run, "~checkpointing", "~env", interval).exposed is True


@pytest.mark.parametrize("level", runsettings.GYM_LEVELS)
def test_the_newer_schema_exposes_as_well(run, level):
    """`rollout_recovery.target_level` replaces the switches under `rollout_checkpointing.gym`."""
    result = assess(run, "~rollout_checkpointing.gym", f"++rollout_recovery.target_level={level}")
    assert result.exposed is True
    assert "assumed" in result.findings[0].message
    assert "rollout_recovery.target_level off" in result.findings[0].advice


@pytest.mark.parametrize(
    ("stall", "found"),
    [(180, "error"), (480, "error"), (481, "warning"), (1080, "warning"), (1081, None)],
)
def test_stall_timeout_has_to_outlast_a_snapshot(run, stall, found):
    """EX002 at the exact borders: the deadline, and it plus a failed prepare or a whole snapshot."""
    result = assess(run, ABORT, f"async_rl.stall_watchdog.stall_timeout_s={stall}")
    assert [it for it in ids(result) if "EX002" in it] == ([f"EX002 {found}"] if found else [])


def test_stall_timeout_has_to_be_above_the_deadline_in_any_case(run):
    """EX002 without abort too, and without snapshots, since NeMo RL refuses it."""
    shorter = "async_rl.stall_watchdog.stall_timeout_s=180"
    assert "EX002 error" in ids(assess(run, shorter))
    assert ids(assess(run, shorter, "~rollout_checkpointing")) == ["EX002 error"]


@pytest.mark.parametrize(
    "overrides",
    [
        ["async_rl.stall_watchdog.stall_timeout_s=300"],
        [ABORT, "async_rl.stall_watchdog.stall_timeout_s=300", "~rollout_checkpointing.gym"],
        [
            ABORT,
            "async_rl.stall_watchdog.stall_timeout_s=901",
            "async_rl.rollout_failure.nemo_gym.rollout_timeout_s=null",
        ],
    ],
)
def test_stall_timeout_is_fine_without_abort_or_parking(run, overrides):
    """No EX002 where nothing would be ended, nothing parks, or there is no deadline to add."""
    assert "EX002" not in str(ids(assess(run, *overrides)))


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        (["++async_rl.generation_router={enabled: true, backend_timeout_s: 181}"], True),
        (["++async_rl.generation_router={enabled: true, backend_timeout_s: 180}"], False),
        (["++async_rl.generation_router={enabled: false, backend_timeout_s: 181}"], False),
        (["++async_rl.generation_router={enabled: true}"], True),
    ],
)
def test_a_backend_may_not_outlast_the_deadline(run, overrides, found):
    """EX003 with the router on, also for the router's default."""
    assert ("EX003 error" in ids(assess(run, *overrides))) is found


@pytest.mark.parametrize(("interval", "found"), [(299, "warning"), (300, "info"), (899, "info"), (900, None)])
def test_an_interval_shorter_than_a_snapshot(run, interval, found):
    """EX004 at the exact borders of one phase and of all three; the info alone does not fail the check."""
    off = "async_rl.rollout_failure.nemo_gym.rollout_timeout_s=null"
    result = assess(run, f"rollout_checkpointing.snapshot_attempt_interval_s={interval}", off)
    assert ids(result) == ([f"EX004 {found}"] if found else [])
    assert result.counts is (found == "warning")


@pytest.mark.parametrize(
    ("key", "severity"),
    [
        ("async_rl.rollout_failure.rollout_timeout_s", "warning"),
        ("async_rl.rollout_failure.native.rollout_timeout_s", "warning"),
        ("rollout_checkpointing.gym.rollout_timeout_s", "warning"),
        ("async_rl.rollout_timeout_s", "error"),
    ],
)
def test_a_deadline_in_the_wrong_block_is_found(run, key, severity):
    """EX005 names the key, its value, where it came from and where it belongs."""
    result = assess(run, f"++{key}=90", "async_rl.rollout_failure.nemo_gym.rollout_timeout_s=null")
    assert ids(result) == [f"EX005 {severity}"]
    (finding,) = result.findings
    assert (finding.key, finding.value, finding.origin) == (key, 90, "command line")
    assert runsettings.DEADLINE in finding.advice


def test_a_dotted_name_in_the_yaml_is_no_path(write):
    """`a.b.c: 1` is one odd key for OmegaConf, so it sets no deadline."""
    result = assess(write("run.yaml", f"policy: {{}}\n{runsettings.DEADLINE}: 180\n"))
    assert result.exposed is False
    assert ids(result) == ["EX005 warning"]


def test_gyms_own_config_is_not_judged(run):
    """A key of that name under env.nemo_gym is Gym's, and null sets nothing."""
    result = assess(
        run,
        "++env.nemo_gym.a.rollout_timeout_s=1",
        "++async_rl.rollout_failure.native.rollout_timeout_s=null",
    )
    assert ids(result) == ["EX001 error"]


@pytest.mark.parametrize("value", ["0", "-1", "abc", "true", "[1]", "inf", "nan"])
def test_an_impossible_deadline_hides_the_answer(run, value):
    """EX006, and neither yes nor no."""
    result = assess(run, f"async_rl.rollout_failure.nemo_gym.rollout_timeout_s={value}")
    assert result.exposed is None
    assert ids(result) == ["EX006 error"]
    assert "above 0" in result.findings[0].advice


@pytest.mark.parametrize(
    "override",
    [
        "++async_rl.stall_watchdog.stall_action=stop",
        "++async_rl.stall_watchdog.stall_timeout_s=null",
        "++async_rl.generation_router.enabled=maybe",
        "++rollout_checkpointing.max_consecutive_failures=0",
        "++rollout_checkpointing.gym.prepare_timeout_s=0",
        "checkpointing=null",
    ],
)
def test_a_wrong_value_elsewhere_is_found_and_the_answer_stays(run, override):
    """EX006 for a value that does not decide whether the run is exposed."""
    result = assess(run, override)
    assert result.exposed is True
    assert ids(result) == ["EX001 error", "EX006 error"]


@pytest.mark.parametrize("block", ["async_rl", "async_rl.rollout_failure", "rollout_checkpointing.gym"])
def test_a_block_that_is_no_mapping(run, block):
    """An empty or scalar block is named itself, not each key that would be in it."""
    result = assess(run, f"{block}=null")
    assert result.exposed is None
    assert [(finding.id, finding.key) for finding in result.findings] == [("EX006", block)]


@pytest.mark.parametrize("value", ["'180'", "180.0", "1.8e2"])
def test_numbers_may_be_words(run, value):
    """What NeMo RL's models convert is no finding."""
    assert ids(assess(run, f"async_rl.rollout_failure.nemo_gym.rollout_timeout_s={value}")) == ["EX001 error"]


def test_settings_without_effect(run):
    """EX007: a deadline on the native path, and Gym snapshots that nothing takes."""
    assert ids(assess(run, "env.should_use_nemo_gym=false")) == ["EX007 warning"]
    idle = ["rollout_checkpointing.snapshot_attempt_interval_s=null", "checkpointing.enabled=false"]
    assert ids(assess(run, *idle)) == ["EX007 info"]


# ---- what cannot be decided


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "found: nothing"),
        ("# a comment\n", "found: nothing"),
        ("- policy\n", "a sequence at the top"),
        ("policy\n", "a scalar at the top"),
        ("policy:\n\tx: 1\n", "line 2"),
        ("policy: {x: 1\n", "line 2"),
        ("policy: {}\npolicy: {}\n", "line 2, column 1: found duplicate key policy"),
        ("policy: {}\n---\nenv: {}\n", "line 2"),
        ("policy: !!python/name:os.system\n", "line 1"),
        (b"policy: '\xff'\n", "not UTF-8 at byte 9"),
        (b"policy: 1\nx: '\x01'\n", "line 2: special characters"),
        ("policy: &a {x: *a}\n", "nested without end"),
        ("policy: '${'\n", "'${'"),
        ("services: {}\n", "top-level keys services"),
        ("policy: {}\ndefaults: none.yaml\n", "none.yaml, which"),
        ("policy: {}\ndefaults: .\n", "Is a directory"),
        ("policy: {}\ndefaults: [{a: b.yaml}]\n", "supported: a path or a list"),
        ("policy: {}\ndefaults:\n", "supported: a path or a list"),
        ('policy: {}\ndefaults: "a\\0b.yaml"\n', "null byte"),
        ("policy: {}\ndefaults: ${oc.env:NO_SUCH_VARIABLE}\n", "NO_SUCH_VARIABLE"),
        ("policy: {}\ndefaults: run.yaml\n", "run.yaml -> "),
        ("async_rl: ${nowhere}\n", "nowhere"),
        ("env: {should_use_nemo_gym: '${oc.env:NO_SUCH_VARIABLE}'}\n", "NO_SUCH_VARIABLE"),
        ("env: {should_use_nemo_gym: '${user:}'}\n", "Unsupported interpolation type user"),
        ("env: {should_use_nemo_gym: '???'}\n", "Missing mandatory value"),
        ("env: {should_use_nemo_gym: '${div:1,0}'}\n", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(write, text, said):
    """Every way a file can be wrong is one typed error on one line that names the file and the place."""
    path = write("run.yaml", text)
    with pytest.raises(InvalidInputError) as raised:
        assess(path)
    assert said in str(raised.value)
    assert "run.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cycle_is_told_with_its_way(write):
    """Two files that inherit from each other are named in order."""
    write("b.yaml", "defaults: [a.yaml]\n")
    with pytest.raises(InvalidInputError, match=r"a\.yaml -> \S*b\.yaml -> \S*a\.yaml"):
        assess(write("a.yaml", "defaults: b.yaml\npolicy: {}\n"))


@pytest.mark.parametrize(
    ("name", "said"), [("missing.yaml", "cannot find"), (".", "Is a directory"), ("loop.yaml", "cannot read")]
)
def test_a_path_that_cannot_be_read(tmp_path, name, said):
    """Missing, a directory, a link to itself."""
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(InvalidInputError, match=said):
        assess(tmp_path / name)


@pytest.mark.parametrize(
    "override",
    [
        "nowhere=1",
        "grpo",
        "",
        "~nowhere",
        "+grpo.num_prompts_per_step=1",
        "grpo@x=1",
        "grpo.num_prompts_per_step=1,2",
    ],
)
def test_an_override_that_cannot_be_used(run, override):
    """The error names the override, on one line."""
    with pytest.raises(InvalidInputError) as raised:
        assess(run, override)
    assert repr(override) in str(raised.value)


# ---- output


def test_json_is_one_object(run, capsys):
    """Nothing else is on stdout, numbers JSON does not know included; a finding makes exit code 1."""
    assert check_config(run, ["async_rl.stall_watchdog.stall_timeout_s=inf"], True) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out, parse_constant=pytest.fail)
    assert list(result) == ["schema_version", "config", "exposed", "values", "findings"]
    assert (result["schema_version"], result["config"], result["exposed"]) == (1, str(run), True)
    assert {"key": runsettings.DEADLINE, "value": 180, "origin": f"{run}:12"} in result["values"]
    first = result["findings"][0]
    assert list(first) == ["id", "severity", "key", "value", "origin", "message", "advice"]
    assert [finding["id"] for finding in result["findings"]] == ["EX001", "EX006"]
    assert captured.err == ""


def test_text_has_verdict_table_and_advice(run, capsys):
    """The verdict comes first, each value has its origin, each finding its advice on a line of its own."""
    assert check_config(run, [], False) == 1
    out = capsys.readouterr().out
    assert out.startswith("Exposed to the stall unless NeMo RL has the fix")
    assert f"{run}:12" in out.replace("\n", "")
    assert "EX001 error" in out
    assert "\n  do this: " in out


def test_text_shows_what_is_in_a_file_as_it_is(write, capsys):
    """Brackets are no markup, and an escape sequence does not reach the terminal."""
    path = write("run.yaml", 'policy: {"[red]\\e[31m": {rollout_timeout_s: "[bold]\\e[1m"}}\n')
    assert check_config(path, [], False) == 1
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[bold]" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("as_json", [True, False])
def test_a_run_without_the_feature_is_fine(write, capsys, as_json):
    """A config from before Gym snapshots is not exposed and exits 0."""
    path = write("run.yaml", "grpo: {num_prompts_per_step: 1}\npolicy: {model_name: m}\n")
    assert check_config(path, [], as_json) == 0
    assert (
        '"exposed": false' if as_json else "Not exposed: no rollout deadline is set"
    ) in capsys.readouterr().out
