"""Workflow commands: the lines of our log that the runner acts on, and the care that no other line is one.

The runner reads `::name key=value,…::data` at the start of a line, after blanks, and the old `##[name]data` anywhere
in a line, on both streams. What others wrote (agents, services, specs, file names) goes through `harmless`.

Failures of a run become annotations at the spec's lines, the worst first: GitHub keeps ten of a kind for a step.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TextIO

from keystone_action.report.escape import visible
from keystone_action.report.sentences.view import cell_reason
from keystone_action.scoring.results import CellResult, InvariantResult, RunResult, SpecResult
from keystone_action.spec.loading.diagnostics import SpecError

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


MAX_OF_LEVEL = 10
"""Annotations of one level that the runner keeps of a step."""
_JUDGES = frozenset({"llm_as_judge", "model_judge"})
_BROKEN, _GATE, _FAILED, _BROKEN_BESIDE, _PARTIAL, _SKIPPED = range(6)


@dataclass(frozen=True, slots=True)
class _Finding:
    """One thing to say of one cell. key: findings of several cells with one key become one annotation."""

    severity: int
    weight: float
    key: tuple[str, str, int]
    level: Level
    title: str
    message: str
    file: str
    line: int | None


def annotations_of(
    run: RunResult, *, directory: Path, workspace: Path, limit: int, issued: Mapping[Level, int] | None = None
) -> list[Annotation]:
    """At most `limit` annotations of a run, worst first: checks and cells in error, gates, failures in failed cells,
    what broke beside these, failures in cells that passed, skipped judges. What several cells share is said once. When
    some don't fit, the last one is a notice that counts them.

    directory: what the specs' paths are relative to. workspace: what paths of annotations are relative to. issued:
    how many of each level this step has made already, since they count against what the runner keeps.
    """
    groups: dict[tuple[str, str, int], list[_Finding]] = {}
    for spec in run.specs:
        file = repository_path(spec.path, directory, workspace)
        for cell in spec.cells:
            for finding in _findings(spec, cell, file):
                groups.setdefault(finding.key, []).append(finding)
    ranked = sorted(groups.values(), key=lambda found: (found[0].severity, -found[0].weight, -len(found)))
    cells = {spec.id: len(spec.cells) for spec in run.specs}
    return _fit([_merge(found, cells[found[0].key[0]]) for found in ranked], limit, issued or {})


def annotations_of_spec_error(
    error: SpecError, *, workspace: Path, limit: int, issued: Mapping[Level, int] | None = None
) -> list[Annotation]:
    """At most `limit` annotations of what is wrong with spec files, each at its line."""
    found = [
        Annotation("error", one.sentence, "Bad spec", repository_path(one.path, workspace, workspace), one.line)
        for one in error.diagnostics
    ]
    return _fit(found, limit, issued or {})


def repository_path(path: str, directory: Path, workspace: Path) -> str:
    """A path of a spec as GitHub names files: from the top of the checkout, with slashes."""
    absolute = Path(os.path.normpath(directory / path))
    return (absolute.relative_to(workspace) if absolute.is_relative_to(workspace) else Path(path)).as_posix()


def _findings(spec: SpecResult, cell: CellResult, file: str) -> Iterator[_Finding]:
    explained = False
    for result in cell.invariants:
        severity = _severity(cell, result)
        if severity is None:
            continue
        explained = explained or severity <= _FAILED
        yield _Finding(
            severity=severity,
            weight=result.weight,
            key=(spec.id, result.name, severity),
            level="warning" if severity in {_PARTIAL, _SKIPPED} else "error",
            title=f"{spec.id}: {_title(severity, result)}",
            message=result.message or result.description or result.status,
            file=file,
            line=spec.positions.get(result.name),
        )
    for rule in cell.forbidden:
        if rule.violated:
            explained = True
            title = f"{spec.id}: forbidden rule {rule.rule} was violated"
            line = spec.positions.get(rule.name)
            yield _Finding(_GATE, 1.0, (spec.id, rule.rule, _GATE), "error", title, rule.details or title, file, line)
    if cell.verdict != "pass" and not explained:
        severity = _BROKEN if cell.verdict == "error" else _FAILED
        reason = cell.error or cell_reason(cell)
        title = f"{spec.id}: {'could not be graded' if cell.verdict == 'error' else 'failed'}"
        yield _Finding(severity, 0.0, (spec.id, reason, severity), "error", title, reason, file, None)


def _severity(cell: CellResult, result: InvariantResult) -> int | None:
    if result.status == "error":
        return _BROKEN if cell.verdict == "error" else _BROKEN_BESIDE
    if result.disqualified:
        return _GATE
    if result.status == "fail":
        return _PARTIAL if cell.verdict == "pass" else _FAILED
    if result.status == "skip" and result.type in _JUDGES:
        return _SKIPPED
    return None


def _title(severity: int, result: InvariantResult) -> str:
    if severity in {_BROKEN, _BROKEN_BESIDE}:
        return f"check {result.name} broke"
    if severity == _GATE:
        return f"gate {result.name} failed"
    if severity == _SKIPPED:
        return f"judge {result.name} was skipped"
    return f"check {result.name} failed"


def _merge(found: list[_Finding], cells: int) -> Annotation:
    first = found[0]
    message = first.message
    if cells > 1:
        message += f"\n(in {len(found)} of {cells} cells)"
    return Annotation(first.level, message, first.title, first.file, first.line)


def _fit(annotations: list[Annotation], limit: int, issued: Mapping[Level, int]) -> list[Annotation]:
    if limit <= 0:
        return []
    kept = _within_levels(annotations, issued)
    if len(kept) == len(annotations) <= limit:
        return kept
    kept = kept[: limit - 1]
    more = len(annotations) - len(kept)
    return [*kept, Annotation("notice", f"{more} more in the summary", "Keystone")]


def _within_levels(annotations: list[Annotation], issued: Mapping[Level, int]) -> list[Annotation]:
    """Those that the runner keeps, one place of each level left for what is still to be said about reporting."""
    seen = Counter(issued)
    kept = []
    for annotation in annotations:
        seen[annotation.level] += 1
        if seen[annotation.level] < MAX_OF_LEVEL:
            kept.append(annotation)
    return kept
