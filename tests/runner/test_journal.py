"""The journal: what is announced is on the disk, what a crash cut does no harm, and what others did to it is told."""

from __future__ import annotations

import errno
import json
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from support.attacks import honest, hostile
from support.shard_runs import cell

from keystone_action.errors import OutputError, UsageError
from keystone_action.runner.journal.entries import JournalContent, JournalEntry, identity_line, read_journal
from keystone_action.runner.journal.identity import Identity
from keystone_action.runner.journal.journal import Journal
from keystone_action.scoring.results import SandboxInfo

IDENTITY = Identity({"spec": {"spec": "0" * 64}}, {"spec": {"file": {"check.sh": "1" * 64}}})
SANDBOX = SandboxInfo("process", ("user",), "watched", ("no Landlock",))


def entry(number: int) -> JournalEntry:
    one = replace(cell("spec", "one", number), params={"text": "zeile\nzwei ü"})
    return JournalEntry("spec", "0" * 64, one, SANDBOX)


async def write(directory: Path, numbers: object, *, resume: bool = False) -> None:
    async with Journal(directory, resume=resume) as journal, anyio.create_task_group() as group:
        if resume:
            journal.earlier()
        else:
            journal.say(IDENTITY, "the run")
        for number in numbers:  # type: ignore[attr-defined]
            group.start_soon(journal.add_all, [entry(number)])


async def resumed(directory: Path) -> JournalContent:
    async with Journal(directory, resume=True) as journal:
        return journal.earlier()


def written(directory: Path, numbers: object = range(2)) -> Path:
    anyio.run(write, directory, numbers)
    return directory / "journal.jsonl"


def test_what_is_added_is_read_again(tmp_path: Path) -> None:
    written(tmp_path, range(50))
    found = read_journal(tmp_path)
    assert sorted(found.entries, key=lambda one: one.cell.replica) == [entry(n) for n in range(50)]
    assert (found.identity, found.run_id, found.cut) == (IDENTITY, "the run", False)


def test_the_identity_comes_first_and_is_there_without_a_cell(tmp_path: Path) -> None:
    path = written(tmp_path, [])
    assert path.read_bytes() == identity_line(IDENTITY, "the run")


def test_more_of_the_same_run_is_read_as_one_identity(tmp_path: Path) -> None:
    path = written(tmp_path)
    image = {"image": {"python:3": "sha256:1"}}
    path.write_bytes(path.read_bytes() + identity_line(Identity({}, {"spec": image}), "another call"))
    found = read_journal(tmp_path)
    assert found.identity == Identity(IDENTITY.run, {"spec": {**IDENTITY.specs["spec"], **image}})
    assert found.run_id == "the run"
    path.write_bytes(path.read_bytes() + identity_line(Identity({"spec": {"spec": "2" * 64}}), ""))
    with pytest.raises(UsageError, match=r"journal\.jsonl:5 contradicts.*the spec spec has changed"):
        read_journal(tmp_path)


def test_a_line_is_on_the_disk_when_add_returns(tmp_path: Path) -> None:
    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            for number in range(3):
                await journal.add_all([entry(number)])
                assert len(read_journal(tmp_path).entries) == number + 1

    anyio.run(check)


def test_a_line_is_synced_before_add_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the system only holds in memory is lost when the machine stops."""
    synced: list[os.stat_result] = []
    fsync = os.fsync

    def seen(file: int) -> None:
        fsync(file)
        synced.append(os.fstat(file))

    monkeypatch.setattr(os, "fsync", seen)

    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            for number in range(3):
                await journal.add_all([entry(number)])
                now = (tmp_path / "journal.jsonl").stat()
                assert (synced[-1].st_ino, synced[-1].st_size) == (now.st_ino, now.st_size)

    anyio.run(check)


def test_a_disk_that_can_not_sync_is_an_output_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            await journal.add_all([entry(0)])
            monkeypatch.setattr(os, "fsync", broken)
            with pytest.raises(OutputError, match="Input/output error"):
                await journal.add_all([entry(1)])

    anyio.run(check)
    assert [one.cell.replica for one in read_journal(tmp_path).entries] == [0]


def test_results_are_never_mixed(tmp_path: Path) -> None:
    directory = tmp_path / "my results"
    directory.mkdir()
    written(directory)
    with pytest.raises(UsageError, match="already holds results") as refused:
        Journal(directory)
    assert refused.value.help is not None
    assert refused.value.help.endswith(f"--resume '{directory}'")


def test_two_runs_can_not_resume_at_once(tmp_path: Path) -> None:
    async def check() -> None:
        async with Journal(tmp_path):
            with pytest.raises(UsageError, match="another run"):
                Journal(tmp_path, resume=True)

    anyio.run(check)


def test_a_last_line_that_a_crash_cut_is_left_out_and_cut_off(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes() + b'{"spec": "spec", "sha')
    assert (len(read_journal(tmp_path).entries), read_journal(tmp_path).cut) == (2, True)
    anyio.run(lambda: write(tmp_path, [2], resume=True))
    assert sorted(one.cell.replica for one in read_journal(tmp_path).entries) == [0, 1, 2]
    assert not read_journal(tmp_path).cut


def test_a_run_killed_before_its_first_line_left_nothing_to_go_by(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").write_bytes(identity_line(IDENTITY, "the run")[:40])
    assert anyio.run(resumed, tmp_path) == JournalContent(None, "", (), 0, cut=True)
    assert (tmp_path / "journal.jsonl").read_bytes() == b""


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "it is not JSON (Expecting value)"),
        (b"\xff", "it is not UTF-8"),
        (b"7", "expected a mapping, found the number 7"),
        (b"null", "expected a mapping, found nothing"),
        (b"[]", "expected a mapping, found a list"),
        (b"{}", "the key 'spec' is missing"),
        (b'{"spec": "a", "sha256": "b"}', "the key 'sandbox' is missing"),
        (b'{"spec": "a", "sha256": "b", "sandbox": 7}', "can't read what isolated a cell"),
        (b'{"spec": 1', "it is not JSON"),
        (b'{"identity": 1', "it is not JSON"),
        (b'{"identity": 1}', "not the identity of a run"),
        (b"[" * 100_000, "it is nested too deep"),
    ],
)
def test_anything_else_is_refused_with_its_line(tmp_path: Path, line: bytes, why: str) -> None:
    path = written(tmp_path, [0])
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UsageError, match=r"journal\.jsonl:3 is not a line of a journal: ") as caught:
        read_journal(tmp_path)
    assert why in caught.value.message
    assert "object has no attribute" not in caught.value.sentences


def test_no_journal(tmp_path: Path) -> None:
    for place in (tmp_path / "nowhere", tmp_path):
        with pytest.raises(UsageError, match="can't be read"):
            read_journal(place)
        with pytest.raises(UsageError, match="can't be read"):
            Journal(place, resume=True)
    assert list(tmp_path.iterdir()) == []


@hostile("journal", "a FIFO or a link in its place", held_by="opened without following or waiting", sandbox="none")
@pytest.mark.parametrize("kind", ["fifo", "link", "directory"])
def test_nothing_but_a_plain_file_is_a_journal(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "journal.jsonl"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        path.symlink_to(written(elsewhere))
    else:
        path.mkdir()
    for call in (lambda: Journal(tmp_path, resume=True), lambda: read_journal(tmp_path)):
        # A bad call, not a machine that broke.
        with pytest.raises(UsageError, match=r"journal\.jsonl"):
            call()


@honest("journal", "a FIFO or a link in its place", sandbox="none")
def test_a_plain_journal_is_resumed(tmp_path: Path) -> None:
    written(tmp_path)
    assert len(anyio.run(resumed, tmp_path).entries) == 2


def removed(path: Path) -> None:
    path.unlink()


def replaced(path: Path) -> None:
    copy = path.with_name("copy")
    copy.write_bytes(path.read_bytes())
    copy.rename(path)


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 3)


def added_to(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\n")


def written_over(path: Path) -> None:
    content = path.read_bytes()
    with path.open("r+b") as file:
        file.write(content.replace(b'"pass"', b'"fail"'))


MEDDLED = [(removed, "removed"), (replaced, "replaced"), (cut, "cut"), (added_to, "written to by another program")]


@hostile("journal", "cut or replaced while the run goes on", held_by="looked at after each group", sandbox="none")
@pytest.mark.parametrize(("meddle", "how"), MEDDLED)
def test_what_others_do_to_it_is_noticed_with_the_next_cell(
    tmp_path: Path, meddle: Callable[[Path], None], how: str
) -> None:
    async def check() -> None:
        async with Journal(tmp_path) as journal:
            await journal.add_all([entry(0)])
            meddle(tmp_path / "journal.jsonl")
            for number in (1, 2):  # from then on nothing is believed any more
                with pytest.raises(OutputError, match=f"was {how} while the run went on"):
                    await journal.add_all([entry(number)])

    anyio.run(check)


@hostile("journal", "changed after the last cell", held_by="compared byte by byte at the end", sandbox="none")
@pytest.mark.parametrize(("meddle", "how"), [*MEDDLED, (written_over, "changed")])
def test_what_others_do_to_it_at_last_is_noticed_at_the_end(
    tmp_path: Path, meddle: Callable[[Path], None], how: str
) -> None:
    async def check() -> None:
        async with Journal(tmp_path) as journal:
            await journal.add_all([entry(0)])
            meddle(tmp_path / "journal.jsonl")

    with pytest.raises(OutputError, match=f"was {how} while the run went on"):
        anyio.run(check)


@honest("journal", "cut or replaced while the run goes on", "changed after the last cell", sandbox="none")
def test_whoever_only_reads_it_does_no_harm(tmp_path: Path) -> None:
    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            await journal.add_all([entry(0)])
            (tmp_path / "copy").write_bytes((tmp_path / "journal.jsonl").read_bytes())
            (tmp_path / "journal.jsonl").chmod(0o600)
            await journal.add_all([entry(1)])

    anyio.run(check)
    anyio.run(lambda: write(tmp_path, [2], resume=True))
    assert len(read_journal(tmp_path).entries) == 3


def fill_the_disk(journal: Journal) -> None:
    """From here on the journal's descriptor takes no byte, with the very error that a full disk gives."""
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, journal._file)
    os.close(full)


def test_full_disk_is_an_output_error(tmp_path: Path) -> None:
    async def check() -> None:
        async with Journal(tmp_path) as journal:
            fill_the_disk(journal)
            with pytest.raises(OutputError, match="can't be written") as caught:
                await journal.add_all([entry(0)])
        assert "the disk is full" in caught.value.help

    anyio.run(check)


def test_every_cell_of_a_group_that_could_not_be_written_is_told(tmp_path: Path) -> None:
    told: list[int] = []

    async def add(journal: Journal, number: int) -> None:
        try:
            await journal.add_all([entry(number)])
        except OutputError:
            told.append(number)

    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            await journal.add_all([entry(0)])
            fill_the_disk(journal)
            async with anyio.create_task_group() as group:
                for number in range(1, 6):
                    group.start_soon(add, journal, number)
            await add(journal, 6)

    anyio.run(check)
    assert sorted(told) == [1, 2, 3, 4, 5, 6]
    assert len(read_journal(tmp_path).entries) == 1


def test_a_cell_whose_group_was_written_is_not_told_of_a_later_one(tmp_path: Path) -> None:
    outcome: dict[int, bool] = {}

    async def add(journal: Journal, number: int) -> None:
        try:
            await journal.add_all([entry(number)])
        except OutputError:
            outcome[number] = False
        else:
            outcome[number] = True

    async def check() -> None:
        async with Journal(tmp_path) as journal:
            journal.say(IDENTITY, "the run")
            original, writing, next_group = journal._write, threading.Event(), threading.Event()

            def write_once(lines: list[bytes]) -> None:
                writing.set()
                assert next_group.wait(60)
                original(lines)
                fill_the_disk(journal)

            journal._write = write_once  # type: ignore[method-assign]
            async with anyio.create_task_group() as group:
                group.start_soon(add, journal, 0)
                group.start_soon(add, journal, 1)
                await anyio.to_thread.run_sync(writing.wait)
                group.start_soon(add, journal, 2)
                await anyio.lowlevel.checkpoint()
                next_group.set()

    anyio.run(check)
    assert outcome == {0: True, 1: True, 2: False}
    assert sorted(one.cell.replica for one in read_journal(tmp_path).entries) == [0, 1]


def test_half_a_line_that_a_full_disk_took_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`merge` and `--resume` read what stands there to its end."""

    def take_half(file: int, data: bytes) -> None:
        os.write(file, data[: len(data) // 2])
        raise OSError(errno.ENOSPC, "No space left on device")

    async def check() -> None:
        async with Journal(tmp_path) as journal:
            await journal.add_all([entry(0)])
            monkeypatch.setattr("keystone_action.runner.journal.journal.write_all", take_half)
            with pytest.raises(OutputError):
                await journal.add_all([entry(1)])

    anyio.run(check)
    text = (tmp_path / "journal.jsonl").read_text("utf-8")
    assert text.endswith("\n")
    assert [json.loads(line)["replica"] for line in text.splitlines()] == [0]
