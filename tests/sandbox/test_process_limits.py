"""Memory, disk and processes are watched over the whole tree, and the command is ended at the limit."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from support.process_world import alive, in_shell, run, shell, token, world

from keystone_action.files.disk_usage import TooDeep, human, tree_size
from keystone_action.system.command import Command, CommandLimits

MIB = 1 << 20


def test_one_process_with_too_much_memory() -> None:
    # tail keeps a line without an end in memory.
    result = in_shell("head -c 2G /dev/zero | tail -n 1", CommandLimits(memory=100 * MIB))
    assert result.limit is not None
    assert result.limit.startswith("memory: ")
    assert result.limit.endswith(" MiB used, 100.0 MiB allowed")
    assert (result.signal, result.timed_out) == (9, False)


def test_many_processes_with_too_much_memory_together() -> None:
    mark = token()
    one = f"(head -c 40M /dev/zero; sleep {mark}) | tail -n 1 &"
    result = in_shell(
        f"for i in 1 2 3 4; do setsid sh -c '{one}'; done; sleep {mark}", CommandLimits(memory=120 * MIB), timeout=60
    )
    assert result.limit is not None
    assert result.limit.startswith("memory: ")
    assert alive(mark) == []


SHARED = """
import mmap, os, time
memory = mmap.mmap(-1, 60 << 20)
memory.write(b"x" * (60 << 20))
for _ in range(6):
    if os.fork() == 0:
        memory[::4096]
        time.sleep(1)
        os._exit(0)
for _ in range(6):
    os.wait()
"""


def test_shared_memory_counts_once() -> None:
    async def main() -> None:
        async with world(CommandLimits(memory=250 * MIB)) as (_, sandbox):
            result = await sandbox.run(Command((sandbox.which("python3") or "", "-c", SHARED)))
            assert (result.limit, result.exit_code) == (None, 0), result.stderr.text()

    run(main)


HOARD = "import os, time; f = os.memfd_create('x'); os.write(f, b'x' * (200 << 20)); time.sleep(100)"


def test_memory_that_no_process_has_mapped_counts_too() -> None:
    async def main() -> None:
        async with world(CommandLimits(memory=150 * MIB)) as (_, sandbox):
            result = await sandbox.run(Command((sandbox.which("python3") or "", "-c", HOARD), timeout=60))
            assert result.limit is not None
            assert result.limit.startswith("memory: ")

    run(main)


def test_one_file_too_large() -> None:
    result = in_shell("head -c 1G /dev/zero > big", CommandLimits(disk=20 * MIB))
    assert result.limit == "disk: 20.0 MiB used, 20.0 MiB allowed"


@pytest.mark.parametrize("place", [".", "$HOME", "$TMPDIR"])
def test_many_files_too_large_together(place: str) -> None:
    text = f"cd {place}; i=0; while :; do head -c 1M /dev/zero > f$i; i=$((i+1)); sleep 0.01; done"
    result = in_shell(text, CommandLimits(disk=20 * MIB), timeout=60)
    assert result.limit is not None
    assert result.limit.startswith("disk: ")
    assert result.limit.endswith(" used, 20.0 MiB allowed")


def test_files_without_a_name_count_too() -> None:
    text = "exec 3> a 4> b 5> c; rm a b c; for i in 3 4 5; do head -c 15M /dev/zero >&$i; done; sleep 100"
    result = in_shell(text, CommandLimits(disk=40 * MIB), timeout=60)
    assert result.limit is not None
    assert result.limit.startswith("disk: ")


def test_what_stays_within_its_limits_runs_on() -> None:
    text = "head -c 5M /dev/zero > f; (sleep 0.5 &); head -c 5M /dev/zero | tail -n 1 | wc -c; sleep 0.6"
    result = in_shell(text, CommandLimits(memory=500 * MIB, disk=50 * MIB, pids=50))
    assert (result.limit, result.exit_code, result.stdout.text().split()) == (None, 0, [str(5 * MIB)])


def test_a_sparse_file_counts_what_it_takes() -> None:
    result = in_shell("truncate -s 15M f; ls -s f; sleep 0.5", CommandLimits(disk=16 * MIB))
    assert (result.limit, result.exit_code) == (None, 0)


def test_too_many_processes_say_so_even_when_they_come_at_once() -> None:
    result = in_shell("exec 2>/dev/null; while :; do sleep 600 & done", CommandLimits(pids=30), timeout=60)
    assert result.limit is not None
    assert result.limit.endswith(" running, 30 allowed")


def test_limits_of_one_sandbox_do_not_bind_another() -> None:
    async def main() -> None:
        async with world(CommandLimits(disk=5 * MIB, pids=30)) as (sandboxes, small):
            write = shell("head -c 10M /dev/zero > f && sleep 0.3 && wc -c < f")
            assert (await small.run(write)).limit is not None
            for limits in (CommandLimits(), CommandLimits(disk=100 * MIB, pids=100)):
                workspace = sandboxes.root / f"other-{limits.disk}"
                workspace.mkdir()
                large = await sandboxes.open(workspace, limits=limits)
                assert (await large.run(write)).stdout.text().split() == [str(10 * MIB)]
            assert (await small.run(write)).limit is not None

    run(main)


def test_sizes_of_trees(tmp_path: Path) -> None:
    def size() -> int:
        return next(found for found in tree_size([str(tmp_path)]) if found is not None)

    empty = size()
    (tmp_path / "a").write_bytes(b"x" * 100_000)
    one = size()
    assert 100_000 <= one - empty < 200_000
    os.link(tmp_path / "a", tmp_path / "b")
    (tmp_path / "etc").symlink_to("/usr")
    os.mkfifo(tmp_path / "fifo")
    assert abs(size() - one) < 20_000
    assert next(found for found in tree_size([str(tmp_path / "missing")]) if found is not None) == 0
    deep = tmp_path
    for _ in range(510):
        deep = deep / "d"
        deep.mkdir()
    with pytest.raises(TooDeep):
        size()


def test_names_too_long_to_be_walked(tmp_path: Path) -> None:
    name = "n" * 250
    descriptor = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):
        os.mkdir(name, dir_fd=descriptor)
        below = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = below
    os.close(descriptor)
    with pytest.raises(TooDeep):
        list(tree_size([str(tmp_path)]))


def test_sizes_for_people() -> None:
    assert [human(size) for size in (0, 1023, 1024, 1536 << 10, 2 << 30, 5 << 40)] == [
        "0 bytes",
        "1023 bytes",
        "1.0 KiB",
        "1.5 MiB",
        "2.0 GiB",
        "5120.0 GiB",
    ]
