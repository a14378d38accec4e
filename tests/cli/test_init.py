"""`keystone init --agent NAME`: what it writes, prints and refuses, and when it asks."""

from __future__ import annotations

import io
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.command_line import ENVIRONMENT, ROOT, Called, keystone

from keystone_action.agents.presets.preset import load_preset, preset_names
from keystone_action.cli.found_agents import FoundAgent
from keystone_action.cli.scaffold import agent_files, choose_agent, key_variable, loop_files
from keystone_action.errors import UsageError
from keystone_action.gateway.upstreams import VARIABLES

FILES = ["keystone.yaml", "container.yaml", "example/prices.csv", ".github/workflows/agent.yml"]


def program(folder: Path, name: str, text: str = "exit 0") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def init(directory: Path, *words: str, path: Path | None = None, **environ: str) -> Called:
    """path: a folder in front of PATH."""
    found = f"{path}:{ENVIRONMENT['PATH']}" if path else ENVIRONMENT["PATH"]
    return keystone("init", *words, directory=directory, environ={"PATH": found, **environ})


@pytest.mark.parametrize("name", preset_names())
def test_what_it_writes_is_valid_and_never_overwritten(tmp_path: Path, name: str) -> None:
    called = init(tmp_path, "--agent", name)
    assert called.code == 0, called.err
    assert re.findall(r"^wrote (.*)$", called.out, re.MULTILINE) == FILES
    written = {file: (tmp_path / file).read_text("utf-8") for file in FILES}
    valid = keystone("validate", "keystone.yaml", "container.yaml", directory=tmp_path)
    assert valid.code == 0, valid.err
    assert valid.err == ""
    again = init(tmp_path, "--agent", name)
    assert again.code == 2
    assert "is already there" in again.err
    assert written == {file: (tmp_path / file).read_text("utf-8") for file in FILES}
    specs = [yaml.safe_load(written[file]) for file in ("keystone.yaml", "container.yaml")]
    preset = load_preset(name)
    assert specs[1].pop("setup") == {"commands": [preset.install_command(preset.seen)]}
    assert specs[1].pop("base") in {"node:22", "python:3.12"}
    assert [spec.pop("id") for spec in specs] == ["first-spec", "first-spec-in-container"]
    assert specs[0] == specs[1]
    assert specs[0]["agent"]["type"] == name
    assert ("model" in specs[0]["agent"]) is preset.model.required
    (key,) = [key for key, _ in VARIABLES.values() if f"{key}:" in written[".github/workflows/agent.yml"]]
    assert key == key_variable(name) == VARIABLES[specs[0]["gateway"]["providers"][0]][0]


@pytest.mark.parametrize("name", ["anthropic", "openai"])
def test_an_agent_without_a_program_needs_one_spec_and_a_key(tmp_path: Path, name: str) -> None:
    called = init(tmp_path, "--agent", name)
    assert called.code == 0, called.err
    assert re.findall(r"^wrote (.*)$", called.out, re.MULTILINE) == [one for one in FILES if "container" not in one]
    valid = keystone("validate", "keystone.yaml", directory=tmp_path)
    assert (valid.code, valid.err) == (0, "")
    spec = yaml.safe_load((tmp_path / "keystone.yaml").read_text())
    assert (spec["agent"]["type"], spec["gateway"]["providers"]) == (name, [name])
    assert spec["agent"]["model"]
    key = f"{name.upper()}_API_KEY"
    steps = called.out.partition("Next:\n")[2].splitlines()
    assert steps[0].startswith(f"  export {key}=...")
    assert steps[1] == "  keystone run keystone.yaml"
    workflow = (tmp_path / ".github/workflows/agent.yml").read_text()
    assert f"{key}:" in workflow
    assert "spec: keystone.yaml" in workflow
    (in_container,) = [text for path, text in loop_files(name, container=True).items() if path == "keystone.yaml"]
    assert yaml.safe_load(in_container) == {**spec, "base": "python:3.12-slim"}


def test_it_says_what_is_missing_and_what_comes_next(tmp_path: Path) -> None:
    called = init(tmp_path, "--agent", "codex", "sub dir")
    steps = called.out.partition("Next:\n")[2].splitlines()
    assert steps[0] == "  npm install --global @openai/codex"
    assert steps[1].startswith("  export OPENAI_API_KEY=...")
    assert steps[2] == "  keystone run 'sub dir/keystone.yaml'"
    assert "secret OPENAI_API_KEY" in called.out


def test_it_does_not_ask_for_what_is_there(tmp_path: Path) -> None:
    place = tmp_path / "programs"
    program(place, "codex")
    called = init(tmp_path, "--agent", "codex", path=place, OPENAI_API_KEY="sk-none-of-its-business")
    steps = called.out.partition("Next:\n")[2].splitlines()
    assert steps[0] == "  keystone run keystone.yaml"
    assert "sk-none" not in called.out + called.err + "".join((tmp_path / file).read_text() for file in FILES)


def test_a_program_that_the_sandbox_hides_is_shown_by_the_spec(tmp_path: Path) -> None:
    modules = tmp_path / "lib" / "node_modules"
    real = program(modules / "@openai" / "codex" / "bin", "codex.js")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "codex").symlink_to(real)
    assert init(tmp_path, "--agent", "codex", "made", path=tmp_path / "bin").code == 0
    spec = yaml.safe_load((tmp_path / "made" / "keystone.yaml").read_text())
    assert spec["resources"] == {"readable": [str(tmp_path / "bin"), str(modules)]}
    assert "resources" not in yaml.safe_load((tmp_path / "made" / "container.yaml").read_text())


def test_a_program_that_is_not_there_yet_is_shown_where_it_will_be(tmp_path: Path) -> None:
    place, prefix = tmp_path / "programs", tmp_path / "global"
    program(place, "npm", "echo 'npm warn old' >&2; test \"$*\" = 'prefix --global' && echo $npm_config_prefix")
    assert init(tmp_path, "--agent", "codex", "made", path=place, npm_config_prefix=str(prefix)).code == 0
    spec = yaml.safe_load((tmp_path / "made" / "keystone.yaml").read_text())
    assert spec["resources"] == {"readable": [str(prefix / "bin"), str(prefix / "lib" / "node_modules")]}
    program(place, "npm", "exit 1")
    assert init(tmp_path, "--agent", "codex", "second", path=place).code == 0
    assert "resources" not in yaml.safe_load((tmp_path / "second" / "keystone.yaml").read_text())


def test_the_package_manager_that_is_asked_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    assert init(tmp_path, "--agent", "codex", "made", HOME=str(home)).code == 0
    assert list(home.iterdir()) == []


def test_folders_in_a_home_are_written_as_such(tmp_path: Path) -> None:
    tool = tmp_path / ".local" / "share" / "tool"
    (tmp_path / ".local" / "bin").mkdir(parents=True)
    real = program(tool / "bin", "mini")
    (tool / "pyvenv.cfg").touch()
    (tool / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / ".local" / "bin" / "mini").symlink_to(real)
    files = agent_files(FoundAgent("mini-swe-agent", tmp_path / ".local" / "bin" / "mini", {"HOME": str(tmp_path)}))
    shown = yaml.safe_load(files["keystone.yaml"])["resources"]["readable"]
    assert shown[:2] == ["~/.local/bin", "~/.local/share/tool"]


def test_where_no_process_sandbox_is_the_only_spec_has_a_base() -> None:
    files = agent_files(FoundAgent("gemini", None), container=True)
    assert yaml.safe_load(files["keystone.yaml"])["base"] == "node:22"
    assert "container.yaml" not in files
    assert "spec: keystone.yaml" in files[".github/workflows/agent.yml"]


def test_below_the_root_of_a_repository_the_workflow_has_to_be_moved(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    called = init(tmp_path, "--agent", "gemini", "evals/first")
    assert "move .github there" in called.out
    (step,) = [
        step
        for step in yaml.safe_load((tmp_path / "evals/first/.github/workflows/agent.yml").read_text())["jobs"][
            "evaluate"
        ]["steps"]
        if step.get("id") == "keystone"
    ]
    assert step["with"]["working-directory"] == "evals/first"


@pytest.mark.parametrize(("named", "said"), [
    ("claudecode", "did you mean claude-code?"),
    ("Codex", "did you mean codex?"),
    ("qqq", "no agent is known as 'qqq'\n"),
    ("", "no agent is known as ''"),
    ("../presets/codex", "no agent is known as"),
])  # fmt: skip
def test_an_agent_that_is_not_known(tmp_path: Path, named: str, said: str) -> None:
    called = init(tmp_path, "--agent", named)
    assert called.code == 2
    assert said in called.err
    assert ", ".join(preset_names()) in called.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("there", "said"), [
    (lambda place: (place / "keystone.yaml").touch(), "keystone.yaml is already there"),
    (lambda place: (place / "container.yaml").symlink_to("/nowhere"), "container.yaml is already there"),
    (lambda place: (place / "example").mkdir(), "example is already there"),
    (lambda place: (place / ".github").touch(), "can't be written"),
])  # fmt: skip
def test_what_is_in_the_way_stays_as_it_is(tmp_path: Path, there: Callable[[Path], Any], said: str) -> None:
    there(tmp_path)
    before = [(path, path.lstat().st_mtime_ns) for path in sorted(tmp_path.iterdir())]
    called = init(tmp_path, "--agent", "codex")
    assert called.code == 2
    assert said in called.err
    assert [(path, path.lstat().st_mtime_ns) for path in sorted(tmp_path.iterdir())] == before


def test_other_files_of_a_repository_are_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / ".github" / "workflows").mkdir(parents=True)
    (tmp_path / ".github" / "workflows" / "ci.yml").write_text("on: push")
    (tmp_path / "README.md").write_text("ours")
    assert init(tmp_path, "--agent", "codex").code == 0
    assert (tmp_path / ".github" / "workflows" / "ci.yml").read_text() == "on: push"
    assert (tmp_path / "README.md").read_text() == "ours"


def test_a_folder_that_nobody_may_write_to(tmp_path: Path) -> None:
    called = init(tmp_path, "--agent", "codex", "/proc/first")
    assert (called.code, called.has_traceback) == (2, False)
    assert "can't be written" in called.err


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def chosen(typed: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> tuple[str | None, str]:
    monkeypatch.setenv("PATH", str(folder))
    asked = Terminal()
    return choose_agent(None, Terminal(typed), asked, {}), asked.getvalue()


def test_at_a_terminal_it_asks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    names = (*preset_names(), "anthropic", "openai")
    assert chosen("codex\n", monkeypatch, tmp_path)[0] == "codex"
    assert chosen("1\n", monkeypatch, tmp_path)[0] == names[0]
    assert chosen(f"{len(names) + 1}\n", monkeypatch, tmp_path)[0] is None
    assert chosen("\n", monkeypatch, tmp_path)[0] is None, "no program was found"
    again, said = chosen("0\n99\ncodecs\n gemini \n", monkeypatch, tmp_path)
    assert again == "gemini"
    assert "did you mean codex?" in said
    with pytest.raises(UsageError, match="no agent was chosen"):
        chosen("what?\n", monkeypatch, tmp_path)
    place = program(tmp_path, "gemini")
    found, said = chosen("\n", monkeypatch, tmp_path)
    assert found == "gemini"
    assert f"gemini (Gemini CLI, {place})" in said


@pytest.mark.parametrize(("answers", "questions"), [
    (io.StringIO("codex\n"), Terminal()),
    (Terminal("codex\n"), io.StringIO()),
])  # fmt: skip
def test_without_a_terminal_it_does_not_ask(answers: io.StringIO, questions: io.StringIO) -> None:
    assert choose_agent(None, answers, questions, {}) is None
    assert questions.getvalue() == ""


def test_at_a_real_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    words = [sys.executable, "-m", "keystone_action", "init", "made"]
    environ = {**ENVIRONMENT, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(words, cwd=tmp_path, env=environ, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        os.write(ours, b"codex\n")
        printed = b""
        try:
            while piece := os.read(ours, 4096):
                printed += piece
        except OSError:  # what Linux says at the end of a terminal
            pass
        os.close(ours)
    assert process.returncode == 0, printed
    assert b"Which agent is to be judged?" in printed
    assert yaml.safe_load((tmp_path / "made" / "keystone.yaml").read_text())["agent"]["type"] == "codex"


def test_without_an_agent_it_does_as_before(tmp_path: Path) -> None:
    called = init(tmp_path)
    assert called.out == "wrote keystone.yaml\nwrote agent/agent.sh\nnow: keystone run keystone.yaml\n"
