"""What is copied of the Python packages that an agent installed, from a HOME and a workspace as it left them."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import pytest

from keystone_action.runner.cell import python_packages
from keystone_action.runner.cell.python_packages import copy_packages
from keystone_action.sandbox.protocol import Home
from keystone_action.sandbox.trees import copy_wanted

SITE = "lib/python3.11/site-packages"


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """Where pip installs for the agent's user."""
    place = tmp_path / "home/.local" / SITE
    place.mkdir(parents=True)
    (tmp_path / "workspace").mkdir()
    return place


def copied(root: Path) -> tuple[list[str], tuple[str, ...]]:
    """The files of the copy, and what is said of it."""
    home = root / "home"
    kept = Home(home, lambda: None, partial(copy_wanted, home))
    notices = copy_packages(kept, root / "workspace", root / "copy")
    files = (path for path in (root / "copy").rglob("*") if path.is_symlink() or not path.is_dir())
    return sorted(str(path.relative_to(root / "copy")) for path in files), notices


def write(place: Path, *names: str, text: str = "") -> None:
    for name in names:
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)


def test_packages_of_the_user_and_of_environments_in_the_workspace(tmp_path: Path, installed: Path) -> None:
    write(installed, "one/__init__.py", "one/json.py", "one-1.0.dist-info/METADATA", "one/__pycache__/one.pyc")
    write(
        tmp_path / "home", ".cache/pip/wheel", ".local/bin/tool", ".local/lib/other/x.py", ".local/lib/python3.11/y.py"
    )
    write(tmp_path / "workspace", f".venv/{SITE}/two.py", f"venv/{SITE}/three.py", f"env/{SITE}/four.py", ".venv/bin/x")
    write(tmp_path / "workspace", f".venv/{SITE}/_virtualenv.pth")
    files, notices = copied(tmp_path)
    of_home = [
        f"home/.local/{SITE}/{name}" for name in ("one-1.0.dist-info/METADATA", "one/__init__.py", "one/json.py")
    ]
    assert files == [f".venv/{SITE}/two.py", *of_home, f"venv/{SITE}/three.py"]
    assert notices == ()


def test_names_of_the_standard_library_and_files_that_run_unasked_are_left_out(tmp_path: Path, installed: Path) -> None:
    write(installed, "json.py", "asyncio/__init__.py", "_socket.cpython-311.so", "a.pth", "fine.py")
    write(installed, "sitecustomize.py", "usercustomize/__init__.py", "sitecustomize.cpython-311-x86_64-linux-gnu.so")
    files, notices = copied(tmp_path)
    assert files == [f"home/.local/{SITE}/fine.py"]
    assert len(notices) == 1
    assert "a.pth, asyncio" in notices[0]


def test_no_link_is_copied_or_followed(tmp_path: Path, installed: Path) -> None:
    write(tmp_path, "secret/module.py", text="SECRET = 1")
    (installed / "link").symlink_to(tmp_path / "secret")
    (installed / "module.py").symlink_to(tmp_path / "secret/module.py")
    (tmp_path / "workspace/.venv").symlink_to(tmp_path / "secret")
    os.mkfifo(installed / "pipe.py")
    assert copied(tmp_path) == ([], ())


def test_a_home_whose_folders_are_links_or_files_holds_no_package(tmp_path: Path) -> None:
    write(tmp_path, f"elsewhere/{SITE}/x.py", "home/file", "workspace/.venv")
    (tmp_path / "home/.local").symlink_to(tmp_path / "elsewhere")
    assert copied(tmp_path) == ([], ())


def test_what_is_too_much_is_left_out_whole_and_named(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_packages, "MOST_ENTRIES", 20)
    monkeypatch.setattr(python_packages, "MOST_BYTES", 1 << 20)
    write(installed, *(f"many/m{number}.py" for number in range(30)))
    write(tmp_path / "workspace", f".venv/{SITE}/small.py")
    files, notices = copied(tmp_path)
    assert files == []
    assert notices == (
        "checks do not see all that the agent installed: many, small.py (more than 20 files and 1 MiB in all)",
    )


def test_a_file_of_nothing_but_a_hole_does_not_fill_the_disk(tmp_path: Path, installed: Path) -> None:
    write(installed, "fine.py")
    with (installed / "hole.so").open("wb") as file:
        file.truncate(1 << 40)
    files, notices = copied(tmp_path)
    assert files == [f"home/.local/{SITE}/fine.py"]
    assert "hole.so (more than" in notices[0]
