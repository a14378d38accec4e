"""What people install: the wheel and the source distribution, built as a release builds them."""

from __future__ import annotations

import email
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from support.command_line import ROOT
from support.released import missing

from keystone_action import __version__

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of both."""
    folder = tmp_path_factory.mktemp("built") / "dist"
    command = ["bash", "tools/build-wheel", folder]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=500, check=False)
    if "Failed to fetch" in done.stderr or "error sending request" in done.stderr:
        missing(f"what builds and what is needed can't be had from PyPI ({done.stderr.strip().splitlines()[-1]})")
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"keystone {__version__}\n"
    return folder


def ours(suffixes: tuple[str, ...] = ("",)) -> set[str]:
    """The files of our package that are in the repository, or about to be."""
    listed = subprocess.check_output(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "keystone_action"], cwd=ROOT, text=True
    )
    return {name for name in listed.splitlines() if (ROOT / name).exists() and name.endswith(suffixes)}


def test_the_wheel_holds_our_package_its_licence_and_nothing_else(built: Path) -> None:
    (path,) = built.glob("*.whl")
    assert path.name == f"keystone_action-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(path) as wheel:
        names = set(wheel.namelist())
        about = f"keystone_action-{__version__}.dist-info/"
        metadata = email.message_from_bytes(wheel.read(about + "METADATA"))
        assert wheel.read(about + "licenses/LICENSE") == (ROOT / "LICENSE").read_bytes()
    assert {name for name in names if not name.startswith(about)} == ours()
    assert "keystone_action/py.typed" in names
    assert (metadata["Version"], metadata["License-Expression"]) == (__version__, "MIT")
    assert metadata["Requires-Python"] == ">=3.11"


def test_the_source_distribution_is_what_building_needs(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    others = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert names == ours() | others


def test_a_folder_that_is_there_is_not_written_over(tmp_path: Path) -> None:
    done = subprocess.run(
        ["bash", "tools/build-wheel", tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (2, f"build-wheel: {tmp_path} is there already\n")


def test_those_who_import_it_have_its_types(tmp_path: Path) -> None:
    """By its marker; without it, mypy takes an installed package for one without types."""
    (tmp_path / "user.py").write_text("from keystone_action import __version__\nnumber: int = __version__\n")
    mypy = [sys.executable, "-m", "mypy", "--no-incremental", "--follow-imports=silent", "user.py"]
    done = subprocess.run(mypy, cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert 'variable has type "int"' in done.stdout
