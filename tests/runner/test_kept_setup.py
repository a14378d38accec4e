"""What is kept of a setup for later cells, and who waits for whom."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from keystone_action.errors import HarnessError
from keystone_action.runner.cell import shared_copies as kept
from keystone_action.runner.cell.shared_copies import KeptSetups, SetupSteps


class Cell:
    """A cell whose setup makes a word. log: what is done, by all cells."""

    def __init__(self, name: str, log: list[str], work: Callable[[], Awaitable[object]] | None = None) -> None:
        self.name, self.log, self.work = name, log, work
        self.begun = asyncio.Event()

    async def once(self, kept: KeptSetups, group: str = "g", inputs: str = "i") -> str:
        return await kept.once(group, lambda: inputs, SetupSteps(self.make, self.keep, self.put))

    async def make(self) -> str:
        self.log.append(f"{self.name} makes")
        self.begun.set()
        if self.work is not None:
            await self.work()
        return f"made by {self.name}"

    def keep(self, copy: Path) -> str | None:
        (copy / "file").write_text(self.name)
        return "details"

    def put(self, copy: Path, details: str, made: str) -> str:
        assert details == "details"
        self.log.append(f"{self.name} gets {(copy / 'file').read_text()}")
        return made


def kept_files(folder: Path) -> list[str]:
    return sorted(file.read_text() for file in folder.glob("*/file"))


async def together(kept: KeptSetups, first: Cell, *others: Cell) -> list[object]:
    """What they come to, or the error: the others begin when the first is at work."""
    running = asyncio.create_task(first.once(kept))
    await first.begun.wait()
    return await asyncio.gather(running, *(cell.once(kept) for cell in others), return_exceptions=True)


def test_the_others_wait_for_the_first_and_get_what_it_made(tmp_path: Path) -> None:
    async def main() -> None:
        kept, log = KeptSetups(tmp_path), []
        cells = [Cell(name, log, lambda: asyncio.sleep(0.05)) for name in "abc"]
        assert await together(kept, *cells) == ["made by a"] * 3
        assert sorted(log) == ["a makes", "b gets a", "c gets a"]
        assert await Cell("d", log).once(kept, inputs="other") == "made by d"
        assert await Cell("e", log).once(kept, group="other") == "made by e"

    asyncio.run(main())


def test_who_fails_keeps_nobody_waiting_and_each_tells_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        kept, log, met = KeptSetups(tmp_path), [], asyncio.Event()

        async def fail_first() -> None:
            await asyncio.sleep(0.05)
            raise HarnessError("of a")

        async def fail_later() -> None:
            if sum("makes" in line for line in log) == 3:
                met.set()
            await asyncio.wait_for(met.wait(), 10)  # the two that waited are at work at once
            raise HarnessError("of another")

        works = [fail_first, fail_later, fail_later]
        cells = [Cell(name, log, work) for name, work in zip("abc", works, strict=True)]
        ended = await together(kept, *cells)
        assert [getattr(error, "message", error) for error in ended] == ["of a", "of another", "of another"]
        assert await Cell("d", log).once(kept) == "made by d"
        assert kept_files(tmp_path) == []

    asyncio.run(main())


def test_when_the_first_is_cancelled_the_next_takes_its_place(tmp_path: Path) -> None:
    async def main() -> None:
        kept, log, forever = KeptSetups(tmp_path), [], asyncio.Event()
        a = Cell("a", log, forever.wait)
        first = asyncio.create_task(a.once(kept))
        await a.begun.wait()
        others = [asyncio.create_task(Cell(name, log).once(kept)) for name in "bc"]
        await asyncio.sleep(0.05)
        others[0].cancel()  # one that waits may go as well
        first.cancel()
        assert await others[1] == "made by c"
        assert await Cell("d", log).once(kept) == "made by c"
        assert log == ["a makes", "c makes", "d gets c"]

    asyncio.run(main())


@pytest.mark.parametrize("problem", [None, OSError(28, "No space left on device"), HarnessError("too many files")])
def test_what_can_not_be_kept_is_made_by_each_and_leaves_nothing(problem: Exception | None, tmp_path: Path) -> None:
    class Unkept(Cell):
        def keep(self, copy: Path) -> str | None:
            super().keep(copy)
            if problem is not None:
                raise problem
            return None

    async def main() -> None:
        kept, log = KeptSetups(tmp_path), []
        for name in "abc":
            assert await Unkept(name, log).once(kept) == f"made by {name}"
        assert kept_files(tmp_path) == []
        assert await Cell("d", log).once(kept, group="other") == "made by d"

    asyncio.run(main())


def test_a_copy_that_fails_is_an_error_of_that_cell_alone(tmp_path: Path) -> None:
    class Full(Cell):
        def put(self, copy: Path, details: str, made: str) -> str:
            raise OSError(28, "No space left on device")

    async def main() -> None:
        kept, log = KeptSetups(tmp_path), []
        await Cell("a", log).once(kept)
        with pytest.raises(HarnessError, match=r"setup: .*No space left on device"):
            await Full("b", log).once(kept)
        assert await Cell("c", log).once(kept) == "made by a"

    asyncio.run(main())


def test_the_oldest_go_when_there_are_too_many(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "KEPT_AT_MOST", 2)

    async def main() -> None:
        kept, log = KeptSetups(tmp_path), []
        for name in "abcd":
            await Cell(name, log).once(kept, inputs=name)
        assert kept_files(tmp_path) == ["c", "d"]
        assert await Cell("e", log).once(kept, inputs="d") == "made by d"
        assert await Cell("f", log).once(kept, inputs="a") == "made by f"

    asyncio.run(main())
