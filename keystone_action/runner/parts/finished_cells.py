"""Finished cells on their way to the disk: their lines are written while the next cells get ready.

No cell is announced before its line is there, and no agent starts while the line of a cell that finished before is not:
an agent may take hours, and the machine may stop meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import anyio

from keystone_action.runner.journal.entries import JournalEntry
from keystone_action.runner.journal.journal import Journal
from keystone_action.scoring.results import CellResult

if TYPE_CHECKING:
    from keystone_action.spec.plan import Cell

_MOST_WAITING = 256
"""Finished cells that are held at a time; a disk that is slower than the cells holds up the cells then."""


class FinishedCells:
    """announce: told of each cell, in the order of their lines, once the line is on the disk."""

    def __init__(self, journal: Journal, announce: Callable[[Cell, CellResult], None]) -> None:
        self._journal, self._announce = journal, announce
        self._waiting: list[tuple[Cell, JournalEntry]] = []
        self._came = anyio.Event()
        self._written = anyio.Event()
        self._closing = False
        self._added = self._done = 0

    async def add(self, cell: Cell, entry: JournalEntry) -> None:
        """Take over a cell: from here on its line will be written, also when the caller is cancelled. Returns once
        there is room for the next."""
        self._waiting.append((cell, entry))
        self._added += 1
        self._came.set()
        while len(self._waiting) >= _MOST_WAITING:
            await self._written.wait()

    async def written(self) -> None:
        """Returns once every cell that was added before is on the disk and announced."""
        added = self._added
        while self._done < added:
            await self._written.wait()

    def close(self) -> None:
        """No further cell will come: what waits is written at once, and then `run` returns."""
        self._closing = True
        self._came.set()

    async def run(self) -> None:
        """Write until `close`, also when the run is being cancelled: a finished cell is kept. Raises OutputError."""
        with anyio.CancelScope(shield=True):
            while self._waiting or not self._closing:
                await self._came.wait()
                if self._waiting:
                    await self._write()

    async def _write(self) -> None:
        cells, self._waiting = self._waiting, []
        if not self._closing:
            self._came = anyio.Event()
        kept = await self._journal.add_all([entry for _, entry in cells])
        for (cell, _), result in zip(cells, kept, strict=True):
            self._announce(cell, result)
        self._done += len(cells)
        self._written.set()
        self._written = anyio.Event()
