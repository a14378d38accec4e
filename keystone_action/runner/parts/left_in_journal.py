"""Finished cells without their long texts, which stay in the journal until a report asks for them.

What an agent prints and what checks found may come to a hundred kilobytes a cell. Held by the results of every cell,
that would make this process grow for as long as the run goes on. The journal has all of it, on the disk, before a cell
is announced: a long text is read from there, and only while somebody looks at it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from keystone_action.errors import OutputError
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult

SHORT_LINE = 4096
"""Bytes of a cell's line; the cell of a shorter one is held whole."""
_SHORT_TEXT = 512


class JournalText:
    """The journal, to be read after it was closed, even if its name is gone. descriptor: copied."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self._path = path
        self._descriptor = os.dup(descriptor)

    def __del__(self) -> None:
        os.close(self._descriptor)

    def document(self, start: int, length: int) -> dict[str, Any]:
        """The line that starts there. Raises OutputError when it is not what was written."""
        try:
            document: dict[str, Any] = json.loads(os.pread(self._descriptor, length, start))
        except (OSError, ValueError) as error:
            raise OutputError(f"{self._path} was changed after the run: its results can't be read again") from error
        return document


@dataclass(frozen=True, slots=True)
class Line:
    """Where the line of a cell is."""

    journal: JournalText
    start: int
    length: int

    def document(self) -> dict[str, Any]:
        """What it says."""
        return self.journal.document(self.start, self.length)


class LongAgentResult(AgentResult):
    """An agent's result whose `output` and `stderr` are in the journal."""

    __slots__ = ("_line",)
    _line: Line

    def __init__(self, whole: AgentResult, line: Line) -> None:
        _copy(whole, self, but=("output", "stderr"))
        object.__setattr__(self, "_line", line)

    __hash__ = AgentResult.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AgentResult) and _values(self) == _values(other)

    @property
    def output(self) -> str:
        """Read anew each time."""
        return str(self._line.document()["agent"]["output"])

    @property
    def stderr(self) -> str:
        """Read anew each time."""
        return str(self._line.document()["agent"]["stderr"])


class LongInvariantResult(InvariantResult):
    """A check's result whose `details` are in the journal. number: among the cell's checks."""

    __slots__ = ("_line", "_number")
    _line: Line
    _number: int

    def __init__(self, whole: InvariantResult, line: Line, number: int) -> None:
        _copy(whole, self, but=("details",))
        object.__setattr__(self, "_line", line)
        object.__setattr__(self, "_number", number)

    __hash__ = InvariantResult.__hash__

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InvariantResult) and _values(self) == _values(other)

    @property
    def details(self) -> dict[str, Any]:
        """Read anew each time."""
        found: dict[str, Any] = self._line.document()["invariants"][self._number]["details"]
        return found


def without_long_texts(cell: CellResult, line: Line) -> CellResult:
    """Reads like the cell itself. line: where the journal has it."""
    if line.length <= SHORT_LINE:
        return cell
    agent = cell.agent
    if agent is not None and len(agent.output) + len(agent.stderr) > _SHORT_TEXT:
        agent = LongAgentResult(agent, line)
    document = line.document()
    checks = tuple(
        LongInvariantResult(check, line, number) if len(json.dumps(found["details"])) > _SHORT_TEXT else check
        for number, (check, found) in enumerate(zip(cell.invariants, document["invariants"], strict=True))
    )
    return replace(cell, agent=agent, invariants=checks)


def _copy(whole: AgentResult | InvariantResult, to: object, *, but: Iterable[str]) -> None:
    for one in fields(whole):
        if one.name not in but:
            object.__setattr__(to, one.name, getattr(whole, one.name))


def _values(result: AgentResult | InvariantResult) -> list[Any]:
    return [getattr(result, one.name) for one in fields(result)]
