"""What GitHub's runner does with the log, the file commands and the summary of a step, written from its documented
and observed rules, so that "the runner would reject this" is a failing test."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field

MAX_SUMMARY = 1024 * 1024
MAX_ISSUES_OF_TYPE = 10
MAX_ISSUE_MESSAGE = 4096

COMMANDS = frozenset(
    {
        "add-mask",
        "add-matcher",
        "add-path",
        "debug",
        "echo",
        "endgroup",
        "error",
        "group",
        "notice",
        "remove-matcher",
        "save-state",
        "set-env",
        "set-output",
        "stop-commands",
        "warning",
    }
)
_ISSUES = frozenset({"error", "warning", "notice"})
_DISABLED = frozenset({"set-env", "add-path"})


class RunnerRejects(Exception):
    """The runner would fail the step because of this."""


@dataclass(frozen=True)
class ParsedCommand:
    """A line that the runner takes for a command."""

    name: str
    properties: dict[str, str]
    data: str
    old_form: bool = False


@dataclass(frozen=True)
class Issue:
    """An annotation that the runner kept."""

    level: str
    message: str
    file: str | None = None
    line: int | None = None
    title: str | None = None


@dataclass
class ReadLog:
    """A log as the runner reads it. shown: what people see, masked. dropped: annotations over the cap."""

    shown: list[str] = field(default_factory=list)
    commands: list[ParsedCommand] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    dropped: int = 0
    masks: list[str] = field(default_factory=list)
    open_groups: int = 0
    errors: list[str] = field(default_factory=list)


def parse_env_file(text: str) -> dict[str, str]:
    """GITHUB_OUTPUT: `name=value` or a heredoc, whichever sign comes first in the line. Raises RunnerRejects."""
    values: dict[str, str] = {}
    position = 0

    def next_line() -> tuple[str, bool] | None:
        nonlocal position
        if position >= len(text):
            return None
        end = text.find("\n", position)
        line = text[position:] if end < 0 else text[position:end]
        position = len(text) if end < 0 else end + 1
        return line, end >= 0

    while (read := next_line()) is not None:
        line = read[0]
        if not line:
            continue
        equals, heredoc = line.find("="), line.find("<<")
        if equals >= 0 and (heredoc < 0 or equals < heredoc):
            name, value = line.split("=", 1)
            if not name:
                raise RunnerRejects(f"invalid format {line!r}: no name")
            values[name] = value
        elif heredoc >= 0:
            name, delimiter = line.split("<<", 1)
            if not name or not delimiter:
                raise RunnerRejects(f"invalid format {line!r}: no name or no delimiter")
            values[name] = _heredoc(next_line, delimiter)
        else:
            raise RunnerRejects(f"invalid format {line!r}")
    return values


def _heredoc(next_line, delimiter: str) -> str:
    lines = []
    while True:
        read = next_line()
        if read is None:
            raise RunnerRejects(f"matching delimiter not found: {delimiter!r}")
        line, ended = read
        if line == delimiter:
            return "\n".join(lines)
        if not ended:
            raise RunnerRejects(f"no newline before the end of the file; expected delimiter {delimiter!r}")
        lines.append(line)


def parse_command(line: str, registered: Iterable[str] = COMMANDS) -> ParsedCommand | None:
    """The command that the runner sees in a line, if any.

    The runner compares by culture, which skips characters without a width, so both readings count.
    """
    names = {name.lower() for name in registered}
    for reading in dict.fromkeys((line, _without_ignorable(line))):
        found = _parse_new(reading, names) or _parse_old(reading, names)
        if found:
            return found
    return None


def _without_ignorable(line: str) -> str:
    return "".join(
        character
        for character in line
        if unicodedata.category(character) not in {"Cf", "Cc", "Mn"} or character in "\t\v\f\x85"
    )


def _parse_new(line: str, names: set[str]) -> ParsedCommand | None:
    line = line.lstrip()
    end = line.find("::", 2)
    if not line.startswith("::") or end < 0:
        return None
    name, _, rest = line[2:end].partition(" ")
    if name.lower() not in names:
        return None
    properties = _pairs(rest.strip(), ",", _unescape_property)
    return ParsedCommand(name.lower(), properties, _unescape_data(line[end + 2 :]))


def _parse_old(line: str, names: set[str]) -> ParsedCommand | None:
    start = line.find("##[")
    end = line.find("]", start)
    if start < 0 or end < 0:
        return None
    name, _, rest = line[start + 3 : end].partition(" ")
    if name.lower() not in names:
        return None
    return ParsedCommand(name.lower(), _pairs(rest, ";", _unescape_old), _unescape_old(line[end + 1 :]), old_form=True)


def _pairs(text: str, separator: str, unescape) -> dict[str, str]:
    pairs = (item.split("=", 1) for item in text.split(separator) if item)
    return {pair[0].lower(): unescape(pair[1]) for pair in pairs if len(pair) == 2 and pair[0] and pair[1]}


def _unescape_data(text: str) -> str:
    return text.replace("%0D", "\r").replace("%0A", "\n").replace("%25", "%")


def _unescape_property(text: str) -> str:
    text = text.replace("%0D", "\r").replace("%0A", "\n").replace("%3A", ":").replace("%2C", ",")
    return text.replace("%25", "%")


def _unescape_old(text: str) -> str:
    text = text.replace("%3B", ";").replace("%0D", "\r").replace("%0A", "\n").replace("%5D", "]")
    return text.replace("%25", "%")


def read_log(text: str, *, secrets: Iterable[str] = ()) -> ReadLog:
    """Reads a step's streams line by line, as they would be read while it runs."""
    log = ReadLog()
    for secret in secrets:
        _add_mask(log, secret)
    stopped: str | None = None
    for line in re.split(r"\r\n|\r|\n", text):
        command = parse_command(line, COMMANDS | ({stopped} if stopped else frozenset()))
        if stopped is not None:
            if command is not None and command.name == stopped.lower():
                stopped = None
            log.shown.append(mask(line, log.masks))
        elif command is None:
            log.shown.append(mask(line, log.masks))
        elif command.name == "stop-commands":
            stopped = command.data
        else:
            log.commands.append(command)
            _process(log, command)
    return log


def _process(log: ReadLog, command: ParsedCommand) -> None:
    if command.name == "add-mask":
        if command.data.strip():
            _add_mask(log, command.data)
        else:
            log.errors.append("can't add secret mask for empty string")
    elif command.name in _DISABLED:
        log.errors.append(f"the {command.name} command is disabled")
    elif command.name == "group":
        log.open_groups += 1
        log.shown.append(mask(command.data, log.masks))
    elif command.name == "endgroup":
        log.open_groups -= 1
    elif command.name in _ISSUES:
        _add_issue(log, command)


def _add_issue(log: ReadLog, command: ParsedCommand) -> None:
    message = mask(command.data, log.masks)
    log.shown.append(f"##[{command.name}]{message}")
    if sum(issue.level == command.name for issue in log.issues) >= MAX_ISSUES_OF_TYPE:
        log.dropped += 1
        return
    line = command.properties.get("line")
    log.issues.append(
        Issue(
            command.name,
            message[:MAX_ISSUE_MESSAGE],
            command.properties.get("file"),
            int(line) if line else None,
            command.properties.get("title"),
        )
    )


def _add_mask(log: ReadLog, value: str) -> None:
    for secret in (value, *re.split(r"[\r\n]", value)):
        if secret.strip() and secret not in log.masks:
            log.masks.append(secret)


def mask(text: str, secrets: Iterable[str]) -> str:
    """The text with every secret, longest first, as `***`."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def read_summary(content: bytes, *, secrets: Iterable[str] = ()) -> str:
    """The summary as it is uploaded, masked line by line. Raises RunnerRejects when it is too large or no UTF-8."""
    if len(content) > MAX_SUMMARY:
        raise RunnerRejects(f"summary supports content up to {MAX_SUMMARY // 1024}k, got {len(content)} bytes")
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise RunnerRejects(f"the summary is not UTF-8: {error}") from error
    return "\n".join(mask(line, secrets) for line in text.split("\n"))
