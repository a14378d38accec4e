"""The program of an mcp_mock for clients that start one: by what ways it reaches the mock, and what it prints."""

import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from contextlib import closing
from pathlib import Path

import docker
import pytest
from support.database_images import created
from support.images import NO_SHELL
from support.mcp import RunningMcp, request_of, running_mcp, text_of


def _programs(tmp_path: Path, *tools: str) -> Path:
    """A folder with these alone."""
    found = {name: shutil.which(name, path="/usr/bin:/bin") for name in tools}
    if not all(found.values()):
        pytest.skip(f"one of {', '.join(tools)} is not here")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name, place in found.items():
        (programs / name).symlink_to(os.path.realpath(str(place)))
    return programs


def _relays(mock: RunningMcp, programs: Path) -> None:
    """Two calls and a notice between them pass the program, which finds nothing but these programs."""
    lines = [request_of("tools/call", name="get_order", arguments={"id": number}) for number in (1, 2)]
    notice = '{"jsonrpc": "2.0", "method": "notifications/initialized"}'
    done = subprocess.run(
        [programs / "sh", mock.place.for_agent.command],
        input="\n".join([lines[0], notice, lines[1], ""]),
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert [text_of(json.loads(line)) for line in done.stdout.splitlines()] == ["order 1 is paid", "order 2 is paid"], (
        done.stderr
    )
    assert (len(mock.calls()), done.returncode, done.stderr) == (2, 0, "")


@pytest.mark.parametrize("tool", ["bash", "python3", "nc"])
def test_the_program_needs_one_of_three(tmp_path, tool):
    """What it uses besides is in every image that has a shell."""
    programs = _programs(tmp_path, "cat", "sh", tool)
    with running_mcp(tmp_path) as mock:
        _relays(mock, programs)


@pytest.mark.docker
def test_the_program_needs_nothing_but_busybox(tmp_path, image):
    """Its `nc` is that of most small images, and the only way there."""
    with closing(docker.from_env()) as engine, created(engine, image(NO_SHELL)) as container:
        pieces, _ = container.get_archive("/bin/busybox")
        with tarfile.open(fileobj=io.BytesIO(b"".join(pieces))) as archive:
            archive.extractall(tmp_path, filter="data")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("sh", "cat", "nc"):
        (programs / name).symlink_to(tmp_path / "busybox")
    with running_mcp(tmp_path) as mock:
        _relays(mock, programs)


def test_the_program_says_what_it_needs(tmp_path):
    with running_mcp(tmp_path) as mock:
        program, programs = mock.place.for_agent.command, _programs(tmp_path, "sh")
        done = subprocess.run(
            [programs / "sh", program], env={"PATH": str(programs)}, capture_output=True, text=True, check=False
        )
    told = "the MCP server shop can't be reached: bash, python3 or nc is needed\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", told)


@pytest.mark.parametrize(
    ("limit", "why"),
    [
        ("mcp_mock.service.WAITING_BYTES", "hold too much memory"),
        ("mcp_mock.protocol.BODY_LIMIT", "the request is larger than"),
        ("", "this is not the URL of the cell's own MCP server"),
    ],
)
def test_what_is_not_an_answer_is_never_printed_by_the_program(tmp_path, monkeypatch, limit, why):
    """A client would wait for ever, or fall over it: the program ends, and says why."""
    with running_mcp(tmp_path) as mock:
        program = Path(mock.place.for_agent.command)
        if limit:
            monkeypatch.setattr(f"keystone_action.services.{limit}", 10)
        else:
            program.write_text(program.read_text().replace(f"/{mock.place.cell.token}/", "/other/"))  # type: ignore[attr-defined]
        line = request_of("tools/call", name="get_order", arguments={"id": 1}) + "\n"
        done = subprocess.run([program], input=line, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout, list(mock.calls())) == (1, "", [])
    assert "the MCP server shop refused a message: " in done.stderr
    assert why in done.stderr


def test_a_program_whose_server_breaks_off_ends(tmp_path):
    with running_mcp(tmp_path, tools=[{"name": "breaks", "fault": "empty"}]) as mock:
        line = request_of("tools/call", name="breaks", arguments={}) + "\n"
        program = [mock.place.for_agent.command]
        done = subprocess.run(program, input=line, capture_output=True, text=True, timeout=60, check=False)
        assert (done.returncode, done.stdout) == (1, "")


def test_the_program_can_be_read_and_run_by_all(tmp_path: Path):
    with running_mcp(tmp_path) as mock:
        program = Path(mock.place.for_agent.command)
        assert (program.stat().st_mode & 0o777, program.parent.stat().st_mode & 0o777) == (0o755, 0o755)
        assert time.time() >= program.stat().st_mtime
