"""`diff.patch`: what git can apply, what is said instead where nothing can be shown, and its bounds."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keystone_action.files import patch
from keystone_action.files.git import commands as git
from keystone_action.files.workspace import (
    compare_entries,
    copy_as_left,
    keep_originals,
    remove_tree,
    snapshot,
    write_patch,
)


class Scene:
    """A workspace before and after the agent."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.workspace = directory / "workspace"
        self.workspace.mkdir()
        self.originals: Path | None = None

    def start(self) -> None:
        self.originals = keep_originals(self.workspace, self.directory / "originals")
        self.before = snapshot(self.workspace)

    def write(self, name: str, data: bytes | str) -> Path:
        path = self.workspace / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data.encode() if isinstance(data, str) else data)
        return path

    def patch(self, **options: int) -> str:
        found = compare_entries(self.before, snapshot(self.workspace))
        return write_patch(self.originals, self.workspace, found, **options).text


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def _applied(scene: Scene, text: str) -> dict[str, tuple[object, ...]]:
    """What the originals become when git applies the patch: by path, contents or target, and whether executable."""
    tree = scene.directory / "applied"
    if scene.originals is None:
        tree.mkdir()
    else:
        copy_as_left(scene.originals, tree, drop_outside_links=False)
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_DIR": "/nonexistent"}
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"], cwd=tree, input=os.fsencode(text), env=environment, check=True
    )
    found = _contents(tree)
    remove_tree(tree)
    return found


def _contents(tree: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(tree.rglob("*")):
        if path.is_symlink():
            found[str(path.relative_to(tree))] = ("link", str(path.readlink()))
        elif path.is_file():
            found[str(path.relative_to(tree))] = (path.read_bytes(), bool(path.stat().st_mode & 0o100))
    return found


def test_git_applies_what_was_written(scene: Scene) -> None:
    scene.write("changed.py", "".join(f"line {n}\n" for n in range(100)))
    scene.write("removed/file.txt", "gone\nwith its last line unfinished")
    scene.write("run.sh", "#!/bin/sh\n")
    scene.write("became-link", "text\n")
    scene.write("became-directory", "text\n")
    scene.write("emptied", "text\n")
    scene.write(".gitattributes", "* -diff\n")
    (scene.workspace / "link").symlink_to("a")
    scene.start()
    scene.write("changed.py", "".join(f"line {n}\n" if n not in {3, 90} else f"other {n}\n" for n in range(100)))
    (scene.workspace / "removed/file.txt").unlink()
    (scene.workspace / "run.sh").chmod(0o755)
    (scene.workspace / "became-link").unlink()
    (scene.workspace / "became-link").symlink_to("run.sh")
    (scene.workspace / "became-directory").unlink()
    scene.write("became-directory/inner", "x")
    scene.write("emptied", "")
    scene.write('odd "näme"\twith\\all\nof it', "new\n")
    scene.write("empty", "")
    scene.write("dos.txt", "a\r\nb\r\n")
    (scene.workspace / "link").unlink()
    (scene.workspace / "link").symlink_to("b/c")
    text = scene.patch()
    assert _applied(scene, text) == _contents(scene.workspace)
    assert text.count("@@ -") == 11
    assert "-line 3\n+other 3\n" in text


def test_nothing_changed_is_an_empty_patch(scene: Scene) -> None:
    scene.write("file", "text")
    scene.start()
    assert scene.patch() == ""


def test_directories_are_no_part_of_it(scene: Scene) -> None:
    (scene.workspace / "directory").mkdir()
    scene.start()
    (scene.workspace / "directory").chmod(0o700)
    (scene.workspace / "new").mkdir()
    assert [change.path for change in compare_entries(scene.before, snapshot(scene.workspace))] == ["directory"]
    assert scene.patch() == ""


def test_an_empty_workspace_needs_no_originals_and_no_git(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    scene.start()
    scene.write("answer.txt", "42\n")
    assert scene.patch() == (
        "diff --git a/answer.txt b/answer.txt\nnew file mode 100644\n"
        "--- /dev/null\n+++ b/answer.txt\n@@ -0,0 +1 @@\n+42\n"
    )


def test_what_can_not_be_shown_is_said(scene: Scene) -> None:
    scene.start()
    scene.write("picture", b"\x89PNG\0\0")
    scene.write("large", b"x" * (patch.FILE_LIMIT + 1))
    os.mkfifo(scene.workspace / "fifo")
    text = scene.patch()
    assert "picture: added, binary, 6 bytes\n" in text
    assert "large: added, 1,048,577 bytes, too large to be shown\n" in text
    assert "fifo: added, a FIFO, socket or device\n" in text
    assert "@@" not in text


def test_git_applies_what_is_shown_beside_what_is_not(scene: Scene) -> None:
    """A binary file would become an empty one, and one file that git refuses would cost all others."""
    for name in ("a.bin", "gone.bin", "logo.png"):
        scene.write(name, b"\0old")
    for name in ("a.txt", "m.txt", "z.txt"):
        scene.write(name, "old\n")
    scene.start()
    expected = _contents(scene.workspace)
    scene.write("a.bin", b"\0new")
    (scene.workspace / "gone.bin").unlink()
    scene.write("logo.png", b"\0new")
    (scene.workspace / "logo.png").chmod(0o755)
    scene.write("new.bin", b"\0new")
    scene.write("large", b"x" * (patch.FILE_LIMIT + 1))
    scene.write("sub/.git", "gitdir: elsewhere\n")
    os.mkfifo(scene.workspace / "n.fifo")
    for name in ("a.txt", "m.txt", "z.txt"):
        scene.write(name, "new\n")
    shown = dict.fromkeys(("a.txt", "m.txt", "z.txt"), (b"new\n", False))
    assert _applied(scene, scene.patch()) == {**expected, **shown}


def test_bytes_that_are_no_text_stay_what_they_are(scene: Scene) -> None:
    scene.write("latin", b"caf\xe9\nsame \xfc\n")
    scene.write("removed", b"\xff\xfe\n")
    scene.start()
    scene.write("latin", b"th\xe9\nsame \xfc\n")
    scene.write("added", b"\xe4\xf6\xfc")
    (scene.workspace / "removed").unlink()
    text = scene.patch()
    assert b"-caf\xe9\n+th\xe9\n" in os.fsencode(text)
    assert _applied(scene, text) == _contents(scene.workspace)


def test_the_cut_is_said(scene: Scene) -> None:
    scene.start()
    for number in range(10):
        scene.write(f"file{number}", "x" * 1000)
    text = scene.patch(limit=3000)
    assert len(text) < 3200
    assert text.endswith("[… 8 more changed paths are not shown: the patch is limited to 3,000 bytes …]\n")
    scene.write("file0", "line\n" * 1000)
    cut = scene.patch(limit=3000)
    assert "# diff --git a/file0 b/file0\n[… more than 3,000 bytes, not shown …]\n" in cut
    assert _applied(scene, cut).keys() == {"file1", "file2"}


def test_without_git_the_names_are_still_there(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.write("file", "old\n")
    scene.start()
    scene.write("file", "new\n")
    monkeypatch.setattr(git, "command", lambda *arguments: ["/nonexistent/git", *arguments])
    text = scene.patch()
    assert text.startswith("# diff --git a/file b/file\nfile: changed, but can't be shown line by line: git is not")


def test_a_file_that_was_swapped_for_a_link_out_is_not_read(scene: Scene) -> None:
    """The states say `file`; the workspace now says otherwise."""
    (scene.directory / "secret").write_text("secret")
    scene.start()
    scene.write("file", "x" * 6)
    found = compare_entries(scene.before, snapshot(scene.workspace))
    (scene.workspace / "file").unlink()
    (scene.workspace / "file").symlink_to("../secret")
    text = write_patch(None, scene.workspace, found).text
    assert "secret" not in text
    assert "file: added, file leads out of the workspace" in text


_text = st.lists(st.sampled_from(["a", "b", "-- a/x", "++ b/x", "diff --git a/0 b/0", "@@ -1 +1 @@", "", "\\ No"])).map(
    "\n".join
)


@settings(
    max_examples=3 * settings().max_examples // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(old=_text, new=_text)
def test_any_text_survives_the_way_through_git(tmp_path_factory: pytest.TempPathFactory, old: str, new: str) -> None:
    scene = Scene(tmp_path_factory.mktemp("scene"))
    scene.write("file", old)
    scene.write("second", new)
    scene.start()
    scene.write("file", new)
    scene.write("second", old)
    text = scene.patch()
    assert bool(text) == (old != new)
    if text:
        assert _applied(scene, text) == _contents(scene.workspace)
