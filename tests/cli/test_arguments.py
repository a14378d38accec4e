"""Words of the command line: which are known, and what those are told who write another."""

from __future__ import annotations

import argparse

import pytest

from keystone_action.cli.arguments import build_parser
from keystone_action.errors import UsageError

COMMANDS = next(one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction)).choices


@pytest.mark.parametrize("command", ["run", "validate", "plan"])
def test_without_a_spec_the_directory_is_meant(command: str) -> None:
    assert build_parser().parse_args([command]).specs == ["."]
    assert build_parser().parse_args([command, "--param", "a=b", "x", "y"]).specs == ["x", "y"]


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
