"""`make demo` of the README, by make itself, in a copy of what it is made of: both its exit codes, what it installs
on a machine that has nothing yet, and whose certificates are trusted then."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ENVIRONMENT, ROOT
from support.released import missing

PARTS = ("Makefile", "pyproject.toml", "uv.lock", "tools/bootstrap", "tools/step", "tools/demo", "examples/reconcile")
PACKAGE = ("keystone_action", "README.md", "LICENSE")
"""What installing our own package needs besides."""
DEVELOPERS_TOOLS = ("ruff", "mypy", "zizmor", "hadolint", "sphinx-build")

UV = """\
#!/bin/sh
printf '%s\\n' "$*" "PIP_CERT=$PIP_CERT" "SSL_CERT_FILE=$SSL_CERT_FILE" > told
"""
PYTHON = """\
#!/bin/sh
case "$*" in
*"pip config get global.cert") test -n "$CONFIGURED" ;;
esac
"""
"""What stands in .venv in place of programs that would ask a registry."""


def copy(folder: Path, *names: str) -> None:
    for name in names:
        made = folder / name
        made.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy2)(ROOT / name, made)
        if made.is_file():
            os.utime(made, (0, 0))  # older than .venv/.demo, so that there is nothing to install


def make(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """`make demo`."""
    return subprocess.run(
        ["make", "demo"],
        cwd=checkout,
        env={**ENVIRONMENT, **environ},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A clone after its first `make demo`, with the environment of these tests as its .venv."""
    programs = Path(sys.executable).parent
    assert (programs / "keystone").exists(), f"{programs} has no `keystone`: install this project there, as `make` does"
    copy(tmp_path, *PARTS)
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / "bin").symlink_to(programs)
    (tmp_path / ".venv" / ".demo").write_text("by the test", "utf-8")
    return tmp_path


def cell_of(checkout: Path) -> dict[str, Any]:
    (results,) = checkout.glob(".keystone/runs/*/results.json")
    cells: list[dict[str, Any]] = [
        cell for spec in json.loads(results.read_text("utf-8"))["specs"] for cell in spec["cells"]
    ]
    (only,) = cells
    return only


@pytest.mark.parametrize(
    ("which", "code", "composite", "gate"),
    [({}, 0, 1.0, "pass"), ({"KEYSTONE_DEMO": "broken"}, 1, 0.0, "fail")],
    ids=["good", "broken"],
)
def test_the_demo_ends_as_the_readme_says(
    checkout: Path, which: dict[str, str], code: int, composite: float, gate: str
) -> None:
    installed = (checkout / ".venv" / ".demo").stat().st_mtime_ns
    done = make(checkout, **which)
    assert done.returncode == code, done.stdout + done.stderr
    cell = cell_of(checkout)
    gates = {one["name"]: one["status"] for one in cell["invariants"] if one["gate"]}
    assert (cell["composite"], gates["reconciliation_clean"]) == (composite, gate)
    assert f"composite {composite:.2f}" in done.stdout
    assert (checkout / ".venv" / ".demo").stat().st_mtime_ns == installed


@pytest.mark.slow
def test_the_first_demo_of_a_machine_installs_no_developers_tools(tmp_path: Path) -> None:
    """From PyPI, into an empty HOME, without a variable that names certificates. Each step is told as it begins."""
    copy(tmp_path, *PARTS, *PACKAGE)
    home = tmp_path / "home"
    home.mkdir()
    done = make(tmp_path, HOME=str(home), PYTHONPATH="", PIP_CONFIG_FILE=os.devnull)
    if not (tmp_path / ".venv" / ".demo").exists():
        missing(f"the demo's packages can't be had from PyPI ({done.stderr.strip().splitlines()[-1]})")
    assert (done.returncode, cell_of(tmp_path)["verdict"]) == (0, "pass")
    programs = tmp_path / ".venv" / "bin"
    assert (programs / "keystone").exists()
    assert [name for name in DEVELOPERS_TOOLS if (programs / name).exists()] == []
    steps = [line for line in done.stderr.splitlines() if line.startswith("keystone: ") and line.endswith("…")]
    assert [line.removeprefix("keystone: ").split()[0] for line in steps] == ["making", *["installing"] * 2, "running"]


@pytest.mark.parametrize(("given", "trusted"), [
    ({"PIP_CERT": "/x.pem"}, "/x.pem"),
    ({"SSL_CERT_FILE": "/x.pem"}, "/x.pem"),
    ({"PIP_CERT": "/x.pem", "SSL_CERT_FILE": "/y.pem"}, None),
    ({"CONFIGURED": "in pip.conf"}, ""),
    ({}, "the system's"),
])  # fmt: skip
def test_pip_and_uv_trust_the_certificates_that_were_named_or_the_systems(
    tmp_path: Path, given: dict[str, str], trusted: str | None
) -> None:
    copy(tmp_path, "tools/bootstrap", "tools/step")
    programs = tmp_path / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name, text in (("uv", UV), ("python", PYTHON)):
        (programs / name).write_text(text)
        (programs / name).chmod(0o755)
    command = ["bash", "tools/bootstrap", "--demo", sys.executable]
    subprocess.run(command, cwd=tmp_path, env={**ENVIRONMENT, **given}, check=True, capture_output=True, timeout=60)
    words, *told = (tmp_path / "told").read_text().splitlines()
    assert "--no-dev" in words
    assert "--frozen" in words
    if trusted is None:
        wanted = given
    else:
        known = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
        file = trusted if trusted != "the system's" else next((one for one in known if Path(one).exists()), "")
        wanted = {"PIP_CERT": file, "SSL_CERT_FILE": file}
    assert told == [f"{name}={wanted[name]}" for name in ("PIP_CERT", "SSL_CERT_FILE")]
    assert tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["uv"]["system-certs"] is True


@pytest.mark.waits
def test_a_long_step_says_that_it_goes_on_and_holds_no_pipe_open() -> None:
    """The exit code is the command's."""
    command = ["bash", "-c", '. tools/step; step "waiting" bash -c "sleep 5; exit 7"']
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 7
    first, *again = done.stderr.splitlines()
    assert first == "keystone: waiting …"
    assert again
    assert all(line.startswith("keystone: waiting … ") and line.endswith(" s") for line in again)
