"""Setup in the real process sandbox: files, packages, commands."""

from __future__ import annotations

import asyncio
import os
import stat
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from support.setup_server import tiny_wheel
from support.worlds import process_world

from keystone_action.errors import HarnessError
from keystone_action.runner.cell.fixtures import write_files
from keystone_action.runner.cell.python_packages import (
    PythonEnvironment,
    keep_environment,
    make_environment,
    put_environment,
)
from keystone_action.runner.cell.sandbox_setup import run_commands
from keystone_action.spec.models.task import Setup
from keystone_action.system.command import Command, CommandLimits, Completed

pytestmark = pytest.mark.sandbox


def run(document: Mapping[str, Any], directory: Path, **links: str) -> dict[str, tuple[bytes, int, int]]:
    """The files of the workspace after the setup: contents, mode, owner (by name of the file)."""

    async def main() -> dict[str, tuple[bytes, int, int]]:
        async with process_world() as world:
            sandbox = await world.open()
            for name, target in links.items():
                (world.workspace / name).symlink_to(target)
            setup = Setup.model_validate(dict(document))
            await write_files(setup.files, world.workspace, directory)
            environment = {"GIVEN": "given", **setup.env}
            await run_commands(setup.commands, sandbox=sandbox, environment=environment, timeout=20)
            owner = world.workspace.stat().st_uid
            found = {}
            for path in world.workspace.rglob("*"):
                status = path.lstat()
                if stat.S_ISREG(status.st_mode):
                    name = str(path.relative_to(world.workspace))
                    found[name] = (path.read_bytes(), stat.S_IMODE(status.st_mode), status.st_uid - owner)
            return found

    return asyncio.run(main())


def test_files_from_text_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "tool.sh").write_text("#!/bin/sh\n")
    (tmp_path / "tool.sh").chmod(0o755)
    (tmp_path / "data/deep").mkdir(parents=True)
    (tmp_path / "data/deep/x").write_text("x")
    (tmp_path / "data/deep/x").chmod(0o600)
    found = run(
        {
            "files": [
                {"path": "a/b.txt", "content": "ü\n"},
                {"path": "secret", "content": "s", "mode": "0600"},
                {"path": "bin/tool", "from": "tool.sh"},
                {"path": "data", "from": "data"},
            ]
        },
        tmp_path,
    )
    assert found == {
        "a/b.txt": ("ü\n".encode(), 0o644, 0),
        "secret": (b"s", 0o600, 0),
        "bin/tool": (b"#!/bin/sh\n", 0o755, 0),
        "data/deep/x": (b"x", 0o600, 0),
    }


def test_files_are_there_for_the_commands_and_env_for_both(tmp_path: Path) -> None:
    found = run(
        {
            "files": [{"path": "a", "content": "1"}],
            "commands": ["cat a > b", 'printf "$OWN $GIVEN" > c', "id -u > d"],
            "env": {"OWN": "own"},
        },
        tmp_path,
    )
    assert (found["b"][0], found["c"][0]) == (b"1", b"own given")
    assert (int(found["d"][0]) == 0) is False or os.geteuid() == 0
    if os.geteuid() == 0:
        assert int(found["d"][0]) != 0


def test_a_command_that_fails_ends_the_setup_and_shows_both_streams(tmp_path: Path) -> None:
    command = "echo on stdout; echo on stderr >&2; exit 4"
    with pytest.raises(HarnessError) as error:
        run({"commands": ["true", command, "touch never"]}, tmp_path)
    assert error.value.message == (
        f"setup.commands[1] (`{command}`) failed: exit code 4\nstdout: on stdout\nstderr: on stderr"
    )
    assert error.value.exit_code == 3


def test_a_command_that_hangs_is_ended(tmp_path: Path) -> None:
    async def main() -> None:
        async with process_world() as world:
            sandbox = await world.open()
            setup = Setup(commands=["sleep 60"])
            await run_commands(setup.commands, sandbox=sandbox, environment=setup.env, timeout=0.2)

    with pytest.raises(HarnessError, match="took longer than its time limit"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("file", "said"),
    [
        ({"path": "out/x", "content": ""}, r"setup.files\[0\] \(out/x\) can't be written: .*out of the workspace"),
        ({"path": "a", "from": "nothing"}, "No such file"),
        ({"path": ".", "content": ""}, "names no file"),
    ],
)
def test_a_file_that_can_not_be_written(tmp_path: Path, file: Mapping[str, Any], said: str) -> None:
    with pytest.raises(HarnessError, match=said):
        run({"files": [dict(file)]}, tmp_path, out="/tmp")


def test_packages_are_there_for_every_sandbox_and_closed_to_it() -> None:
    """And one that can't be installed is named: first, since the second environment is quick where one stands."""
    script = (
        'tiny; python3 -c "import sys; print(sys.prefix)"; pip --version >/dev/null && echo pip;'
        ' echo "print(0)" > "$VIRTUAL_ENV/lib/x.py" || echo closed'
    )

    async def main() -> tuple[Completed, PythonEnvironment]:
        async with process_world() as world:
            packages = world.area / "packages"
            packages.mkdir()
            make = partial(
                make_environment,
                provider=world.provider,
                directory=packages,
                limits=CommandLimits(),
                environment={"PIP_NO_INDEX": "1"},
            )
            with pytest.raises(
                HarnessError, match=r"(?s)pip could not install no-such-package-of-ours==1.*No matching"
            ):
                await make(["no-such-package-of-ours==1"])
            found = await make([str(tiny_wheel(packages))])
            assert found.directory == packages
            sandbox = await world.open(packages)
            return await sandbox.run(Command(("sh", "-c", script), env=found.variables)), found

    done, found = asyncio.run(main())
    assert done.stdout.text().split() == ["tiny", found.variables["VIRTUAL_ENV"], "pip", "closed"], done.stderr.text()
    assert found.variables["PATH"].startswith(f"{found.variables['VIRTUAL_ENV']}/bin:/")


def test_without_packages_nothing_is_made() -> None:
    async def main() -> None:
        async with process_world() as world:
            target = world.area / "packages"
            found = await make_environment([], provider=world.provider, directory=target, limits=CommandLimits())
            assert found == PythonEnvironment()
            assert not target.exists()

    asyncio.run(main())


def test_a_copy_of_an_environment_names_the_cell_that_it_is_for(tmp_path: Path) -> None:
    first, second, copy = tmp_path / "0123abcd", tmp_path / "4567cdef", tmp_path / "copy"
    program = first / "packages/venv/bin/tool"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{program.parent}/python3\n")
    program.chmod(0o555)
    (program.parent / "python3").symlink_to("/usr/bin/python3")
    compiled = program.with_name("m.pyc")
    compiled.write_bytes(b"\0\xff" + os.fsencode(first) + b"\0")
    os.utime(compiled, ns=(7, 1_000_000_007))
    (program.parent / "plain").write_bytes(b"\xff")
    copy.mkdir()
    naming = keep_environment(first / "packages", copy)
    assert sorted(naming) == ["venv/bin/m.pyc", "venv/bin/tool"]
    variables = {"PATH": f"{program.parent}:/usr/bin", "VIRTUAL_ENV": f"{first}/packages/venv"}
    made = PythonEnvironment(first / "packages", variables)
    second.mkdir()
    found = put_environment(copy, naming, made, directory=second / "packages")
    place = second / "packages/venv"
    assert found == PythonEnvironment(second / "packages", {"PATH": f"{place}/bin:/usr/bin", "VIRTUAL_ENV": str(place)})
    assert (place / "bin/tool").read_text() == f"#!{place}/bin/python3\n"
    assert (place / "bin/m.pyc").read_bytes() == b"\0\xff" + os.fsencode(second) + b"\0"
    assert (place / "bin/m.pyc").stat().st_mtime_ns == 1_000_000_007
    assert stat.S_IMODE((place / "bin/tool").stat().st_mode) == 0o555
    assert (place / "bin/python3").readlink() == Path("/usr/bin/python3")
    assert stat.S_IMODE((second / "packages").stat().st_mode) == 0o755
    os.mkfifo(program.with_name("pipe"))
    (tmp_path / "other").mkdir()
    with pytest.raises(OSError, match="can't be copied"):
        keep_environment(first / "packages", tmp_path / "other")
