"""The fake runner's own rules, so that what it accepts means something."""

from __future__ import annotations

import pytest
from support.runner_rules import (
    MAX_SUMMARY,
    RunnerRejects,
    parse_command,
    parse_env_file,
    read_log,
    read_summary,
)


def test_env_file_reads_both_forms_and_the_last_value_wins() -> None:
    text = "a=1\n\nb<<END\nx=1\ny<<2\n\nEND\na=2=3\n"
    assert parse_env_file(text) == {"a": "2=3", "b": "x=1\ny<<2\n"}


def test_env_file_takes_the_sign_that_comes_first() -> None:
    assert parse_env_file("a=b<<c\n") == {"a": "b<<c"}
    assert parse_env_file("a<<b=c\nvalue\nb=c\n") == {"a": "value"}


@pytest.mark.parametrize(
    "text",
    ["no sign\n", "=value\n", "<<END\nEND\n", "a<<\n\n", "a<<END\nvalue\n", "a<<END\nvalue", "a<<END\nvalue\n END\n"],
)
def test_env_file_rejects(text: str) -> None:
    with pytest.raises(RunnerRejects):
        parse_env_file(text)


def test_env_file_heredoc_may_end_at_the_end_of_the_file() -> None:
    assert parse_env_file("a<<END\nEND") == {"a": ""}


def test_command_with_properties_is_unescaped() -> None:
    command = parse_command("  ::error file=a%3Ab%2Cc.yaml,line=3,title=%25::x%0Ay%25")
    assert command is not None
    assert command.properties == {"file": "a:b,c.yaml", "line": "3", "title": "%"}
    assert command.data == "x\ny%"


@pytest.mark.parametrize(
    "line",
    [
        "::error::x",
        "\t ::ERROR::x",
        "\u00a0::error::x",
        "\u200b::error::x",
        ":\u200d:error::x",
        "text before ##[error]x",
        "#\u00ad#[error]x",
    ],
)
def test_command_is_seen(line: str) -> None:
    command = parse_command(line)
    assert command is not None
    assert command.name == "error"


@pytest.mark.parametrize(
    "line", ["text ::error::x", "::error", ": :error::x", "## [error]x", "::unknown::x", "##[unknown]x", "##[error", ""]
)
def test_command_is_not_seen(line: str) -> None:
    assert parse_command(line) is None


def test_log_masks_from_the_mask_on_and_each_line_of_a_value() -> None:
    log = read_log("early secret-one\n::add-mask::secret-one%0Asecret-two\nlate secret-one, secret-two\n")
    assert log.shown == ["early secret-one", "late ***, ***", ""]


def test_log_keeps_ten_annotations_of_a_kind() -> None:
    log = read_log("\n".join(["::error::e"] * 12 + ["::warning::w"] * 3))
    assert [issue.level for issue in log.issues] == ["error"] * 10 + ["warning"] * 3
    assert log.dropped == 2


def test_log_cuts_messages() -> None:
    assert len(read_log("::notice::" + "x" * 5000).issues[0].message) == 4096


def test_log_stops_and_resumes_commands() -> None:
    log = read_log("::stop-commands::token-1\n::error::a\n::token-1::\n::error::b\n")
    assert [issue.message for issue in log.issues] == ["b"]


def test_log_reports_disabled_commands_and_empty_masks() -> None:
    log = read_log("::set-env name=A::b\n::add-mask::\n##[add-path]/x\n")
    assert len(log.errors) == 3


def test_summary_has_a_size_and_an_encoding() -> None:
    assert read_summary(b"a secret\n", secrets=("secret",)) == "a ***\n"
    assert len(read_summary(b"x" * MAX_SUMMARY)) == MAX_SUMMARY
    with pytest.raises(RunnerRejects):
        read_summary(b"x" * (MAX_SUMMARY + 1))
    with pytest.raises(RunnerRejects):
        read_summary(b"\xff")
