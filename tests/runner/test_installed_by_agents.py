"""What is copied of the Python packages that an agent installed, from a HOME and a workspace as it left them."""

from __future__ import annotations

import errno
import io
import os
import tarfile
import threading
import tracemalloc
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

import pytest

from keystone_action.errors import HarnessError
from keystone_action.files.removal import remove_tree
from keystone_action.runner.cell import python_packages
from keystone_action.runner.cell.python_packages import copy_packages
from keystone_action.sandbox import trees
from keystone_action.sandbox.containers.transfer import ContainerPlaces, CopiedDirectory
from keystone_action.sandbox.processes.credentials import drop_all_capabilities
from keystone_action.sandbox.protocol import Home
from keystone_action.sandbox.trees import copy_wanted

if TYPE_CHECKING:
    from keystone_action.engine.client import EngineClient

SITE = "lib/python3.11/site-packages"
LEFT_OUT = "checks do not see all that the agent installed"


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
    files = (path for path in (root / "copy").glob("*/**/*") if path.is_symlink() or not path.is_dir())
    return sorted(str(path.relative_to(root / "copy")) for path in files), notices


def names_of(root: Path) -> list[str]:
    return (root / "copy/names").read_text("utf-8").split()


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
    assert names_of(tmp_path) == ["one", "three", "two"]


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
    files, notices = copied(tmp_path)
    assert files == []
    assert [notice.partition(" (")[0] for notice in notices] == [f"{LEFT_OUT}: .venv"]


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
        f"{LEFT_OUT}: the rest of home, the rest of .venv, many (more than 20 files and folders and 1 MiB in all)",
    )
    assert names_of(tmp_path) == []


def test_what_is_whole_before_there_is_too_much_stays(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_packages, "MOST_ENTRIES", 20)
    write(installed, "whole.py", "small/__init__.py", "small/part/one.py")
    write(tmp_path / "workspace", *(f".venv/{SITE}/many/m{number}.py" for number in range(30)))
    files, notices = copied(tmp_path)
    assert [path.rpartition("site-packages/")[2] for path in files] == [
        "small/__init__.py",
        "small/part/one.py",
        "whole.py",
    ]
    assert names_of(tmp_path) == ["small", "whole"]
    assert f"{LEFT_OUT}: the rest of .venv, many (more" in notices[0]


def test_folders_of_no_python_are_not_copied_and_all_others_are_counted(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_packages, "MOST_ENTRIES", 40)
    for number in range(60):
        (tmp_path / f"home/.local/lib/python3x{number}/site-packages").mkdir(parents=True)
        (tmp_path / f"workspace/.venv/lib/python3.{number}/site-packages").mkdir(parents=True)
    write(installed, "fine.py")
    files, notices = copied(tmp_path)
    assert files == [f"home/.local/{SITE}/fine.py"]
    assert len(list((tmp_path / "copy").rglob("python3*"))) < 40
    assert f"{LEFT_OUT}: the rest of .venv (more" in notices[0]


def test_names_of_packages_are_known_without_another_look(tmp_path: Path, installed: Path) -> None:
    write(installed, "x/python3/site-packages", "one.so", "many-1.0.dist-info/RECORD")
    deep = os.open(installed, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deep", dir_fd=deep)
        deep, above = os.open("deep", os.O_RDONLY, dir_fd=deep), deep
        os.close(above)
    os.close(deep)
    home = Home(tmp_path / "home", lambda: None, partial(copy_wanted, tmp_path / "home"))
    assert copy_packages(home, tmp_path / "workspace", tmp_path / "copy") == ()
    assert names_of(tmp_path) == ["deep", "one", "x"]
    remove_tree(installed)
    remove_tree(tmp_path / "copy")


def test_a_home_that_is_gone_or_a_link_holds_no_package_and_is_named(tmp_path: Path) -> None:
    write(tmp_path, f"elsewhere/.local/{SITE}/x.py", "workspace/file")
    gone = copied(tmp_path)
    remove_tree(tmp_path / "copy")
    (tmp_path / "home").symlink_to(tmp_path / "elsewhere")
    assert gone == copied(tmp_path)
    assert gone[0] == []
    assert gone[1] == (
        f"{LEFT_OUT}: home (it is gone, closed to us, a link, or another name of a file that is not copied)",
    )


@pytest.mark.parametrize("mode", [0, 0o400])
@pytest.mark.parametrize("closed", ["home", "workspace/.venv", f"workspace/.venv/{SITE}", f"home/.local/{SITE}/one"])
def test_what_is_closed_to_a_plain_user_is_named(tmp_path: Path, installed: Path, closed: str, mode: int) -> None:
    write(installed, "one/__init__.py")
    write(tmp_path / "workspace", f".venv/{SITE}/two.py")
    (tmp_path / closed).chmod(mode)
    found: list[tuple[list[str], tuple[str, ...]]] = []

    def copy() -> None:
        drop_all_capabilities()
        found.append(copied(tmp_path))

    try:
        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
    finally:
        (tmp_path / closed).chmod(0o700)
    [(files, notices)] = found
    assert len(files) == 1
    assert closed.removeprefix("workspace/") in notices[0]
    assert "closed to us" in notices[0]


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EMFILE])
def test_what_this_machine_lacks_is_no_finding(
    tmp_path: Path, installed: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    write(installed, "one.py")

    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(trees, "open_tree", fail)
    with pytest.raises(HarnessError, match="copying what the agent left failed on this machine"):
        copied(tmp_path)


def kept_as_archive(root: Path, entries: Iterable[tuple[str, bytes, str]]) -> Home:
    """A HOME that came out of a container as an archive, with these names, types and targets of links."""
    top = str(root / "private/home").lstrip("/")
    with tarfile.open(root / "private.tar", "w") as archive:
        for name, kind, target in entries:
            info = tarfile.TarInfo(f"{top}/{name}")
            info.type, info.linkname = kind, f"{top}/{target}" if target else ""
            info.size = 3 if kind == tarfile.REGTYPE else 0
            archive.addfile(info, io.BytesIO(b"x=1"))
    places = ContainerPlaces(root / "workspace", root / "private")
    transfer = CopiedDirectory(cast("EngineClient", None), places, (), 0, None)
    return transfer.close_but_home()


def test_a_home_that_came_as_an_archive(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    site = f".local/{SITE}"
    above = (".cache", ".local", ".local/lib", ".local/lib/python3.11", site)
    folders = [(name, tarfile.DIRTYPE, "") for name in above]
    first = [(".cache/x.py", tarfile.REGTYPE, ""), (f"{site}/a.py", tarfile.REGTYPE, "")]
    links = [(f"{site}/b.py", tarfile.LNKTYPE, f"{site}/a.py"), (f"{site}/c.py", tarfile.LNKTYPE, ".cache/x.py")]
    others = [(f"{site}/d.py", tarfile.SYMTYPE, ""), (f"{site}/json.py", tarfile.REGTYPE, "")]
    home = kept_as_archive(tmp_path, [*folders, *first, *links, *others])
    notices = copy_packages(home, tmp_path / "workspace", tmp_path / "copy")
    copies = sorted((tmp_path / "copy/home" / site).iterdir())
    assert [(path.name, path.read_bytes()) for path in copies] == [("a.py", b"x=1"), ("b.py", b"x=1")]
    assert "json.py" in notices[0]
    assert f"home/{site}/c.py (" in notices[1]


def test_a_home_of_very_many_files_as_an_archive_is_not_held(tmp_path: Path) -> None:
    (tmp_path / "workspace").mkdir()
    home = kept_as_archive(tmp_path, ((f"{number}/x", tarfile.DIRTYPE, "") for number in range(10_000)))
    tracemalloc.start()
    try:
        assert copy_packages(home, tmp_path / "workspace", tmp_path / "copy") == ()
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_file_of_nothing_but_a_hole_does_not_fill_the_disk(tmp_path: Path, installed: Path) -> None:
    write(installed, "fine.py")
    with (installed / "hole.so").open("wb") as file:
        file.truncate(1 << 40)
    files, notices = copied(tmp_path)
    assert files == [f"home/.local/{SITE}/fine.py"]
    assert "hole.so (more than" in notices[0]
