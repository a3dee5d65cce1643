"""`check --config`: a config is read as NeMo RL reads it, and each finding is there when it should be."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from omegaconf import OmegaConf
from pytest_mock import MockerFixture

from nemo_rl_deadline_fix.cli import app
from nemo_rl_deadline_fix.cli.run_config import check_config
from nemo_rl_deadline_fix.config import findings, loading
from nemo_rl_deadline_fix.config.loading import Setting
from nemo_rl_deadline_fix.config.settings import GYM_LEVELS, Key, read_settings
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
ABORT = f"++{Key.STALL_ACTION}=abort"
NO_DEADLINE = f"{Key.DEADLINE}=null"
NO_INTERVAL = f"{Key.INTERVAL}=null"
NEWER = ("~rollout_checkpointing.gym", "++token_capture.enabled=true", "++checkpointing.save_data_plane=true")
"""What turns the exposed run into one of the newer schema, but for its `target_level`."""
FORMS = Path(__file__).parent / "support" / "config_forms.jsonl"
FORMS_BASE = "g: {a: 1, b: {c: 2, d: [1, 2]}, e: null, s: x}\nh: {k: 5}\n"

Write = Callable[[str, str | bytes], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a file and get its path."""

    def put(name: str, text: str | bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else dedent(text).encode())
        return path

    return put


@pytest.fixture
def run(write: Write) -> Path:
    """The exposed run's file."""
    return write("run.yaml", EXPOSED)


def assess(path: Path, *overrides: str) -> findings.Exposure:
    """What is found in a file with these overrides."""
    return findings.assess(loading.load(path, overrides))


def ids(result: findings.Exposure) -> list[str]:
    """Id and severity of every finding."""
    return [f"{finding.id} {finding.severity}" for finding in result.findings]


def read(path: Path, key: Key) -> Setting:
    """A setting of a file."""
    return loading.load(path).read(key)


# ---- reading


def test_every_form_is_merged_as_by_nemo_rls_own_loader(tmp_path: Path) -> None:
    """Files, `_override_`, interpolations, YAML and overrides give what NeMo RL's loader gives, or an error.

    The table's values were made by NeMo RL's own loader; null stands for any error of it.
    """
    different = []
    forms = [json.loads(line) for line in FORMS.read_text(encoding="utf-8").splitlines()]
    for number, form in enumerate(forms):
        folder = tmp_path / str(number)
        for name, text in ({"base.yaml": FORMS_BASE} | form["files"]).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(text.encode())
        try:
            tree = loading.load(folder / "run.yaml", form.get("overrides", ())).tree
            gives = repr(OmegaConf.to_container(tree))
        except InvalidInputError:
            gives = None
        if gives != form["gives"]:
            different.append((form, gives))
    assert len(forms) > 200
    assert different == []


@pytest.mark.parametrize("marker", ["true", "'false'", "'${flag}'", "1"])
def test_a_fragment_may_replace_a_block_of_its_neighbour(write: Write, marker: str) -> None:
    """`_override_` works without `defaults` of its own, and what it drops counts as never set."""
    write("base.yaml", EXPOSED)
    write(
        "fragment.yaml",
        f"flag: true\nasync_rl: {{_override_: {marker}, stall_watchdog: {{stall_action: abort}}}}",
    )
    path = write("child.yaml", "defaults: [base.yaml, fragment.yaml]\n")
    result = assess(path, "rollout_checkpointing.snapshot_attempt_interval_s=900")
    assert result.verdict == "not exposed: no rollout deadline is set"
    assert ids(result) == ["EX002 warning"]
    assert read(path, Key.DEADLINE) == Setting(Key.DEADLINE, None, "default")


def test_origins_name_the_line_that_sets_the_value(write: Write) -> None:
    """The last file to set a key, at its line there; a `???` sets none, nor does an empty parent."""
    write("conf/deep/above.yaml", "policy: {x: 0}\nenv: {should_use_nemo_gym: true}\n")
    write("conf/deep/a.yaml", "defaults: above.yaml\npolicy: {x: 1, y: 1, many: [1, 2]}\n")
    b = write("conf/b.yaml", "defaults: deep/a.yaml\npolicy: {x: 2}\n")
    c = write("conf/c.yaml", "# nothing\npolicy: {y: 3, many: [9], x: '???'}\n")
    path = write("conf/run.yaml", "defaults:\n  - b.yaml\n  - c.yaml\npolicy:\n  z: 4\n")
    config = loading.load(path)
    origins = {
        key: config.read(key).origin for key in ("policy.x", "policy.y", "policy.z", Key.GYM, "policy.no")
    }
    assert origins == {
        "policy.x": f"{b}:2",
        "policy.y": f"{c}:2",
        "policy.z": f"{path}:5",
        Key.GYM: f"{path.parent / 'deep' / 'above.yaml'}:2",
        "policy.no": "default",
    }


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("b: {t: 7}\nasync_rl: {rollout_failure: {nemo_gym: {rollout_timeout_s: '${b.t}'}}}", 2),
        ("b: {rollout_timeout_s: 7}\nasync_rl: {rollout_failure: {nemo_gym: '${b}'}}", 2),
        ("b: {nemo_gym: {rollout_timeout_s: 7}}\n\nasync_rl: {_override_: true, rollout_failure: '${b}'}", 3),
        ("b: &b\n  rollout_timeout_s: 7\nasync_rl: {rollout_failure: {nemo_gym: {<<: *b}}}", 2),
        (
            "b: &b {nemo_gym: 1}\nasync_rl: {rollout_failure: {<<: *b, nemo_gym: {rollout_timeout_s: 7}}}",
            2,
        ),
    ],
)
def test_a_value_that_comes_by_reference_has_the_line_that_asks_for_it(
    write: Write, text: str, line: int
) -> None:
    """Interpolations count where they stand, anchors where their block stands."""
    write("base.yaml", EXPOSED)
    path = write("child.yaml", f"defaults: base.yaml\n{text}\n")
    assert read(path, Key.DEADLINE) == Setting(Key.DEADLINE, 7, f"{path}:{line + 1}")


@pytest.mark.parametrize(
    ("override", "value", "where"),
    [
        (f"{Key.DEADLINE}=99", 99, "command line"),
        (f"++{Key.DEADLINE}=99", 99, "command line"),
        ("async_rl.rollout_failure={nemo_gym: {rollout_timeout_s: 99}}", 99, "command line"),
        ("async_rl.rollout_failure=${mine}", 7, "command line"),
        ("+async_rl.rollout_failure.nemo_gym.other=1", 180, "file"),
        ("~async_rl.rollout_failure.nemo_gym", None, "default"),
    ],
)
def test_an_override_is_the_origin_of_what_it_sets(
    write: Write, override: str, value: Any, where: str
) -> None:
    """Plain, `+`, `++`, `~` and mapping overrides, and the origin follows."""
    path = write("run.yaml", EXPOSED + "mine: {nemo_gym: {rollout_timeout_s: 7}}\n")
    setting = loading.load(path, [override]).read(Key.DEADLINE)
    assert (setting.value, setting.origin) == (value, f"{path}:12" if where == "file" else where)


def test_resolvers_are_nemo_rls_and_leave_none_behind(write: Write, monkeypatch: pytest.MonkeyPatch) -> None:
    """Environment and arithmetic resolve; OmegaConf's registry is as it was."""
    monkeypatch.setenv("A_BUDGET", "180")
    path = write(
        "run.yaml", 'grpo: {a: "${add:${mul:${oc.decode:${oc.env:A_BUDGET}},8},${div:4,${max:1,2}}}"}'
    )
    assert loading.load(path).read("grpo.a").value == 1442
    assert not OmegaConf.has_resolver("mul")


def test_what_was_replaced_is_no_origin(write: Write) -> None:
    """A `???` in a block that replaces another is not told as the line that the other one had."""
    write("base.yaml", EXPOSED)
    path = write("child.yaml", "defaults: base.yaml\nenv: {_override_: true, should_use_nemo_gym: '???'}\n")
    with pytest.raises(InvalidInputError, match=rf"cannot read env\.should_use_nemo_gym \({path}\)"):
        assess(path)


# ---- values


@pytest.mark.parametrize(
    ("key", "value", "given"),
    [
        *((Key.STALL, value, 7200.0) for value in ("7200", "'7200.0'", "7.2e3", "7_200")),
        (Key.STALL, "true", 1.0),
        (Key.STALL, "inf", float("inf")),
        *(
            (Key.STALL, value, None)
            for value in ("0", "-1", "nan", "-inf", "abc", "[1]", "{a: 1}", "null", "''", "false")
        ),
        *((Key.DEADLINE, value, 3.0) for value in ("3", "'3.0'", "3.0")),
        *(
            (Key.ROUTER, value, False)
            for value in ("no", "off", "n", "f", "'false'", "'0'", "0", "False", "0.0")
        ),
        *((Key.ROUTER, value, True) for value in ("yes", "on", "y", "t", "'TRUE'", "1", "1.0")),
        *((Key.ROUTER, value, None) for value in ("'1.0'", "maybe", "2", "null", "''")),
        *((Key.FAILURES, value, 2) for value in ("2", "2.0", "'2'")),
        *((Key.FAILURES, value, None) for value in ("0", "2.5", "two", "inf")),
        (Key.STALL_ACTION, "Abort", None),
        *((Key.GYM, value, True) for value in ("no", "'false'", "1", "[0]")),
        *((Key.GYM, value, False) for value in ("false", "0", "null", "''", "[]")),
    ],
)
def test_a_value_is_taken_as_by_nemo_rls_models(run: Path, key: Key, value: str, given: Any) -> None:
    """Numbers and switches are as lax as pydantic's; None stands for a value that NeMo RL refuses."""
    settings = read_settings(loading.load(run, [f"++{key}={value}"]))
    assert (settings[key] if settings.known(key) else None) == given
    assert [*settings.invalid] == ([key] if given is None else [])


@pytest.mark.parametrize("value", ["no", "off", "n", "'false'", "0"])
def test_a_word_that_switches_saving_off_does(run: Path, value: str) -> None:
    """With no interval and no trainer checkpoints nothing takes a snapshot."""
    result = assess(run, NO_INTERVAL, f"checkpointing.enabled={value}")
    assert result.verdict == "not exposed: nothing takes a snapshot"


@pytest.mark.parametrize(
    ("overrides", "exposed", "found"),
    [
        ([f"{Key.DEADLINE}=0"], None, [Key.DEADLINE]),
        ([f"{Key.INTERVAL}=soon"], True, [Key.INTERVAL]),
        ([f"{Key.INTERVAL}=soon", "checkpointing.enabled=no"], None, [Key.INTERVAL]),
        ([f"{Key.DEADLINE}=0", "env.should_use_nemo_gym=false"], False, [Key.DEADLINE]),
        (["async_rl=null"], None, ["async_rl"]),
        (["async_rl.rollout_failure=3"], None, ["async_rl.rollout_failure"]),
        (["rollout_checkpointing.gym=3"], None, ["rollout_checkpointing.gym"]),
        (["checkpointing=null"], True, ["checkpointing"]),
        ([f"++{Key.ROUTER}=maybe"], True, [Key.ROUTER]),
        ([*NEWER, f"++{Key.LEVEL}=trun"], None, [Key.LEVEL]),
        ([*NEWER, f"++{Key.LEVEL}=Turn"], None, [Key.LEVEL]),
    ],
)
def test_a_wrong_value_hides_the_answer_only_where_it_decides(
    run: Path, overrides: list[str], exposed: bool | None, found: list[str]
) -> None:
    """EX006 names each once, a block that is not a mapping itself; the exit code is 2 where it stays open."""
    result = assess(run, *overrides)
    assert result.exposed is exposed
    assert [it.setting.key for it in result.findings if it.id == "EX006"] == found
    assert result.exit_code == (2 if exposed is None else 1)


# ---- exposed or not


@pytest.mark.parametrize(
    ("overrides", "verdict"),
    [
        ([NO_DEADLINE], "no rollout deadline is set"),
        ([f"{Key.PARTICIPANTS}=false"], "Gym participant snapshots are off"),
        (["~rollout_checkpointing"], "Gym participant snapshots are off"),
        ([NO_INTERVAL, "checkpointing.enabled=false"], "nothing takes a snapshot"),
        (["env.should_use_nemo_gym=false"], "env.should_use_nemo_gym is false"),
        ([*NEWER, f"++{Key.LEVEL}=sibling"], "Gym participant snapshots are off"),
    ],
)
def test_each_condition_is_needed(run: Path, overrides: list[str], verdict: str) -> None:
    """Without any one of them the run is not exposed, and the verdict says which one it is."""
    result = assess(run, *overrides)
    assert result.exposed is False
    assert result.verdict == f"not exposed: {verdict}"
    assert "EX001" not in str(ids(result))


@pytest.mark.parametrize(
    "overrides", [[NO_INTERVAL], ["~checkpointing", "~env", NO_INTERVAL], ["~checkpointing"]]
)
def test_silence_about_gym_or_saving_is_no_excuse(run: Path, overrides: list[str]) -> None:
    """Only an explicit false makes a run unexposed, and trainer checkpoints alone are enough."""
    assert assess(run, *overrides).exposed is True


@pytest.mark.parametrize(
    ("prepare", "reach"),
    [(180, "any rollout in flight"), (60, "any rollout in flight"), (50, "rollouts past 30 s")],
)
def test_exposed_says_how_far_and_what_to_do(run: Path, prepare: int, reach: str) -> None:
    """EX001 on the pinned schema: this package's three ways, and who is hit at the exact border."""
    result = assess(run, f"{Key.PREPARE}={prepare}")
    assert ids(result) == ["EX001 error"]
    (finding,) = result.findings
    assert finding.setting == Setting(Key.DEADLINE, 180, f"{run}:12")
    assert finding.why == f"a snapshot every 3600 s, up to {prepare} s to prepare, {3 * prepare} s in all"
    assert finding.consequence == f"{reach} can time out; later snapshots fail, 3 end the run"
    assert all(way in finding.advice for way in ("nemo-rl-deadline-fix run", "install()", "apply"))


@pytest.mark.parametrize("level", GYM_LEVELS)
@pytest.mark.parametrize(("control", "call"), [(60, "65"), (2, "4")])
def test_the_newer_schema_is_exposed_in_its_own_way(run: Path, level: str, control: int, call: str) -> None:
    """A call to Gym is bounded by the control timeout and up to 5 s more; the fix is an update of NeMo RL."""
    result = assess(run, *NEWER, f"++{Key.LEVEL}={level}", f"++{Key.CONTROL}={control}")
    assert ids(result) == ["EX001 error"]
    (finding,) = result.findings
    assert f"up to {call} s for each call" in finding.why
    assert "update NeMo RL" in finding.advice
    assert "nemo-rl-deadline-fix" not in finding.advice


@pytest.mark.parametrize(("stall", "found"), [(300, []), (245, ["EX002 error"])])
def test_numbers_of_nemo_rls_own_turn_test_are_fine(run: Path, stall: int, found: list[str]) -> None:
    """180 s of budget and one call of 65 s fit into 300 s of patience, whatever the interval."""
    numbers = (f"{Key.STALL}={stall}", ABORT, f"{Key.INTERVAL}=0.2", f"++{Key.LEVEL}=turn")
    assert ids(assess(run, *NEWER, *numbers)) == ["EX001 error", *found]


@pytest.mark.parametrize(
    ("override", "advice"),
    [
        ("++policy.generation.backend=megatron", "++policy.generation.backend=vllm"),
        ("env.should_use_nemo_gym=false", "++env.should_use_nemo_gym=true"),
        (NO_INTERVAL, f"++{Key.INTERVAL}=600"),
        ("token_capture.enabled=off", "++token_capture.enabled=true"),
        ("~checkpointing.save_data_plane", "++checkpointing.save_data_plane=true"),
        ("checkpointing.enabled=false", "++checkpointing.enabled=true"),
        (
            "++rollout_checkpointing.restore_mode=trainer_checkpoint",
            "++rollout_checkpointing.restore_mode=latest",
        ),
    ],
)
def test_what_turn_and_prefix_need_is_asked_for(run: Path, override: str, advice: str) -> None:
    """EX006 says what NeMo RL would refuse to start for, and its advice ends it when pasted."""
    newer = (*NEWER, f"++{Key.LEVEL}=turn")
    refused = [it for it in assess(run, *newer, override).findings if it.id == "EX006"]
    assert [it.advice for it in refused] == [advice]
    assert ids(assess(run, *newer, override, advice)) == ["EX001 error"]


@pytest.mark.parametrize("level", ["turn", "sibling"])
def test_the_keys_of_both_schemas_at_once_are_refused(run: Path, level: str) -> None:
    """EX006: newer builds forbid the older block, and older builds ignore the newer key."""
    result = assess(run, f"++{Key.LEVEL}={level}")
    assert result.exposed is True
    assert ids(result) == ["EX001 error", "EX006 error"]
    assert result.findings[0].why.endswith("900 s in all")


# ---- the other findings


@pytest.mark.parametrize(
    ("overrides", "found"),
    [
        # EX002: the deadline alone, with a prepare that fails, with all three phases; 180, 300 and 900 s.
        ([ABORT, f"{Key.STALL}=180"], "EX002 error"),
        ([ABORT, f"{Key.STALL}=300"], "EX002 error"),
        ([ABORT, f"{Key.STALL}=480"], "EX002 error"),
        ([ABORT, f"{Key.STALL}=481"], "EX002 warning"),
        ([ABORT, f"{Key.STALL}=1080"], "EX002 warning"),
        ([ABORT, f"{Key.STALL}=1081"], ""),
        ([f"{Key.STALL}=180"], "EX002 error"),
        ([f"{Key.STALL}=181"], ""),
        ([ABORT, f"{Key.STALL}=inf"], ""),
        ([f"{Key.STALL}=180", "~rollout_checkpointing"], "EX002 error"),
        ([ABORT, f"{Key.STALL}=300", "~rollout_checkpointing"], ""),
        ([ABORT, f"{Key.STALL}=901", NO_DEADLINE], ""),
        # EX003: the router's timeout, its default included.
        (["++async_rl.generation_router={enabled: true, backend_timeout_s: 181}"], "EX003 error"),
        (["++async_rl.generation_router={enabled: true, backend_timeout_s: 180}"], ""),
        (["++async_rl.generation_router={enabled: false, backend_timeout_s: 181}"], ""),
        (["++async_rl.generation_router.enabled=true"], "EX003 error"),
        # EX004: one phase, all three.
        ([f"{Key.INTERVAL}=299"], "EX004 warning"),
        ([f"{Key.INTERVAL}=300"], "EX004 info"),
        ([f"{Key.INTERVAL}=899"], "EX004 info"),
        ([f"{Key.INTERVAL}=900"], ""),
        # EX005: where it was, and where it never was; Gym's own config is not judged.
        (["++async_rl.rollout_timeout_s=90"], "EX005 error"),
        (["++async_rl.rollout_failure.rollout_timeout_s=90"], "EX005 warning"),
        (["++rollout_checkpointing.gym.rollout_timeout_s=90"], "EX005 warning"),
        (["++async_rl.rollout_failure.native.rollout_timeout_s=null"], ""),
        (["++env.nemo_gym.a.rollout_timeout_s=90"], ""),
        # EX007: what this run never uses.
        (["env.should_use_nemo_gym=false"], "EX007 warning"),
        ([NO_INTERVAL, "checkpointing.enabled=false"], "EX007 info"),
    ],
)
def test_findings_at_their_borders(run: Path, overrides: list[str], found: str) -> None:
    """Each finding but EX001 and EX006, on both sides of each border."""
    result = assess(run, *overrides)
    assert [it for it in ids(result) if "EX001" not in it] == ([found] if found else [])


@pytest.mark.parametrize(
    "overrides",
    [
        [ABORT, f"{Key.STALL}=200"],
        [ABORT, f"{Key.STALL}=481"],
        [f"{Key.STALL}=180"],
        ["++async_rl.generation_router.enabled=true"],
        [f"{Key.INTERVAL}=10"],
        ["env.should_use_nemo_gym=false"],
        [NO_INTERVAL, "checkpointing.enabled=false"],
    ],
)
def test_advice_that_is_pasted_ends_the_finding(run: Path, overrides: list[str]) -> None:
    """The first override of the advice takes the finding away and brings no other."""
    before = [it for it in assess(run, *overrides).findings if it.id != "EX001"]
    (finding,) = before
    pasted = finding.advice.split()[0]
    assert pasted.startswith("++")
    assert set(ids(assess(run, *overrides, pasted))) <= {"EX001 error"}


def test_a_dotted_name_in_the_yaml_is_no_path(write: Write) -> None:
    """`a.b.c: 1` is one odd key for OmegaConf, so it sets no deadline and cannot move to itself."""
    result = assess(write("run.yaml", f"policy: {{}}\n{Key.DEADLINE}: 180\n"))
    assert result.exposed is False
    assert ids(result) == ["EX005 warning"]
    assert "nested" in result.findings[0].advice


# ---- what cannot be decided


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "top-level keys none"),
        ("- policy\n", "a sequence at the top"),
        ("policy\n", "a scalar at the top"),
        ("policy:\n\tx: 1\n", "line 2"),
        ("policy: {x: 1\n", "line 2"),
        ("policy: {}\npolicy: {}\n", "line 2, column 1: found duplicate key policy"),
        ("policy: {}\n---\nenv: {}\n", "line 2"),
        ("policy: !!python/name:os.system\n", "line 1"),
        (b"policy: '\xff'\n", "not UTF-8 at byte 9"),
        (b"policy: 1\nx: '\x01'\n", "special characters"),
        ("policy: &a {x: *a}\n", "nested without end"),
        ("policy: '${'\n", "'${'"),
        ("services: {}\n", "top-level keys services"),
        ("policy: {}\ndefaults: none.yaml\n", "none.yaml, which"),
        ("policy: {}\ndefaults: .\n", "Is a directory"),
        ("policy: {}\ndefaults: 3\n", "supported: a path or a list"),
        ("policy: {}\ndefaults:\n", "supported: a path or a list"),
        ('policy: {}\ndefaults: "a\\0b.yaml"\n', "null byte"),
        ("policy: {}\ndefaults: ${oc.env:NO_SUCH_VARIABLE}\n", "NO_SUCH_VARIABLE"),
        ("policy: {}\ndefaults: run.yaml\n", "run.yaml -> "),
        ("async_rl: ${nowhere}\n", "nowhere"),
        ("env: {should_use_nemo_gym: '${oc.env:NO_SUCH_VARIABLE}'}\n", "NO_SUCH_VARIABLE"),
        ("env: {should_use_nemo_gym: '???'}\n", "Missing mandatory value"),
        ("env: {should_use_nemo_gym: '${div:1,0}'}\n", "ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_used_is_one_clear_line(write: Write, text: str | bytes, said: str) -> None:
    """Every way a file can be wrong is one typed error on one line that names the file and the place."""
    path = write("run.yaml", text)
    with pytest.raises(InvalidInputError) as raised:
        assess(path)
    assert said in str(raised.value)
    assert "run.yaml" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_cycle_is_told_with_its_way(write: Write) -> None:
    """Two files that inherit from each other are named in order; a parent of two children is no cycle."""
    write("b.yaml", "defaults: [a.yaml]\n")
    with pytest.raises(InvalidInputError, match=r"a\.yaml -> \S*b\.yaml -> \S*a\.yaml"):
        assess(write("a.yaml", "defaults: b.yaml\npolicy: {}\n"))


@pytest.mark.parametrize(
    ("name", "said"), [("missing.yaml", "cannot find"), (".", "Is a directory"), ("loop.yaml", "cannot read")]
)
def test_a_path_that_cannot_be_read(tmp_path: Path, name: str, said: str) -> None:
    """Missing, a directory, a link to itself."""
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    with pytest.raises(InvalidInputError, match=said):
        assess(tmp_path / name)


@pytest.mark.parametrize(
    "override", ["nowhere=1", "grpo", "", "~nowhere", "+env.should_use_nemo_gym=1", "grpo@x=1"]
)
def test_an_override_that_cannot_be_used_is_named(run: Path, override: str) -> None:
    """The error names the override, on one line, and says which forms there are."""
    with pytest.raises(InvalidInputError) as raised:
        assess(run, override)
    assert repr(override) in str(raised.value)
    assert "++key=value" in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_hydra_that_has_changed_is_one_clear_error(run: Path, mocker: MockerFixture) -> None:
    """Its parser is asked for only where there are overrides; without them a config is judged as ever."""
    mocker.patch.dict(sys.modules, {"hydra.core.override_parser.overrides_parser": None})
    assert assess(run).exposed is True
    with pytest.raises(InvalidInputError, match="installed hydra-core"):
        assess(run, NO_DEADLINE)


# ---- output


def test_json_is_one_object(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing else is on stdout, numbers JSON does not know included; a finding makes exit code 1."""
    assert check_config(run, [f"{Key.STALL}=-inf"], True) == 1
    captured = capsys.readouterr()
    result = json.loads(captured.out, parse_constant=pytest.fail)
    assert list(result) == ["schema_version", "config", "exposed", "values", "findings"]
    assert (result["schema_version"], result["config"], result["exposed"]) == (2, str(run), True)
    assert {"key": Key.DEADLINE, "value": 180, "origin": f"{run}:12"} in result["values"]
    texts = ["message", "why", "consequence", "advice"]
    assert list(result["findings"][0]) == ["id", "severity", "key", "value", "origin", *texts]
    assert [finding["id"] for finding in result["findings"]] == ["EX001", "EX006"]
    assert captured.err == ""


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        [NO_INTERVAL, f"{Key.DEADLINE}=1800"],
        [*NEWER, f"++{Key.LEVEL}=turn"],
    ],
)
def test_exposed_takes_four_lines_at_80_columns(
    run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, overrides: list[str]
) -> None:
    """EX001 says what, why here, what follows and what to do, a line each."""
    monkeypatch.setenv("COLUMNS", "80")
    assert check_config(run, overrides, False) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Exposed to the stall unless NeMo RL has the fix (`check PATH` tells)."
    (start,) = (number for number, line in enumerate(lines) if line.startswith("EX001 error: "))
    heads = [line.split(":")[0] for line in lines[start:]]
    assert heads == ["EX001 error", "  here", "  then", "  do this"]
    assert max(map(len, lines[start:])) <= 80


@pytest.mark.parametrize("columns", ["80", "40", "1"])
def test_text_folds_at_spaces_only(
    write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """No word, path or key is broken, whatever the width; what is not a word alone fits."""
    monkeypatch.setenv("COLUMNS", columns)
    path = write("a-folder/" * 12 + "run.yaml", EXPOSED)
    check_config(
        path, [ABORT, f"{Key.STALL}=400", "++async_rl.rollout_timeout_s=1", f"{Key.INTERVAL}=5"], False
    )
    out = capsys.readouterr().out
    assert {f"({path}:12)", *map(str, (Key.DEADLINE, Key.INTERVAL)), f"++{Key.STALL}=1140"} <= set(
        out.split()
    )
    # A text keeps 20 columns beside its indent, however narrow the terminal is.
    width = max(int(columns), 24)
    assert all(len(line) <= width or len(line.split()) == 1 for line in out.splitlines())


def test_text_shows_what_is_in_a_file_as_it_is(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Brackets are no markup, and an escape sequence does not reach the terminal."""
    path = write("run.yaml", 'policy: {"[red]\\e[31m": {rollout_timeout_s: "[bold]\\e[1m"}}\n')
    assert check_config(path, [], False) == 1
    out = capsys.readouterr().out
    assert "[red]" in out
    assert "[bold]" in out
    assert "\x1b" not in out


@pytest.mark.parametrize("as_json", [True, False])
def test_a_run_without_the_feature_is_fine(
    write: Write, capsys: pytest.CaptureFixture[str], as_json: bool
) -> None:
    """A config from before Gym snapshots is not exposed and exits 0."""
    path = write("run.yaml", "grpo: {num_prompts_per_step: 1}\npolicy: {model_name: m}\n")
    assert check_config(path, [], as_json) == 0
    assert (
        '"exposed": false' if as_json else "Not exposed: no rollout deadline is set"
    ) in capsys.readouterr().out


def test_a_path_and_a_config_are_a_conflict(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line says which two do not go together, with exit code 2; overrides do go."""
    with pytest.raises(SystemExit) as left:
        app(["check", "some/tree", "--config", str(run)])
    assert left.value.code == 2
    err = capsys.readouterr().err
    assert f"not both: some/tree and --config {run}" in err
    assert err.count("\n") == 1
    with pytest.raises(SystemExit) as left:
        app(["check", NO_DEADLINE, "~env", "--config", str(run)])
    assert left.value.code == 0


def test_a_name_that_stdout_cannot_encode_is_escaped(run: Path, tmp_path: Path) -> None:
    """A real process under latin-1 prints the rest and leaves with the exit code that it should."""
    odd = "café ✓.yaml"
    shutil.copy(run, tmp_path / odd)
    done = subprocess.run(
        [sys.executable, "-m", "nemo_rl_deadline_fix", "check", "--config", odd],
        cwd=tmp_path,
        env={**os.environ, "PYTHONIOENCODING": "latin-1", "COLUMNS": "200"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (1, b"")
    assert "café \\u2713.yaml:4)".encode("latin-1") in done.stdout
