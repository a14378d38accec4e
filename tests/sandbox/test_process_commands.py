"""How commands start and end in the process sandbox, and what is kept of what they print."""

# ruff: noqa: ASYNC110, ASYNC240 - the loop has nothing else to do meanwhile

from __future__ import annotations

import asyncio
import os
import select
import subprocess
import sys
from pathlib import Path

import pytest
from support.process_world import ROOT, another, in_shell, run, shell, world

from keystone_action.errors import SandboxError
from keystone_action.files.kept_output import Stream
from keystone_action.system.command import CAPTURE_HEAD, CAPTURE_TAIL, Command, CommandLimits, Completed, KeptWhole


@pytest.mark.parametrize("code", [0, 1, 3, 127, 255])
def test_exit_codes_are_the_program_s_own(code: int) -> None:
    result = in_shell(f"exit {code}")
    assert (result.exit_code, result.signal, result.not_found, result.timed_out) == (code, None, False, False)


@pytest.mark.parametrize("number", [9, 11, 15])
def test_death_by_signal(number: int) -> None:
    result = in_shell(f"kill -{number} $$")
    assert (result.exit_code, result.signal, result.shell_code) == (None, number, 128 + number)


def test_signals_have_their_usual_effect_inside() -> None:
    # What our own processes do with signals must not be inherited: exec keeps ignored ones ignored.
    result = in_shell("grep -E 'Sig(Ign|Blk)' /proc/self/status")
    assert [line.split()[1] for line in result.stdout.text().splitlines()] == ["0" * 16, "0" * 16]


def test_signals_that_our_parent_ignored_have_their_usual_effect_inside(tmp_path: Path) -> None:
    # GNU make ignores the two signals that libc keeps for itself, a shell SIGQUIT of what it starts in the background.
    script = tmp_path / "show.py"
    script.write_text(
        "import signal\nfrom support.process_world import in_shell\n"
        "signal.signal(signal.SIGQUIT, signal.SIG_IGN)\n"
        "print(in_shell('grep SigIgn /proc/self/status').stdout.text())\n"
    )
    (tmp_path / "Makefile").write_text(f"show:\n\t@{sys.executable} {script}\n")
    tests = Path(__file__).parent.parent
    environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": f"{tests / 'sandbox'}:{tests}:{tests.parent}"}
    done = subprocess.run(
        ["make", "-s", "-C", str(tmp_path), "show"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["SigIgn:", "0" * 16], done.stderr


def test_a_timeout_ends_it_and_keeps_what_it_printed() -> None:
    result = in_shell("echo before; sleep 600; echo after", timeout=2)
    assert result.timed_out
    assert (result.signal, result.stdout.text(), result.limit) == (9, "before\n", None)


def test_a_program_that_is_not_there() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            missing = await sandbox.run(Command(("no-such-program", "x")))
            assert (missing.exit_code, missing.signal, missing.not_found) == (127, None, True)
            assert "no-such-program: not found in PATH (/usr/local/sbin:" in missing.stderr.text()
            path = await sandbox.run(Command(("./no-such-file",)))
            assert (path.exit_code, path.not_found) == (127, True)
            assert path.stderr.text() == "keystone: ./no-such-file: no such program\n"
            inside = await sandbox.run(shell("no-such-program"))
            assert (inside.exit_code, inside.not_found) == (127, False)

    run(main)


def test_files_that_can_not_be_executed() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            await sandbox.run(shell("echo 'exit 0' > plain; printf '#!/no/such/thing\\n' > orphan; chmod +x orphan"))
            plain = await sandbox.run(Command(("./plain",)))
            assert (plain.exit_code, plain.not_found) == (126, True)
            assert "./plain may not be executed by this user" in plain.stderr.text()
            orphan = await sandbox.run(Command(("./orphan",)))
            assert (orphan.exit_code, orphan.not_found) == (127, True)
            assert "its interpreter does not exist" in orphan.stderr.text()
            await sandbox.run(shell("printf 'no program' > junk; chmod +x junk"))
            junk = await sandbox.run(Command(("./junk",)))
            assert (junk.exit_code, junk.not_found) == (126, False)
            assert "Exec format error" in junk.stderr.text()

    run(main)


def test_the_environment_is_exactly_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "ghs_secret")
    monkeypatch.setenv("INPUT_SPEC", "x")

    async def main() -> None:
        async with world() as (sandboxes, _):
            sandbox = await another(sandboxes, environment={"FROM_SETUP": "1", "LANG": "C"})
            result = await sandbox.run(Command(("env",), env={"OWN": "two\nlines", "FROM_SETUP": "2"}))
            home = next(line for line in result.stdout.text().splitlines() if line.startswith("HOME="))
            place, _, name = home.removeprefix("HOME=").rpartition("/")
            assert name == "home"
            assert result.stdout.text() == (
                f"HOME={place}/{name}\nTMPDIR={place}/tmp\n"
                "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin\n"
                "LANG=C\nFROM_SETUP=2\nOWN=two\nlines\n"
            )

    run(main)


def test_home_and_temporary_directory_are_writable_and_go_away() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            result = await sandbox.run(shell("touch $HOME/a $TMPDIR/b && mktemp && echo $HOME && mkdir -p $HOME/c/d"))
            assert result.exit_code == 0
            home = Path(result.stdout.text().splitlines()[-1])
            assert home.is_dir()
            await sandbox.close()
            assert not home.exists()
            assert sandbox.workspace.is_dir()

    run(main)


def test_standard_input() -> None:
    data = os.urandom(3 << 20)

    async def main() -> None:
        async with world() as (_, sandbox):
            assert (await sandbox.run(Command(("wc", "-c"), stdin=data))).stdout.text().split() == [str(len(data))]
            assert (await sandbox.run(shell("cat /dev/stdin", stdin=b"text"))).stdout.head == b"text"
            assert (await sandbox.run(Command(("wc", "-c")))).stdout.text().split() == ["0"]
            grown = await sandbox.run(shell("cat > /dev/null; echo more >&0", stdin=b"text"))
            assert grown.exit_code != 0

    run(main)


def test_output_by_the_names_of_the_streams() -> None:
    result = in_shell("echo one > /dev/stdout; echo two > /dev/stderr")
    assert (result.stdout.text(), result.stderr.text()) == ("one\n", "two\n")


def test_bytes_that_are_no_text() -> None:
    result = in_shell(r"printf 'a\377\000b'")
    assert result.stdout.head == b"a\xff\0b"
    assert result.stdout.text() == "a�\0b"


def test_a_gigabyte_costs_two_megabytes() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            talk = shell("echo begin; head -c 1000000000 /dev/zero; echo; echo end; echo done >&2")
            running = asyncio.ensure_future(sandbox.run(talk))
            peak = 0
            while not running.done():
                await asyncio.sleep(0.05)
                peak = max(peak, *map(_peak_memory, _tree(sandboxes.launcher.pid)), 0)
            result: Completed = await running
            assert result.stdout.total == 1_000_000_000 + len("begin\n\nend\n")
            assert (len(result.stdout.head), len(result.stdout.tail)) == (CAPTURE_HEAD, CAPTURE_TAIL)
            assert result.stdout.head.startswith(b"begin\n\0")
            assert result.stdout.tail.endswith(b"\0\nend\n")
            assert result.stdout.cut == result.stdout.total - CAPTURE_HEAD - CAPTURE_TAIL
            assert result.stderr.text() == "done\n"
            assert 0 < peak < 64 << 20

    run(main)


def test_all_of_stdout_goes_to_a_file_of_ours_whatever_files_the_command_may_make(tmp_path: Path) -> None:
    files = [tmp_path / "stdout", tmp_path / "stderr"]
    files[0].write_bytes(b"of an earlier attempt" * 1000)
    result = in_shell(
        "head -c 5M /dev/zero; exec >&-; yes | head -c 3M >&2",
        CommandLimits(disk=2 << 20),
        stdout_to=KeptWhole(files[0]),
        stderr_to=KeptWhole(files[1]),
    )
    assert (result.limit, result.exit_code) == (None, 0)
    assert files[0].read_bytes() == bytes(5 << 20)
    assert files[1].read_bytes() == b"y\n" * (3 << 19)


def test_a_file_gets_no_more_than_its_limit_and_is_made_above_its_size_alone(tmp_path: Path) -> None:
    files = [tmp_path / "stdout", tmp_path / "stderr"]
    command = "head -c 3M /dev/zero; head -c 2M /dev/zero >&2"
    kept = {"stdout_to": KeptWhole(files[0], limit=(5 << 19) + 1), "stderr_to": KeptWhole(files[1])}
    result = in_shell(command, **kept)
    assert files[0].read_bytes() == bytes((5 << 19) + 1)
    assert not files[1].exists()
    assert (result.stdout.total, result.stderr.total) == (3 << 20, 2 << 20)
    in_shell("echo short", stdout_to=KeptWhole(files[1], above=0))
    assert files[1].read_bytes() == b"short\n"


@pytest.mark.parametrize("place", ["/dev/full", "/nowhere/stdout"])
def test_a_file_for_stdout_that_can_not_be_written_is_our_failure(place: str) -> None:
    with pytest.raises(SandboxError, match=f"{place} can't be written: No "):
        in_shell("head -c 5M /dev/zero", stdout_to=KeptWhole(Path(place)))


def test_who_goes_on_writing_out_of_our_reach_does_not_hold_us_up() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    stream = Stream(reader, 10, 10)
    with subprocess.Popen(["yes"], stdout=writer) as endless:
        try:
            assert select.select([reader], [], [], 60)[0]
            stream.drain()
        finally:
            endless.kill()
            os.close(writer)
            os.close(reader)
    assert stream.kept.total > 0


def _tree(pid: int) -> list[int]:
    found = [pid]
    for each in found:
        children = Path(f"/proc/{each}/task/{each}/children")
        found.extend(map(int, children.read_text().split() if children.exists() else ()))
    return found


def _peak_memory(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM")), 0)


def test_directories_to_run_in() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            await sandbox.run(shell("mkdir -p a/b closed; ln -s /etc out; ln -s a in; touch file; chmod 0 closed"))
            inside = await sandbox.run(shell("pwd -P", cwd="in/b"))
            assert inside.stdout.text() == f"{sandbox.workspace_inside}/a/b\n"
            for cwd, why in (("out", "leads out of"), ("missing", "No such file"), ("../..", "leads out of")):
                result = await sandbox.run(shell("pwd", cwd=cwd))
                assert (result.exit_code, result.not_found, result.stdout.total) == (126, False, 0)
                assert why in result.stderr.text()
            assert (await sandbox.run(shell("pwd", cwd="file"))).exit_code == 126
            assert (await sandbox.run(shell("pwd", cwd="closed"))).exit_code == 126

    run(main)


def test_commands_that_make_no_sense_are_refused() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            for command in (Command(()), Command(("a\0b",)), Command(("true",), env={"A": "\0"})):
                with pytest.raises(SandboxError, match="not a command"):
                    await sandbox.run(command)
            huge = await sandbox.run(Command(("true", "x" * (1 << 20))))
            assert (huge.exit_code, huge.not_found) == (126, False)
            assert "Argument list too long" in huge.stderr.text()
            assert (await sandbox.run(Command(("true",)))).exit_code == 0

    run(main)


def test_eight_at_a_time() -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            cells = [await another(sandboxes) for _ in range(8)]

            async def each(number: int) -> str:
                text = f"echo {number} > mine; sleep 0.2; cat mine; ls | wc -l"
                return (await cells[number].run(shell(text))).stdout.text()

            assert await asyncio.gather(*map(each, range(8))) == [f"{number}\n1\n" for number in range(8)]

    run(main)


def test_two_commands_at_once_in_one_sandbox() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            server = asyncio.ensure_future(sandbox.run(shell("touch ready; sleep 600", timeout=600)))
            while not (sandbox.workspace / "ready").exists():
                await asyncio.sleep(0.01)
            # Ending what this one leaves must not end the other.
            short = await sandbox.run(shell("sleep 500 & sleep 500 & exit 4"))
            assert (short.exit_code, short.leftovers) == (4, 2)
            assert not server.done()
            await sandbox.close()
            assert (await server).signal == 9

    run(main)


def test_which_looks_with_the_eyes_of_the_sandbox() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            found = sandbox.which("sh")
            assert found is not None
            assert os.access(found, os.X_OK)
            assert sandbox.which("no-such-program") is None
            await sandbox.run(shell("echo x > tool; chmod 700 tool; mkdir bin; cp tool bin/tool2; echo > plain"))
            assert sandbox.which("./tool") == f"{sandbox.workspace}/tool"
            assert sandbox.which("./plain") is None
            assert sandbox.which("tool2") is None
            path = await another(sandboxes, environment={"PATH": f"{sandbox.workspace}/bin"})
            assert path.which("sh") is None
            assert path.which("tool2") is None  # another one's workspace

    run(main)


def test_the_author_s_own_scripts_run_as_a_user_of_their_own() -> None:
    async def main() -> None:
        async with world() as (sandboxes, agent):
            directory, shared = sandboxes.root / "copy", sandboxes.root / "checkout"
            for place in (directory, shared):
                place.mkdir(mode=0o700)
            (shared / "tool").write_text("TOOL")
            host = await sandboxes.open_host(directory, limits=CommandLimits(), shared=[shared])
            assert (host.uid is None) != ROOT
            assert not ROOT or host.uid != agent.uid
            text = f"id -u; pwd; cat; cat {shared}/tool; (echo x > {shared}/tool) 2>/dev/null; sleep 300 &"
            result = await host.run(shell(text, stdin=b"in", env={"PATH": "/usr/bin:/bin"}))
            assert result.stdout.text() == f"{host.uid or os.geteuid()}\n{directory}\ninTOOL"
            assert result.leftovers == 1
            assert (shared / "tool").read_text() == "TOOL" or sandboxes.isolation == ("none",)
            if sandboxes.isolation != ("none",):
                assert (await agent.run(shell(f"cat {shared}/tool"))).stdout.total == 0

    run(main)
