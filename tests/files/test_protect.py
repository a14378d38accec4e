"""Taking back an agent's changes to protected files, whatever it put in their place."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from support.started_as import as_plain_user

from keystone_action.files.globs import RestoredFiles, put_file, restore_protected
from keystone_action.files.paths import PathEscape
from keystone_action.files.removal import remove_tree
from keystone_action.files.workspace import compare_entries, copy_as_left, keep_originals, snapshot


class Past:
    """A workspace before and after an agent."""

    def __init__(self, root: Path) -> None:
        self.root, self.workspace = root, root / "workspace"
        self.workspace.mkdir()

    def start(self) -> None:
        self.originals = keep_originals(self.workspace, self.root / "before")
        self.before = snapshot(self.workspace)

    def take_back(self, *patterns: str) -> tuple[RestoredFiles, Path]:
        copy = self.root / "copy"
        copy_as_left(self.workspace, copy, drop_outside_links=False)
        found = compare_entries(self.before, snapshot(self.workspace))
        return restore_protected(copy, self.originals, found, patterns), copy


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_changed_removed_and_added_files(past: Past) -> None:
    for name in ("conftest.py", "a/conftest.py", "a/other.py"):
        write(past.workspace / name, "author's")
    past.start()
    write(past.workspace / "conftest.py", "agent's")
    (past.workspace / "a" / "conftest.py").unlink()
    write(past.workspace / "a" / "other.py", "agent's")
    write(past.workspace / ".hidden" / "deep" / "conftest.py", "agent's")
    taken, copy = past.take_back("**/conftest.py")
    assert taken == RestoredFiles(("a/conftest.py", "conftest.py"), (".hidden/deep/conftest.py",))
    assert (copy / "conftest.py").read_text() == (copy / "a" / "conftest.py").read_text() == "author's"
    assert (copy / "a" / "other.py").read_text() == "agent's"
    assert not (copy / ".hidden" / "deep" / "conftest.py").exists()
    assert (past.workspace / "conftest.py").read_text() == "agent's"


def test_modes_links_and_directories(past: Past) -> None:
    write(past.workspace / "ci" / "run", "author's")
    (past.workspace / "ci" / "run").chmod(0o755)
    (past.workspace / "ci" / "link").symlink_to("run")
    (past.workspace / "ci" / "empty").mkdir()
    past.start()
    (past.workspace / "ci" / "run").chmod(0o600)
    (past.workspace / "ci" / "link").unlink()
    (past.workspace / "ci" / "link").write_text("agent's")
    (past.workspace / "ci" / "empty").rmdir()
    (past.workspace / "ci" / "empty").write_text("agent's")
    taken, copy = past.take_back("ci/")
    assert taken.restored == ("ci/empty", "ci/link", "ci/run")
    assert (copy / "ci" / "run").stat().st_mode & 0o777 == 0o755
    assert (copy / "ci" / "link").readlink() == Path("run")
    assert (copy / "ci" / "empty").is_dir()


@pytest.mark.parametrize("kind", ["link out", "link in", "file", "gone"])
def test_the_way_to_a_protected_file_is_made_anew(past: Past, kind: str) -> None:
    write(past.workspace / "tests" / "deep" / "conftest.py", "author's")
    past.start()
    outside = past.root / "outside"
    outside.mkdir()
    (past.workspace / "tests").rename(past.root / "moved")
    if kind == "link out":
        (past.workspace / "tests").symlink_to(outside)
    elif kind == "link in":
        write(past.workspace / "own" / "deep" / "conftest.py", "agent's")
        (past.workspace / "tests").symlink_to("own")
    elif kind == "file":
        (past.workspace / "tests").write_text("agent's")
    _, copy = past.take_back("**/conftest.py")
    assert (copy / "tests" / "deep" / "conftest.py").read_text() == "author's"
    assert not (copy / "tests").is_symlink()
    assert not (copy / "own" / "deep" / "conftest.py").exists()
    assert list(outside.iterdir()) == []


def test_a_protected_name_that_is_a_directory_or_a_link(past: Past) -> None:
    past.start()
    write(past.workspace / "conftest.py" / "x" / "y", "agent's")
    (past.workspace / "pytest.ini").symlink_to("/etc/passwd")
    taken, copy = past.take_back("**/conftest.py", "**/pytest.ini")
    assert taken.removed == ("conftest.py/x/y", "pytest.ini")
    assert [path for path in copy.rglob("*") if not path.is_dir() or path.is_symlink()] == []


def test_a_link_of_the_authors_on_the_way_stays(past: Past) -> None:
    write(past.workspace / "real" / "test_x.py", "old")
    (past.workspace / "tests").symlink_to("real")
    past.start()
    _, copy = past.take_back()
    put_file(copy, "tests/test_x.py", b"new", past.originals)
    assert (copy / "tests").is_symlink()
    assert (copy / "real" / "test_x.py").read_text() == "new"


@pytest.mark.parametrize("place", ["tests/test_x.py", "tests/sub/test_x.py", "tests/new/test_x.py", "tests/file/x.py"])
def test_a_link_of_the_authors_never_leads_out_by_one_of_the_agents(past: Past, place: str) -> None:
    """As root we could make, open and remove anything there."""
    write(past.workspace / "real" / "test_x.py", "old")
    (past.workspace / "tests").symlink_to("real")
    past.start()
    outside = past.root / "outside"
    write(outside / "file", "somebody's")
    (outside / "sub").mkdir(mode=0o555)
    remove_tree(past.workspace / "real")
    (past.workspace / "real").symlink_to(outside)
    before = snapshot(outside)
    _, copy = past.take_back()
    with pytest.raises(PathEscape, match="out of the workspace"):
        put_file(copy, place, b"new", past.originals)
    assert compare_entries(before, snapshot(outside)) == ()


def test_a_folder_that_a_link_of_the_authors_leads_to_is_made_again(past: Past) -> None:
    write(past.workspace / "real" / "test_x.py", "old")
    (past.workspace / "tests").symlink_to("real")
    past.start()
    remove_tree(past.workspace / "real")
    _, copy = past.take_back()
    put_file(copy, "tests/test_x.py", b"new", past.originals)
    assert (copy / "real" / "test_x.py").read_text() == "new"


def test_a_file_is_put_where_a_tree_was(past: Past) -> None:
    past.start()
    write(past.workspace / "test_x.py" / "a" / "b", "agent's")
    _, copy = past.take_back()
    put_file(copy, "test_x.py", b"new")
    assert (copy / "test_x.py").read_text() == "new"


@pytest.mark.parametrize("mode", [0o555, 0o300, 0o000])
def test_what_is_closed_to_its_owner_is_opened(tmp_path: Path, mode: int) -> None:
    """Modes hold a plain user, and as root the one that the tests run as: the agent's, who may have closed them."""

    def closed(root: Path) -> None:
        past = Past(root)
        write(past.workspace / "tests" / "conftest.py", "author's")
        past.start()
        write(past.workspace / "tests" / "conftest.py", "agent's")
        taken, copy = past.take_back()
        assert taken == RestoredFiles()
        (copy / "tests").chmod(mode)
        copy.chmod(mode)
        changes = compare_entries(past.before, snapshot(past.workspace))
        assert restore_protected(copy, past.originals, changes, ("**/conftest.py",)).restored == ("tests/conftest.py",)
        put_file(copy, "tests/test_x.py", b"new")
        assert (copy / "tests" / "conftest.py").read_text() == "author's"
        assert (copy / "tests" / "test_x.py").read_text() == "new"
        assert [stat.S_IMODE(folder.stat().st_mode) & 0o700 for folder in (copy, copy / "tests")] == [0o700, 0o700]

    closed(tmp_path)
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o777)
        assert as_plain_user(lambda: closed(Path(name))) == ""
