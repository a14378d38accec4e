"""The journal: what is announced is on the disk, and what a crash cut does no harm."""

from __future__ import annotations

import anyio
import pytest

from keystone_action.errors import OutputError, UsageError
from keystone_action.runner.journal import Entry, Journal, read, trim
from keystone_action.scoring.results import CellResult


def entry(number: int) -> Entry:
    return Entry(
        "spec",
        "0" * 64,
        CellResult(
            id=f"spec.r{number}",
            scenario="spec",
            params={"text": "zeile\nzwei ü"},
            replica=number,
            verdict="pass",
            composite=1.0,
            duration_s=0.5,
            error=None,
            agent=None,
            invariants=(),
        ),
    )


async def write(directory, numbers, *, resume=False):
    async with Journal(directory, resume=resume) as journal, anyio.create_task_group() as group:
        for number in numbers:
            group.start_soon(journal.add, entry(number))


def test_what_is_added_is_read_again(tmp_path):
    anyio.run(write, tmp_path, range(50))
    assert sorted(read(tmp_path), key=lambda one: one.cell.replica) == [entry(n) for n in range(50)]


def test_a_line_is_on_the_disk_when_add_returns(tmp_path):
    async def check():
        async with Journal(tmp_path) as journal:
            for number in range(3):
                await journal.add(entry(number))
                assert len(list(read(tmp_path))) == number + 1

    anyio.run(check)


def test_results_are_never_mixed(tmp_path):
    anyio.run(write, tmp_path, [0])
    with pytest.raises(UsageError, match="already holds results"):
        Journal(tmp_path)


def test_two_runs_can_not_resume_at_once(tmp_path):
    async def check():
        async with Journal(tmp_path):
            with pytest.raises(UsageError, match="another run"):
                Journal(tmp_path, resume=True)

    anyio.run(check)


def test_a_last_line_that_a_crash_cut_is_left_out_and_trimmed(tmp_path):
    anyio.run(write, tmp_path, [0, 1])
    path = tmp_path / "journal.jsonl"
    path.write_bytes(path.read_bytes() + b'{"spec": "spec", "sha')
    assert len(list(read(tmp_path))) == 2
    trim(tmp_path)
    anyio.run(lambda: write(tmp_path, [2], resume=True))
    assert [one.cell.replica for one in read(tmp_path)] == [0, 1, 2]


@pytest.mark.parametrize("line", ["nonsense", "[]", "{}", '{"spec": "a", "sha256": "b"}', '{"spec": 1'])
def test_anything_else_is_refused_with_its_line(tmp_path, line):
    anyio.run(write, tmp_path, [0])
    path = tmp_path / "journal.jsonl"
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(UsageError, match=r"journal\.jsonl:2 "):
        list(read(tmp_path))


def test_no_journal(tmp_path):
    with pytest.raises(UsageError, match="can't be read"):
        list(read(tmp_path / "nowhere"))


def test_full_disk_is_an_output_error(tmp_path):
    async def check():
        # /dev/full takes no byte: the very error that a full disk gives.
        (tmp_path / "journal.jsonl").symlink_to("/dev/full")
        async with Journal(tmp_path, resume=True) as journal:
            with pytest.raises(OutputError, match="can't be written") as caught:
                await journal.add(entry(0))
        assert "the disk is full" in caught.value.help

    anyio.run(check)
