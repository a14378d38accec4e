"""Words of the command line: which are known, and what those are told who write another."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from keystone_action.cli.arguments import build_parser, options_of
from keystone_action.dialects.known import DIALECTS
from keystone_action.errors import UsageError
from keystone_action.options.model import Options

COMMANDS = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction)).choices


def options(directory: Path, *words: str, **environ: str) -> Options:
    return options_of(build_parser().parse_args(words), directory, environ)


@pytest.mark.parametrize("command", ["run", "validate", "plan"])
def test_without_a_spec_the_directory_is_meant(command: str, tmp_path: Path) -> None:
    assert options(tmp_path, command).cells.specs == (".",)
    found = options(tmp_path, command, "--param", "a=b", "x", "y")
    assert (found.cells.specs, found.cells.params) == (("x", "y"), {"a": "b"})


def test_every_option_of_a_run_is_read(tmp_path: Path) -> None:
    words = {
        "--replicas": "3",
        "--param": "model=a,b",
        "--tag": "fast",
        "--filter": "small*",
        "--shard": "2/3",
        "--agent": "module:Class",
        "--sandbox": "docker",
        "--max-concurrency": "4",
        "--retry-errors": "0",
        "--gateway": "replay",
        "--max-cost-usd": "0.5",
        "--timeout": "1h30m",
        "--threshold": "0.85",
        "--fail-on": "never",
        "--output": "out",
        "--summary": "summary.md",
        "--format": "plain",
    }
    flags = ("--keep", "--fail-on-skipped", "--fail-on-stale", "-v")
    given = [word for pair in words.items() for word in pair]
    found = options(tmp_path, "run", "a.yaml", *given, *flags, KEYSTONE_REGISTRY_MIRROR="https://mirror.example/")
    assert found == Options.of(
        specs=["a.yaml"],
        replicas=3,
        params={"model": "a,b"},
        tags=["fast"],
        filter="small*",
        shard=(2, 3),
        agent="module:Class",
        sandbox="docker",
        max_concurrency=4,
        retry_errors=0,
        gateway="replay",
        max_cost_usd=0.5,
        timeout=5400.0,
        threshold=0.85,
        fail_on="never",
        output=Path("out"),
        summary_copy=tmp_path / "summary.md",
        format="plain",
        keep=True,
        fail_on_skipped=True,
        fail_on_stale=True,
        verbose=True,
        registry_mirror="mirror.example",
        directory=tmp_path,
        environ={"KEYSTONE_REGISTRY_MIRROR": "https://mirror.example/"},
        dialects=DIALECTS,
        user_logins=True,
    )


def test_a_variable_is_read_by_the_commands_of_its_option(tmp_path: Path) -> None:
    wrong = {"KEYSTONE_REGISTRY_MIRROR": "https://ada:hunter22@mirror.example"}
    assert options(tmp_path, "plan", **wrong).images.registry_mirror is None
    with pytest.raises(UsageError) as told:
        options(tmp_path, "run", **wrong)
    assert told.value.message.startswith("KEYSTONE_REGISTRY_MIRROR is '…@mirror.example'; expected a registry without")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--threshold", "85"], "argument --threshold: '85' is not a number from 0 to 1"),
        (["--threshold", "nan"], "argument --threshold: 'nan' is not a number from 0 to 1"),
        (["--replicas", "0"], "argument --replicas: '0' is not a whole number from 1 to 1,000,000"),
        (["--retry-errors", "1.5"], "argument --retry-errors: '1.5' is not a whole number from 0 to 100"),
        (["--max-cost-usd", "-1"], "argument --max-cost-usd: '-1' is not a number from 0 to 1,000,000,000"),
        (["--shard", "4/3"], "argument --shard: '4/3' is not i/N with i from 1 to N, for example 1/3"),
        (["--param", "=a"], "argument --param: '=a' is not name=value"),
        (["--param", "a=1", "--param", "a=2"], "--param a is given twice, as '1' and '2'"),
        (["--timeout", "soon"], "argument --timeout: 'soon' is not a duration like 90, 90s, 10m or 1h30m"),
        (["--resume", "a", "--output", "b"], "--resume and --output name two directories"),
        (["--resume", "a", "--failed", "a/results.json"], "--resume and --failed name the same run"),
        (["--summary", "."], "--summary . is a directory"),
    ],
)
def test_a_value_that_is_wrong_is_told_with_what_was_expected(tmp_path: Path, words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as told:
        options(tmp_path, "run", *words)
    assert told.value.message.startswith(said)


@pytest.mark.parametrize(
    ("environ", "shard", "by"),
    [
        ({"KEYSTONE_SHARD": "2/3", "CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "4"}, (2, 3), "KEYSTONE_SHARD"),
        ({"JOB_COMPLETION_INDEX": "0", "KEYSTONE_SHARDS": "5"}, (1, 5), "JOB_COMPLETION_INDEX and KEYSTONE_SHARDS"),
        ({"CI_NODE_INDEX": "4", "CI_NODE_TOTAL": "4"}, (4, 4), "CI_NODE_INDEX and CI_NODE_TOTAL"),
        (
            {"BUILDKITE_PARALLEL_JOB": "1", "BUILDKITE_PARALLEL_JOB_COUNT": "2"},
            (2, 2),
            "BUILDKITE_PARALLEL_JOB and BUILDKITE_PARALLEL_JOB_COUNT",
        ),
    ],
)
def test_a_shard_is_read_from_the_variables_of_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], environ: dict[str, str], shard: tuple[int, int], by: str
) -> None:
    assert options(tmp_path, "run", "--shard", "auto", **environ).cells.shard == shard
    assert capsys.readouterr().err == f"note: this is shard {shard[0]}/{shard[1]}, by {by}\n"


@pytest.mark.parametrize(
    ("environ", "said"),
    [
        ({}, "no variable of this job says which shard it is"),
        ({"KEYSTONE_SHARD": "auto"}, "KEYSTONE_SHARD is 'auto'; expected i/N"),
        ({"KEYSTONE_SHARD": "3/2"}, "KEYSTONE_SHARD is '3/2'; expected i/N"),
        ({"JOB_COMPLETION_INDEX": "1"}, "JOB_COMPLETION_INDEX is there, and KEYSTONE_SHARDS is not"),
        ({"CI_NODE_TOTAL": "3"}, "CI_NODE_TOTAL is there, and CI_NODE_INDEX is not"),
        ({"CI_NODE_INDEX": "0", "CI_NODE_TOTAL": "3"}, "are '0' and '3'; expected an index from 1 to their number"),
        (
            {"BUILDKITE_PARALLEL_JOB": "2", "BUILDKITE_PARALLEL_JOB_COUNT": "2"},
            "are '2' and '2'; expected an index from 0 to one below their number",
        ),
        ({"CI_NODE_INDEX": "-1", "CI_NODE_TOTAL": "3"}, "CI_NODE_INDEX and CI_NODE_TOTAL are '-1' and '3'"),
        ({"CI_NODE_INDEX": "1", "CI_NODE_TOTAL": "many"}, "CI_NODE_INDEX and CI_NODE_TOTAL are '1' and 'many'"),
    ],
)
def test_variables_that_name_no_shard_are_refused(tmp_path: Path, environ: dict[str, str], said: str) -> None:
    with pytest.raises(UsageError) as told:
        options(tmp_path, "run", "--shard", "auto", **environ)
    assert told.value.message.startswith("shard auto: ")
    assert said in told.value.message


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_can_be_quiet_or_tell_more(command: str) -> None:
    parser = COMMANDS[command]
    for words, expected in (("-q", (True, False)), ("--quiet", (True, False)), ("-v", (False, True))):
        given = [one for one in parser._get_positional_actions() if one.nargs not in ("?", "*")]
        fitting = [str(next(iter(one.choices or ["x"]))) for one in given]
        call = parser.parse_args([*fitting, words])
        assert (call.quiet, call.verbose) == expected
    with pytest.raises(UsageError, match="not allowed with"):
        parser.parse_args([*fitting, "-q", "-v"])


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_what_the_exit_codes_mean(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        build_parser().parse_args([command, "--help"])
    assert left.value.code == 0
    told = capsys.readouterr().out
    assert told.startswith(f"usage: keystone {command}")
    assert "Exit codes: 0 pass, 1 fail, 2 bad spec or call" in told
    assert all(action.help for action in COMMANDS[command]._actions), "an argument without a word on it"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["rnu"], "there is no command 'rnu'; did you mean `keystone run`?"),
        (["frobnicate"], "there is no command 'frobnicate'"),
        (["/"], "there is no command '/'; did you mean `keystone run /`?"),
        (["run", "--quite"], "keystone run has no option --quite; did you mean --quiet?"),
        (["run", "--max_cost-usd=3"], "keystone run has no option --max_cost-usd; did you mean --max-cost-usd?"),
        (["run", "--no"], "keystone run has no option --no"),
        (["run", "--threshold"], "argument --threshold: expected one argument"),
        (["validate", "--format", "x"], "keystone validate has no option --format: it is an option of `keystone run`"),
        (["--quiet", "run"], "--quiet is an option of commands: write it behind one, such as `keystone run --quiet`"),
        (["run", "--format", "jsno"], "argument --format: 'jsno' is none of rich, plain, json; did you mean json?"),
        (["schema", "x"], "unexpected argument 'x'"),
        (["run", "a", "--keep", "b"], "unexpected argument 'b': name all of them side by side"),
    ],
)
def test_what_is_not_known_is_told_by_its_name(words: list[str], said: str) -> None:
    with pytest.raises(UsageError) as told:
        build_parser().parse_args(words)
    assert told.value.message.startswith(said)
    assert ("did you mean" in told.value.message) is ("did you mean" in said)
    assert told.value.help.startswith("usage: keystone ")
    assert told.value.exit_code == 2


@pytest.mark.parametrize("command", COMMANDS)
def test_no_option_is_offered_for_itself(command: str) -> None:
    """An option of one command, given to another that lacks it, is not "did you mean" the option that was written."""
    options = {name for one in COMMANDS.values() for name in one._option_string_actions if name.startswith("--")}
    for option in options - COMMANDS[command]._option_string_actions.keys():
        with pytest.raises(UsageError) as told:
            COMMANDS[command].parse_args([option])
        assert f"{option}; did you mean" not in told.value.message
        assert "it is an option of" in told.value.message or "required" in told.value.message
