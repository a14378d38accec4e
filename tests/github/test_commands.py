"""Our log, read by the runner's rules: commands arrive as they were meant, and nothing else is a command."""

from __future__ import annotations

import io
from operator import methodcaller

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from support.runner_rules import parse_command, read_log

from keystone_action.github.log_commands import MAX_MESSAGE, Annotation, LogCommands, harmless

PIECES = (
    *(
        "::",
        ":",
        "#",
        "##[",
        "[",
        "]",
        "error",
        "add-mask",
        "set-env name=X",
        "::error::x",
        "%0A",
        "%",
        ",",
        "=",
        " ",
        "é",
    ),
    *("\u200b", "\u00ad", "\ufe0f", "\u034f", "\r", "\n", "\x00", "\x1b[31m", "\u202e", "\u00a0", "\x85", "\u2028"),
)
HOSTILE = st.lists(st.sampled_from(PIECES), max_size=12).map("".join) | st.text(max_size=40)


def written(call) -> str:
    stream = io.StringIO()
    call(LogCommands(stream, verbose=True))
    return stream.getvalue()


@given(HOSTILE)
@example("::error::x")
@example("\u00a0:\u200d:error::x")
@example("a\r::set-env name=A::b")
@example("x #\u00ad#\ufe0f[error]y")
def test_a_plain_line_is_never_a_command(text: str) -> None:
    log = read_log(written(lambda commands: commands.log(text)))
    assert log.commands == []
    assert log.errors == []


@given(HOSTILE)
def test_harmless_text_has_no_control_characters(text: str) -> None:
    assert not any(ord(character) < 32 and character not in "\n\t" for character in harmless(text))
    assert all(parse_command(line) is None for line in harmless(text).splitlines())


@given(HOSTILE, HOSTILE, HOSTILE, st.integers(1, 10**6))
def test_an_annotation_is_one_command_with_its_place(message: str, title: str, file: str, line: int) -> None:
    log = read_log(written(lambda commands: commands.annotate(Annotation("error", message, title, file or "f", line))))
    (issue,) = log.issues
    assert len(log.commands) == 1
    assert issue.level == "error"
    assert issue.line == line
    assert issue.message == harmless(message)
    assert log.errors == []


def test_an_annotation_without_a_place_has_no_empty_properties() -> None:
    assert written(lambda commands: commands.error("broken", title="")) == "::error::broken\n"
    for level in ("error", "warning", "notice"):
        assert written(methodcaller(level, "told")) == f"::{level} title=Keystone::told\n"


def test_data_and_properties_are_escaped() -> None:
    text = written(lambda commands: commands.annotate(Annotation("warning", "50%\nnext", "a: b, c", "x,y.yaml", 3)))
    assert text == "::warning file=x%2Cy.yaml,line=3,title=a%3A b%2C c::50%25%0Anext\n"


def test_a_message_is_cut_before_the_runner_cuts_it() -> None:
    (issue,) = read_log(written(lambda commands: commands.warning("é%" * MAX_MESSAGE))).issues
    assert len(issue.message) == MAX_MESSAGE
    assert issue.message.endswith("…")


@given(st.text("ABC:%#[],=\n\u202e", min_size=4, max_size=40), st.text("xyz :#[%", max_size=20))
@example("##[A", "x")
@example("::A::", "x")
@example("AB%0AC\nABCD", "")
def test_a_masked_value_is_never_shown(secret: str, around: str) -> None:
    def call(commands: LogCommands) -> None:
        commands.mask(secret)
        commands.log(f"{around}|{secret}|{around}")
        commands.error(f"{around}|{secret}", title=secret)
        commands.group(secret)
        commands.endgroup()

    log = read_log(written(call))
    said = "\n".join([*log.shown, *(issue.title or "" for issue in log.issues)])
    masked = [line.strip() for line in secret.split("\n") if len(line.strip()) >= 4]
    assert set(masked) <= set(log.masks)
    assert not any(line in said for line in masked)


@pytest.mark.parametrize("start", range(MAX_MESSAGE - 16, MAX_MESSAGE + 1, 4))
def test_a_cut_leaves_no_half_of_a_masked_value(start: int) -> None:
    secret = "hunter2-hunter2"

    def call(commands: LogCommands) -> None:
        commands.mask(secret)
        commands.error("x" * start + secret)

    (annotation,) = [one for one in read_log(written(call)).commands if one.name == "error"]
    assert len(annotation.data) <= MAX_MESSAGE
    assert "hunter" not in annotation.data


def test_each_line_of_a_value_is_masked_and_short_lines_are_not() -> None:
    log = read_log(written(lambda commands: commands.mask('{\n  "key": "abcdefgh"\n}\n')))
    assert log.masks == ['"key": "abcdefgh"']


def test_a_mask_with_signs_of_commands_arrives_whole() -> None:
    log = read_log(written(lambda commands: commands.mask("100%::a,b%0Ac")))
    assert log.masks == ["100%::a,b%0Ac"]


def test_a_short_value_is_not_masked() -> None:
    commands = LogCommands(io.StringIO())
    assert not commands.mask("abc")
    assert not commands.mask("")
    assert commands.mask("abcd")


def test_a_longer_secret_wins_over_one_that_it_holds() -> None:
    def call(commands: LogCommands) -> None:
        commands.mask("pass")
        commands.mask("password-1")
        commands.log("password-1")

    assert written(call).splitlines()[-1] == "***"


def test_groups_are_closed_once() -> None:
    def call(commands: LogCommands) -> None:
        commands.group("one")
        commands.group("two\n::error::x")
        commands.endgroup()
        commands.endgroup()

    log = read_log(written(call))
    assert log.open_groups == 0
    assert [command.name for command in log.commands] == ["group", "endgroup", "group", "endgroup"]
    assert log.issues == []


def test_a_log_that_nobody_reads_is_no_error() -> None:
    stream = io.StringIO()
    commands = LogCommands(stream)
    stream.close()
    commands.log("said to nobody")
    assert commands.issued["error"] == 0


def test_lone_surrogates_and_debug_lines() -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    LogCommands(stream).log("a\udcffb")
    LogCommands(stream, verbose=False).debug("hidden")
    assert b"hidden" not in raw.getvalue()
    assert raw.getvalue().startswith(b"a")
