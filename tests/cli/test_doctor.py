"""What `keystone doctor` says of containers, by what is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from support.command_line import NO_ENGINE as WITHOUT_ENGINE
from support.command_line import ROOT, keystone

from keystone_action.agents.presets.preset import preset_names
from keystone_action.cli import doctor
from keystone_action.cli import main as cli
from keystone_action.cli.doctor import Finding

NO_ENGINE = "unix:///does/not/exist/docker.sock"


def containers(environ: Mapping[str, str]) -> dict[str, Finding]:
    return {finding.what: finding for finding in doctor._containers(environ)}


def test_without_an_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("keystone_action.engine.connect._DEFAULT", NO_ENGINE)
    found = containers({})
    assert {finding.mark for finding in found.values()} == {"--"}
    assert "there is no such socket" in found["container engine"].found
    assert "Docker" in found["container engine"].found
    assert "embedded PostgreSQL" in found["services with image"].found
    assert "refused" in found["specs with base"].found
    monkeypatch.delenv("DOCKER_HOST", raising=False)
    assert cli.main(["doctor"]) == 0
    assert "-- container engine: can't reach" in capsys.readouterr().out


def test_an_engine_that_was_named_and_does_not_answer() -> None:
    found = containers({"DOCKER_HOST": "tcp://127.0.0.1:1"})["container engine"]
    assert found.mark == "!!"
    assert "connection refused" in found.found
    assert "DOCKER_HOST" in found.found


@pytest.mark.docker
def test_with_an_engine(
    engine: Any, image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    image("python:3.12-slim")
    found = containers({"KEYSTONE_REGISTRY_MIRROR": "mirror.example"})
    assert found["container engine"].mark == "ok"
    assert str(engine.version()["Version"]) in found["container engine"].found
    assert found["files for containers"].found.startswith(("mounted: ", "copied in and out"))
    assert found["specs with base"].mark == "ok"
    assert "mirror.example" in found["services with image"].found
    assert "our own container" in found
    monkeypatch.setattr(doctor, "DEFAULT_BASE", "keystone-test/nobody-has-this:1")
    assert "found out at the first run" in containers({})["files for containers"].found
    assert list(tmp_path.iterdir()) == []


def test_windows_containers_and_missing_limits() -> None:
    class Client:
        def engine_version(self) -> dict[str, str]:
            return {"Version": "29", "ApiVersion": "1.50"}

        def facts(self) -> dict[str, Any]:
            return {"OSType": "windows"}

    found = doctor._engine(Client(), {})  # type: ignore[arg-type]
    assert "Linux containers" in found[-1].found
    (limits,) = doctor._limits({"MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": False})
    assert limits == Finding("!!", "limits of containers", "this engine does not enforce memory, cpu")
    assert list(doctor._limits({"MemoryLimit": True})) == []


def test_check_types_of_packages_and_those_that_are_never_used(tmp_path: Path) -> None:
    for package, name in (("acme-checks", "mine"), ("other-checks", "sql")):
        metadata = tmp_path / f"{package.replace('-', '_')}-1.2.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.2\n")
        (metadata / "entry_points.txt").write_text(f"[keystone_action.invariants]\n{name} = nowhere:Check\n")
    environ = {**WITHOUT_ENGINE, "PYTHONPATH": f"{ROOT}:{tmp_path}"}
    called = keystone("doctor", directory=tmp_path, environ=environ)
    assert called.code == 0, called.err
    lines = [line for line in called.out.splitlines() if "check type" in line]
    assert [line.split(maxsplit=1) for line in lines] == [
        ["ok", "check type mine: of acme-checks 1.2"],
        ["!!", "check types: other-checks 1.2 registers the check type 'sql', which is built in: it is never used"],
    ]


def agents_of(path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Finding]:
    monkeypatch.setenv("PATH", f"{path}:/usr/bin:/bin")
    return {finding.what.removeprefix("agent "): finding for finding in doctor._agents({})}


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_agents_that_are_here_and_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = program(tmp_path, "codex", 'echo "codex-cli 0.169.0"')
    found = agents_of(tmp_path, monkeypatch)
    assert set(found) == {*preset_names(), "anthropic", "openai"}
    assert found["codex"].mark == "ok"
    assert found["codex"].found == f"0.169.0, {place}; needs resources.readable: [{tmp_path}]"
    assert found["gemini"] == Finding(
        "--", "agent gemini", "gemini is not on PATH: npm install --global @google/gemini-cli"
    )


def test_a_program_is_asked_without_our_keys_and_away_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-0123456789")
    report = tmp_path / "seen"
    program(tmp_path, "codex", f"{{ env; pwd; cat; }} > {report} 2>&1; echo 1.2")
    assert agents_of(tmp_path, monkeypatch)["codex"].found.startswith("1.2, ")
    seen = report.read_text()
    assert "sk-0123456789" not in seen
    assert f"HOME={Path.home()}\n" not in seen
    assert "keystone-doctor-" in seen.splitlines()[-1]


@pytest.mark.parametrize("text", [
    "sleep 60 & sleep 60",  # says nothing in time
    "yes",  # never stops
    "exit 1",
    "echo none",
    "kill -9 $$",
])  # fmt: skip
def test_a_program_that_does_not_say_its_version(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keystone_action.cli.found_agents._SECONDS", 0.5)
    place = program(tmp_path, "codex", text)
    found = agents_of(tmp_path, monkeypatch)["codex"]
    assert found == Finding("!!", "agent codex", f"{place} does not say its version (--version)")


def test_one_that_can_not_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "codex").write_bytes(b"\x7fELF")
    (tmp_path / "codex").chmod(0o755)
    assert agents_of(tmp_path, monkeypatch)["codex"].mark == "!!"


def test_of_keys_only_whether_they_are_there_and_of_addresses_the_host() -> None:
    environ = {
        "ANTHROPIC_API_KEY": "sk-ant-0123456789",
        "OPENAI_API_KEY": " ",
        "ANTHROPIC_BASE_URL": "https://someone:sk-hidden@router.example:8443/a/sk-path?key=sk-query#sk-end",
        "OPENAI_BASE_URL": "sk-not-a-url",
        "GOOGLE_GEMINI_BASE_URL": "http://[::1",
    }
    found = {finding.what: finding for finding in doctor._providers(environ)}
    assert found["ANTHROPIC_API_KEY"] == Finding("ok", "ANTHROPIC_API_KEY", "set")
    assert found["ANTHROPIC_BASE_URL"].found == "router.example:8443"
    assert (found["OPENAI_API_KEY"].mark, found["GEMINI_API_KEY"].mark) == ("--", "--")
    assert found["OPENAI_BASE_URL"].mark == found["GOOGLE_GEMINI_BASE_URL"].mark == "!!"
    assert "sk-" not in str(found)
