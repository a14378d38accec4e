"""Commands in containers, as every caller of a sandbox expects them to go; with mounts and with copies."""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path
from typing import Any

import pytest
from support.docker_world import HostOnly, fresh, in_shell, run_bounded, shell, world

from keystone_action.errors import SandboxError
from keystone_action.files.copies import give_to_owner
from keystone_action.sandbox.containers.sandboxes import start_docker
from keystone_action.sandbox.containers.transfer import CopiedDirectory, MountedDirectory
from keystone_action.system.command import Command, CommandLimits

pytestmark = pytest.mark.docker
MODES = pytest.mark.parametrize("mode", ["bind", "copy"])


def test_streams_and_exit_code_come_back(engine: Any) -> None:
    done = in_shell(engine, "echo out; echo err >&2; exit 3")
    assert (done.exit_code, done.signal, done.timed_out, done.limit, done.not_found) == (3, None, False, None, False)
    assert (done.stdout.text(), done.stderr.text()) == ("out\n", "err\n")


def test_a_signal_is_no_exit_code(engine: Any) -> None:
    done = in_shell(engine, "kill -SEGV $$")
    assert (done.exit_code, done.signal, done.shell_code) == (None, 11, 139)


def test_programs_that_can_not_be_started(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (_, sandbox):
            missing = await sandbox.run(Command(("no-such-program", "x")))
            assert (missing.exit_code, missing.not_found) == (127, True)
            assert "no-such-program" in missing.stderr.text()
            with_input = await sandbox.run(Command(("no-such-program",), stdin=b"x"))
            assert (with_input.exit_code, with_input.not_found) == (127, True)
            own = await sandbox.run(shell("exit 127"))
            assert (own.exit_code, own.not_found) == (127, False)
            closed = await sandbox.run(Command(("/etc/passwd",)))
            assert (closed.exit_code, closed.not_found) == (126, True)
            nowhere = await sandbox.run(Command(("/no/such/program",)))
            assert (nowhere.exit_code, nowhere.not_found) == (127, True)

    run_bounded(main)


def test_what_is_no_command_is_refused(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (_, sandbox):
            for command in (Command(()), Command(("a\0b",)), Command(("true",), env={"A=B": "c"})):
                with pytest.raises(SandboxError, match="not a"):
                    await sandbox.run(command)

    run_bounded(main)


@pytest.mark.parametrize(("mode", "size"), [("bind", 3_000_000), ("copy", 1)])
def test_standard_input_arrives_whole_and_ends(engine: Any, mode: str, size: int) -> None:
    data = os.urandom(size)
    done = in_shell(engine, "sha256sum; ls -l /.keystone-stdin | cut -c1-10", mode=mode, stdin=data)
    assert done.stdout.text() == f"{hashlib.sha256(data).hexdigest()}  -\n-r--r--r--\n"


def test_without_input_there_is_none(engine: Any) -> None:
    assert in_shell(engine, "cat; echo end").stdout.text() == "end\n"


def test_a_time_limit_ends_it(engine: Any) -> None:
    done = in_shell(engine, "echo before; sleep 600 & sleep 600", timeout=2)
    assert (done.exit_code, done.signal, done.timed_out) == (None, 9, True)
    assert done.stdout.text() == "before\n"


def test_a_time_limit_ends_what_never_stops_talking(engine: Any) -> None:
    done = in_shell(engine, "yes", timeout=1)
    assert done.timed_out
    assert done.stdout.total > 0


def test_hundreds_of_megabytes_of_output_are_counted_not_held(engine: Any) -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = in_shell(engine, "echo first; head -c 200M /dev/zero; echo last; echo quiet >&2")
    assert done.stdout.total == (200 << 20) + len("first\nlast\n")
    assert done.stdout.head.startswith(b"first\n")
    assert done.stdout.tail.endswith(b"last\n")
    assert done.stderr.text() == "quiet\n"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100 << 10


@MODES
def test_the_environment_is_what_it_was_given(engine: Any, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_TOKEN", "stolen")
    monkeypatch.setenv("HTTP_PROXY", "http://user:password@proxy")

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            sandbox = await fresh(provider, environment={"A": "1", "B": "2"})
            done = await sandbox.run(Command(("env", "-0"), env={"B": "three\nlines", "É": "ü"}))
            found = dict(pair.split("=", 1) for pair in done.stdout.text().split("\0") if pair)
            own = {key: found.pop(key) for key in ("HOME", "TMPDIR", "LANG", "PATH", "HOSTNAME")}
            assert own["LANG"] == "C.UTF-8"
            assert own["PATH"].startswith("/usr/local/sbin:")
            image = dict(pair.split("=", 1) for pair in engine.images.get(provider.image.name).attrs["Config"]["Env"])
            assert found == {"A": "1", "B": "three\nlines", "É": "ü"} | {k: v for k, v in image.items() if k != "PATH"}

    run_bounded(main)


@MODES
def test_paths_are_the_same_inside_and_last_from_run_to_run(engine: Any, mode: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            code = provider.engine.root / "agent code"
            code.mkdir()
            (code / "main.py").write_text("print('from the agent')")
            sandbox = await fresh(provider, readable=[code])
            assert sandbox.workspace_inside == str(sandbox.workspace)
            assert isinstance(sandbox.transfer, MountedDirectory if mode == "bind" else CopiedDirectory)
            (sandbox.workspace / "sub").mkdir()
            give_to_owner(sandbox.workspace, sandbox.workspace / "sub")
            (sandbox.workspace / "given").write_text("ours")
            done = await sandbox.run(
                shell(
                    "pwd; cat ../given; echo made >new; echo h >$HOME/h; echo t >$TMPDIR/t; echo gone >/tmp/g",
                    cwd="sub",
                )
            )
            assert (done.stdout.text(), done.stderr.text()) == (f"{sandbox.workspace}/sub\nours", "")
            assert (sandbox.workspace / "sub" / "new").read_text() == "made\n"
            (sandbox.workspace / "given").write_text("changed by us")
            done = await sandbox.run(
                shell(f"cat /workspace/given $HOME/h $TMPDIR/t; ls /tmp/g; python3 '{code}/main.py'; touch '{code}/x'")
            )
            assert done.stdout.text() == "changed by ush\nt\nfrom the agent\n"
            assert "/tmp/g" in done.stderr.text()
            assert not (code / "x").exists()
            assert (await sandbox.run(shell("readlink /workspace"))).stdout.text().strip() == str(sandbox.workspace)

    run_bounded(main)


@MODES
def test_files_come_back_ours_and_as_they_were(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (_, sandbox):
            script = r"""
                echo x >plain; ln plain same; ln -s /etc/shadow outside; ln -s plain inside; mkfifo fifo
                mkdir -p 'odd "name'; printf y >"$(printf 'odd "name/\377\001\n')"; echo s >closed; chmod 0 closed
                printf '#!/bin/sh\n' >run; chmod 750 run; mkdir dir; chmod 0 dir; chmod u+s run
                chmod 751 .
            """
            done = await sandbox.run(shell(script))
            assert done.stderr.text() == ""
            again = await sandbox.run(
                shell("stat -c '%A %h %N' plain outside inside fifo run dir; chmod 600 closed; cat closed")
            )
            assert again.stdout.text().splitlines()[0] == "-rw-r--r-- 2 'plain'"
            assert again.stdout.text().endswith("s\n")
            await sandbox.close()
            owner = sandbox.workspace.stat()
            assert owner.st_uid == os.geteuid()
            assert owner.st_mode & 0o7777 == 0o751
            names = []
            for folder, folders, files in os.walk(os.fsencode(sandbox.workspace)):
                names += files
                for name in (*folders, *files):
                    status = os.lstat(folder + b"/" + name)
                    assert (status.st_uid, status.st_gid) == (owner.st_uid, owner.st_gid), name
                    assert not status.st_mode & 0o6000, name
            assert (sandbox.workspace / "outside").readlink() == Path("/etc/shadow")
            assert (sandbox.workspace / "same").stat().st_nlink == 2
            assert b"\xff\x01" in names

    run_bounded(main)


@MODES
def test_very_many_files_survive(engine: Any, mode: str) -> None:
    """10,000 where they are mounted, by names that no argument list holds; copies take the engine minutes of its disk's
    time, so fewer there."""
    folders = 20 if mode == "bind" else 5
    names = [f"f{number}{'-' * 240}" for number in range(500)]

    async def main() -> None:
        async with world(engine, mode=mode) as (provider, _):
            workspace = provider.engine.root / "many files"
            for number in range(folders):
                (workspace / f"d{number}").mkdir(parents=True)
                for name in names:
                    (workspace / f"d{number}" / name).write_text(f"{number} {name}")
            sandbox = await provider.open(workspace, limits=CommandLimits())
            change = f"for d in d*; do echo changed >$d/{names[7]}; done"
            done = await sandbox.run(shell(f"find . -type f | wc -l; {change}"))
            assert done.stdout.text().strip() == str(folders * 500)
            await sandbox.close()
            found = list(sandbox.workspace.glob("*/*"))
            assert len(found) == folders * 500
            assert (sandbox.workspace / "d4" / names[7]).read_text() == "changed\n"
            assert (sandbox.workspace / "d4" / names[8]).read_text() == f"4 {names[8]}"

    run_bounded(main)


def test_programs_are_found_where_the_user_has_them(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (provider, _):
            tools = provider.engine.root / "tools"
            (tools / "bin").mkdir(parents=True)
            (tools / "bin" / "linked").symlink_to("/usr/bin/python3")
            (tools / "bin" / "nowhere").symlink_to("/usr/bin/no-such-program")
            (tools / "bin" / "own").write_text("#!/bin/sh\n")
            (tools / "bin" / "own").chmod(0o755)
            path = f"{tools}/bin:/opt/nothing:{provider.image.search_path}"
            sandbox = await fresh(provider, readable=[tools], environment={"PATH": path})
            assert sandbox.which("python3") == "/usr/bin/python3"
            assert sandbox.which("sh") == "/usr/bin/sh"
            assert sandbox.which("own") == f"{tools}/bin/own"
            assert sandbox.which("linked") == f"{tools}/bin/linked"
            assert sandbox.which("nowhere") is None
            assert sandbox.which("no-such-program") is None
            assert sandbox.which("/usr/bin/python3") == "/usr/bin/python3"
            assert sandbox.which("/etc/passwd") is None
            assert sandbox.which("./tool") is None
            (sandbox.workspace / "tool").write_text("#!/bin/sh\n")
            (sandbox.workspace / "tool").chmod(0o755)
            assert sandbox.which("./tool") == str(sandbox.workspace / "tool")

    run_bounded(main)


@MODES
def test_root_is_for_setup_and_leaves_nothing_to_root(engine: Any, mode: str) -> None:
    async def main() -> None:
        async with world(engine, mode=mode) as (_, sandbox):
            done = await sandbox.run(shell("id -u; mkdir by; echo x >by/root; chmod 600 by/root", as_root=True))
            assert (done.exit_code, done.stdout.text()) == (0, "0\n")
            done = await sandbox.run(shell("cat by/root; echo y >>by/root; id -u"))
            assert done.stdout.text().startswith("x\n")
            assert done.stdout.text() != "x\n0\n"
            assert done.exit_code == 0

    run_bounded(main)


def test_a_directory_that_is_not_there_is_said(engine: Any) -> None:
    async def main() -> None:
        async with world(engine) as (_, sandbox):
            done = await sandbox.run(Command(("true",), cwd="no/such"))
            assert (done.exit_code, done.not_found) == (126, False)
            assert "no/such" in done.stderr.text()

    run_bounded(main)


def test_authors_scripts_run_on_the_host(engine: Any, tmp_path: Path) -> None:
    host = HostOnly()

    async def main() -> None:
        async with world(engine, host=host) as (provider, _):
            await provider.open_host(tmp_path, limits=CommandLimits())

    run_bounded(main)
    assert host.asked == [tmp_path]


def test_an_image_that_is_not_there(engine: Any, tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(SandboxError, match="the image keystone-no-such:1 is not on the Docker engine") as caught:
            await start_docker(
                image="keystone-no-such:1", run_id="test-none", root=tmp_path, host=HostOnly(), client=engine
            )
        assert "docker pull keystone-no-such:1" in caught.value.help

    run_bounded(main)


def test_an_image_without_a_shell(engine: Any, tmp_path: Path) -> None:
    import io
    import tarfile

    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        archive.addfile(tarfile.TarInfo("only-a-file"))
    tag = uuid.uuid4().hex
    engine.api.import_image_from_data(data.getvalue(), repository="keystone-test-empty", tag=tag)

    async def main() -> None:
        with pytest.raises(SandboxError, match="has no `sh`"):
            await start_docker(
                image=f"keystone-test-empty:{tag}", run_id="test-empty", root=tmp_path, host=HostOnly(), client=engine
            )

    try:
        run_bounded(main)
    finally:
        engine.api.remove_image(f"keystone-test-empty:{tag}")
