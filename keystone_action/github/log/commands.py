"""Workflow commands: the lines of our log that the runner acts on, and the care that no other line is one.

The runner reads `::name key=value,…::data` at the start of a line, after blanks, and the old `##[name]data` anywhere
in a line, on both streams. What others wrote (agents, services, specs, file names) goes through `harmless`.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, TextIO

from keystone_action.report.escape import visible

Level = Literal["error", "warning", "notice"]

MAX_MESSAGE = 4096
"""Characters of an annotation that the runner keeps."""
MIN_MASK = 4
"""A shorter value would be blanked out all over the log."""

# Stricter than `report.escape.without_commands`: the runner compares by the rules of the host's language, which skip
# characters without a width, so that a joiner or a variation selector inside a marker does not hide it.
_OLD_COMMAND = re.compile(r"(#[^\x20-\x7e]*#)([^\x20-\x7e]*\[)")
_COMMAND = re.compile(r"^([^\x21-\x7e]*:)([^\x20-\x7e]*:)")


def harmless(text: str) -> str:
    """The text, line for line, with every workflow command in it broken by a blank and control characters shown."""
    lines = visible(text).split("\n")
    return "\n".join(_COMMAND.sub(r"\1 \2", _OLD_COMMAND.sub(r"\1 \2", line)) for line in lines)


def escape_data(text: str) -> str:
    """The text as the data of a command."""
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def escape_property(text: str) -> str:
    """The text as the value of a command's property."""
    return escape_data(text).replace(":", "%3A").replace(",", "%2C")


def shorten(text: str, limit: int) -> str:
    """The text, cut to so many characters with an ellipsis at the end."""
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


@dataclass(frozen=True, slots=True)
class Annotation:
    """A message at a place. file: relative to the repository; line: from 1. Either may be unknown."""

    level: Level
    message: str
    title: str = ""
    file: str | None = None
    line: int | None = None


class LogCommands:
    """The log of the step. A log that can't be written any more (the runner went away) is not an error: the verdict
    must not change because nobody listens.

    issued: how many annotations of each level were made; the runner keeps ten of each.
    """

    def __init__(self, stream: TextIO, *, verbose: bool = False) -> None:
        self._stream = stream
        self._secrets: list[str] = []
        self._in_group = False
        self.verbose = verbose
        self.issued: dict[Level, int] = {"error": 0, "warning": 0, "notice": 0}

    def log(self, text: str) -> None:
        """One or more plain lines; never a command, even if the text looks like one."""
        self._write(harmless(self._mask(text)))

    def debug(self, text: str) -> None:
        """A plain line that is only of interest when step debugging is on."""
        if self.verbose:
            self.log(text)

    def annotate(self, annotation: Annotation) -> None:
        """An error, warning or notice, in the log and beside the changed file."""
        properties = {
            "file": harmless(annotation.file or "").replace("\n", " "),
            "line": "" if annotation.line is None else str(annotation.line),
            "title": harmless(self._mask(annotation.title)).replace("\n", " "),
        }
        # Masked before it is cut: a secret's first half would not be recognised any more.
        message = shorten(harmless(self._mask(annotation.message)), MAX_MESSAGE)
        self.issued[annotation.level] += 1
        self._command(annotation.level, message, properties)

    def error(self, message: str, *, title: str = "Keystone") -> None:
        """An error annotation without a place."""
        self.annotate(Annotation("error", message, title))

    def warning(self, message: str, *, title: str = "Keystone") -> None:
        """A warning annotation without a place."""
        self.annotate(Annotation("warning", message, title))

    def notice(self, message: str) -> None:
        """A notice annotation without a place."""
        self.annotate(Annotation("notice", message, "Keystone"))

    def group(self, title: str) -> None:
        """Opens a folded part of the log; groups don't nest, so an open one is closed first."""
        self.endgroup()
        self._in_group = True
        self._command("group", harmless(self._mask(title)).replace("\n", " "), {})

    def endgroup(self) -> None:
        """Closes the open group, if any."""
        if self._in_group:
            self._in_group = False
            self._command("endgroup", "", {})

    def mask(self, value: str) -> bool:
        """Has the runner replace the value in the log from here on, each line of it for itself.

        Returns False when no line of it is long enough to be masked.
        """
        lines = {line.strip() for line in re.split(r"[\r\n]", value)}
        long_enough = sorted(line for line in lines if len(line) >= MIN_MASK)
        for line in long_enough:
            if line not in self._secrets:
                self._secrets.append(line)
                self._command("add-mask", line, {})
        self._secrets.sort(key=len, reverse=True)
        return bool(long_enough)

    def _mask(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    def _command(self, name: str, data: str, properties: dict[str, str]) -> None:
        given = ",".join(f"{key}={escape_property(value)}" for key, value in properties.items() if value)
        self._write(f"::{name}{' ' if given else ''}{given}::{escape_data(data)}")

    def _write(self, line: str) -> None:
        with suppress(OSError, ValueError):
            self._stream.write(line.encode("utf-8", "backslashreplace").decode("utf-8") + "\n")
            self._stream.flush()
