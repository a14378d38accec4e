"""An agent's program that this machine has and the sandbox hides: what is said of it, and `resources.readable`."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import NO_ENGINE, Called, keystone, run_spec
from support.hostile import area

__all__ = ["area"]

DONE = {"done": {"check": {"type": "file_exists", "path": "done.txt"}}}


@pytest.fixture
def tools() -> Iterator[Path]:
    """A folder outside the system's, with a program in its `bin`."""
    with tempfile.TemporaryDirectory(prefix="tools-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "bin").mkdir()
        (folder / "bin").chmod(0o755)
        program = folder / "bin" / "an-agent"
        program.write_text('#!/bin/sh\ncat "$(dirname "$0")/../greeting" > done.txt\n', "utf-8")
        program.chmod(0o755)
        (folder / "greeting").write_text("hello\n", "utf-8")
        (folder / "greeting").chmod(0o644)
        yield folder


def run(area: Path, tools: Path, agent: Mapping[str, Any], **more: Any) -> Called:
    document = {
        "version": 1,
        "id": "hidden",
        "task": {"prompt": "do it"},
        "agent": agent,
        "invariants": DONE,
        **more,
    }
    environ = {**NO_ENGINE, "PATH": f"{tools}/bin:/usr/local/bin:/usr/bin:/bin"}
    return run_spec(area, json.dumps(document), environ=environ)


def test_a_shell_that_finds_no_program_is_a_failed_agent_with_the_place_named(area: Path, tools: Path) -> None:
    called = run(area, tools, {"type": "command", "command": "an-agent --go"})
    assert called.code == 1, called.err
    agent = called.cells[0]["agent"]
    assert "not found" in agent["stderr"]
    summary = (called.output / "summary.md").read_text("utf-8")
    for text in (agent["note"], summary.replace("`", "").replace("\\", ""), called.err):
        assert f"{tools}/bin/an-agent" in text
        assert "resources.readable" in text
    assert "not found" in summary
    assert "not found" in (called.output / "junit.xml").read_text("utf-8")
    assert "not found" in (called.output / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    "agent", [{"type": "command", "command": ["an-agent"]}, {"type": "cli", "binary": "an-agent"}], ids=["list", "cli"]
)
def test_a_program_that_can_not_be_started_is_an_error_with_the_place_named(
    area: Path, tools: Path, agent: Mapping[str, Any]
) -> None:
    called = run(area, tools, agent)
    assert called.code == 3
    error = called.cells[0]["error"]
    assert f"{tools}/bin/an-agent" in error
    assert "resources.readable" in error
    assert "base:" in error


@pytest.mark.parametrize("command", ["an-agent", ["an-agent"]], ids=["text", "list"])
@pytest.mark.parametrize("folder", ["", "/bin"], ids=["its-root", "its-bin"])
@honest("reading", "a folder of the machine that the spec names")
def test_a_readable_folder_shows_its_programs(area: Path, tools: Path, command: Any, folder: str) -> None:
    called = run(area, tools, {"type": "command", "command": command}, resources={"readable": [f"{tools}{folder}"]})
    # With `bin` alone the program starts, and what lies beside that folder stays hidden.
    assert called.code == 0, called.err + called.out
    assert bool((called.cells[0]["agent"]["stderr"] or "").strip()) == (folder == "/bin")


def test_checks_find_the_program_too(area: Path, tools: Path) -> None:
    check = {"it_runs": {"check": {"type": "command_exit", "command": "an-agent && test -s done.txt"}}}
    called = run(
        area, tools, {"type": "command", "command": "true"}, resources={"readable": [str(tools)]}, invariants=check
    )
    assert called.code == 0, called.err + called.out


def test_a_check_names_the_place_too(area: Path, tools: Path) -> None:
    checks = [
        {"type": "command_exit", "command": "an-agent --check"},
        {"type": "tests", "cmd": "an-agent --test"},
        {"type": "http", "start": "an-agent serve", "request": {"url": "http://127.0.0.1:{{ port }}/"}},
    ]
    invariants = {check["type"]: {"check": check} for check in checks}
    called = run(area, tools, {"type": "command", "command": "true"}, invariants=invariants)
    assert called.code == 3, called.out + called.err
    for name, check in called.checks.items():
        assert check["status"] == "error", name
        assert f"this machine has it as {tools}/bin/an-agent" in check["message"], name


@hostile("reading", "a folder of the machine that the spec names", held_by="Landlock: it can't be written")
def test_a_readable_folder_can_not_be_written(area: Path, tools: Path) -> None:
    command = f"echo bad > {tools}/greeting; echo bad > {tools}/bin/new; an-agent"
    tools.chmod(0o777)
    (tools / "greeting").chmod(0o666)
    called = run(area, tools, {"type": "command", "command": command}, resources={"readable": [str(tools)]})
    assert called.code == 0, called.err + called.out
    assert (tools / "greeting").read_text("utf-8") == "hello\n"
    assert not (tools / "bin" / "new").exists()


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/", "would show the checkout"),
        ("{area}", "would show the checkout"),
        ("{area}/..", "would show the checkout"),
        (".", "would show the checkout"),
        ("{area}/hidden", "withholds"),
        ("{area}/.git", "a repository's own folder"),
        ("{area}/.git/objects", "a repository's own folder"),
        ("{area}/out", "no such folder"),
        ("{temporary}", "would show the files of this run"),
        ("/proc", "belongs to the machine"),
        ("/proc/self", "belongs to the machine"),
        ("{home}", "would show credentials"),
        ("{home}/.ssh", "would show credentials"),
        ("~/.ssh/keys", "which no agent may see"),
        ("{link}", "would show credentials"),
        ("/etc/hostname", "is not a folder"),
        ("/nonexistent", "there is no such folder"),
    ],
)
def test_what_nobody_may_show_is_refused(area: Path, tools: Path, folder: str, said: str) -> None:
    home = tools / "home"
    (home / ".ssh" / "keys").mkdir(parents=True)
    (area / "link").symlink_to(home / ".ssh")
    (area / ".git" / "objects").mkdir(parents=True)
    (area / "hidden").mkdir()
    (area / "hidden" / "check.py").write_text("", "utf-8")
    temporary = tools / "temporary"
    temporary.mkdir()
    named = folder.format(area=area, home=home, link=area / "link", temporary=temporary)
    document = {
        "version": 1,
        "id": "hidden",
        "task": {"prompt": "do it"},
        "agent": {"type": "command", "command": "true"},
        "resources": {"readable": [named]},
        "invariants": {"script": {"check": {"type": "custom", "script": "hidden/check.py"}}},
    }
    called = run_spec(area, json.dumps(document), environ={**NO_ENGINE, "HOME": str(home), "TMPDIR": str(temporary)})
    assert called.code == 2, called.err
    assert "resources.readable" in called.err
    assert said in called.err


def test_a_folder_is_no_use_to_an_image(area: Path, tools: Path) -> None:
    (area / "keystone.yaml").write_text(
        "version: 1\nid: a\nbase: python:3.12-slim\ntask: {prompt: x}\nagent: {type: none}\n"
        f"resources: {{readable: ['{tools}']}}\ninvariants: {{a: {{check: {{type: file_absent, path: x}}}}}}\n",
        "utf-8",
    )
    called = keystone("run", "keystone.yaml", directory=area, environ=NO_ENGINE)
    assert called.code == 2


def test_a_umask_that_closes_everything_changes_nothing(area: Path, tools: Path) -> None:
    (area / "check.py").write_text("print('{\"passed\": true}')\n", "utf-8")
    (area / "start").mkdir()
    (area / "start" / "given.txt").write_text("x", "utf-8")
    document = {
        "version": 1,
        "id": "masked",
        "task": {"prompt": "do it"},
        "workspace": "start",
        "agent": {"type": "command", "command": "an-agent && test -f given.txt"},
        "resources": {"readable": [str(tools)]},
        "invariants": {
            "done": {"check": {"type": "command_exit", "command": "test -s done.txt"}},
            "inside": {"check": {"type": "custom", "script": "check.py", "runs_in": "sandbox"}},
            "host": {"check": {"type": "custom", "script": "check.py"}},
        },
    }
    before = os.umask(0o077)
    try:
        called = run_spec(area, json.dumps(document), environ={**NO_ENGINE, "PYTHONDONTWRITEBYTECODE": "1"})
    finally:
        os.umask(before)
    assert called.code == 0, called.err
