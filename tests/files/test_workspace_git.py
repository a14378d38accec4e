"""What becomes of a copied `.git`: no credentials, no hooks, no withheld history."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from keystone_action.files.git import commands as git
from keystone_action.files.workspace import copy_tree


def _git(directory: Path, *arguments: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "protocol.file.allow=always")
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "GIT_CONFIG_NOSYSTEM": "1"}
    environment |= {"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
    done = subprocess.run(
        ["git", *settings, *arguments], cwd=directory, env=environment, check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def _repository(directory: Path, files: dict[str, str]) -> Path:
    directory.mkdir(parents=True)
    _git(directory, "init", "-q", "-b", "trunk")
    _commit(directory, files)
    return directory


def _commit(directory: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_text(text)
    _git(directory, "add", "-A")
    _git(directory, "commit", "-q", "-m", "work")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return _repository(tmp_path / "source", {"main.py": "1\n", "checks/hidden.py": "the hidden test\n"})


def _holds(directory: Path, text: str) -> bool:
    """Whether any object of the repository, reachable or not, has this text."""
    listed = _git(directory, "cat-file", "--batch-all-objects", "--batch-check=%(objectname) %(objecttype)")
    blobs = [line.split()[0] for line in listed.splitlines() if line.endswith("blob")]
    return any(text in _git(directory, "cat-file", "blob", blob) for blob in blobs)


def test_a_history_without_withheld_files_stays(source: Path, tmp_path: Path) -> None:
    (source / "new.py").touch()
    report = copy_tree(source, tmp_path / "copy", withheld=[source / "not-committed.py", tmp_path / "elsewhere"])
    assert report.history == ()
    assert _git(tmp_path / "copy", "rev-parse", "HEAD") == _git(source, "rev-parse", "HEAD")
    assert _git(tmp_path / "copy", "status", "--short") == "?? new.py"


def test_no_credential_hook_or_include_is_handed_on(source: Path, tmp_path: Path) -> None:
    for key, value in {
        "http.https://github.com/.extraheader": "AUTHORIZATION: basic c2VjcmV0",
        "credential.helper": "store",
        "core.fsmonitor": "touch /tmp/never",
        "core.sshCommand": "ssh -i /secret/key",
        "includeIf.gitdir:/.path": "/secret/config",
        "remote.origin.url": "https://x-access-token:secret@github.com/a/b",
        "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
        'branch.odd "name\\.merge': "refs/heads/x",
    }.items():
        _git(source, "config", key, value)
    (source / ".git/hooks").mkdir(exist_ok=True)
    (source / ".git/hooks/pre-commit").write_text("secret")
    copy_tree(source, tmp_path / "copy")
    config = (tmp_path / "copy/.git/config").read_text()
    assert not [word for word in ("secret", "AUTHORIZATION", "fsmonitor", "credential", "include") if word in config]
    assert not (tmp_path / "copy/.git/hooks").exists()
    assert _git(tmp_path / "copy", "remote", "get-url", "origin") == "https://github.com/a/b"
    assert _git(tmp_path / "copy", "config", 'branch.odd "name\\.merge') == "refs/heads/x"


def _tracked(source: Path) -> None:
    assert _git(source, "ls-files", "checks") == "checks/hidden.py"


def _removed_later(source: Path) -> None:
    hidden = (source / "checks/hidden.py").read_text()
    _git(source, "rm", "-q", "checks/hidden.py")
    _git(source, "commit", "-q", "-m", "remove")
    (source / "checks").mkdir(exist_ok=True)
    (source / "checks/hidden.py").write_text(hidden + "changed since\n")


def _staged_only(source: Path) -> None:
    _git(source, "checkout", "-q", "--orphan", "fresh")
    _git(source, "branch", "-D", "trunk")
    _git(source, "reflog", "expire", "--expire=now", "--all")


def _on_another_branch(source: Path) -> None:
    _git(source, "checkout", "-q", "--orphan", "other")
    _git(source, "rm", "-q", "--cached", "checks/hidden.py")
    _git(source, "commit", "-q", "-m", "without")


def _under_another_name(source: Path) -> None:
    other = source.parent / "other"
    _repository(other, {"main.py": "1\n", "old/place.py": "the hidden test\n"})
    _git(source, "checkout", "-q", "--orphan", "other")
    for path in (source / ".git", other / ".git"):
        path.rename(path.with_name(".moved"))
    (other / ".moved").rename(source / ".git")


def _unreachable(source: Path) -> None:
    _under_another_name(source)
    _git(source, "rm", "-q", "--cached", "old/place.py")
    _git(source, "commit", "-q", "--amend", "-m", "without")
    _git(source, "reflog", "expire", "--expire=now", "--all")


@pytest.mark.parametrize(
    "history", [_tracked, _removed_later, _staged_only, _on_another_branch, _under_another_name, _unreachable]
)
def test_a_history_with_withheld_files_becomes_one_commit(source: Path, tmp_path: Path, history: object) -> None:
    assert callable(history)
    history(source)
    copy = tmp_path / "copy"
    report = copy_tree(source, copy, withheld=[source / "checks/hidden.py"])
    assert len(report.history) == 1
    assert report.history[0].startswith("the history of .git was replaced by one commit: it holds")
    assert report.notices == report.history
    assert _git(copy, "rev-list", "--all", "--count") == "1"
    assert _git(copy, "ls-files") == "main.py"
    assert not (copy / "checks/hidden.py").exists()
    assert not _holds(copy, "the hidden test")


def test_the_one_commit_holds_what_was_tracked(source: Path, tmp_path: Path) -> None:
    _commit(source, {".gitignore": "*.log\n"})
    (source / "tracked.log").write_text("tracked, though ignored")
    _git(source, "add", "-f", "tracked.log")
    (source / "other.log").touch()
    (source / "untracked.py").touch()
    (source / "run.sh").touch(mode=0o755)
    (source / "link").symlink_to("main.py")
    (source / "[odd] *name\n").touch()
    _git(source, "add", "run.sh", "link", ":(literal)[odd] *name\n")
    copy = tmp_path / "copy"
    copy_tree(source, copy, withheld=[source / "checks"])
    assert _git(copy, "status", "--short", "--branch").splitlines() == ["## trunk", "?? untracked.py"]
    listed = _git(copy, "ls-files", "-z", "--stage").split("\0")
    modes = {entry.split("\t")[1]: entry.split()[0] for entry in listed if entry}
    assert modes["run.sh"] == "100755"
    assert modes["link"] == "120000"
    assert set(modes) == {".gitignore", "main.py", "tracked.log", "run.sh", "link", "[odd] *name\n"}


def test_a_history_is_one_commit_on_main_where_that_is_asked_for(source: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    report = copy_tree(source, copy, without_history="it is recorded")
    assert report.history == ("the history of .git was replaced by one commit: it is recorded",)
    assert _git(copy, "rev-list", "--all", "--count") == "1"
    assert _git(copy, "status", "--short", "--branch") == "## main"


def test_two_copies_have_the_same_commit(source: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        copy_tree(source, tmp_path / name, withheld=[source / "checks"])
    assert _git(tmp_path / "a", "rev-parse", "HEAD") == _git(tmp_path / "b", "rev-parse", "HEAD")


def test_a_linked_worktree_gets_a_repository_of_its_own(source: Path, tmp_path: Path) -> None:
    _git(source, "worktree", "add", "-q", str(tmp_path / "linked"))
    report = copy_tree(tmp_path / "linked", tmp_path / "copy")
    assert report.history == ("the history of .git was replaced by one commit: it lies outside of what was copied",)
    assert (tmp_path / "copy/.git").is_dir()
    assert _git(tmp_path / "copy", "ls-files").splitlines() == ["checks/hidden.py", "main.py"]


@pytest.fixture
def with_submodule(source: Path, tmp_path: Path) -> Path:
    library = _repository(tmp_path / "library", {"lib.py": "lib\n", "hidden.txt": "hidden in the submodule\n"})
    _git(source, "submodule", "--quiet", "add", str(library), "vendor/lib")
    _git(source, "commit", "-q", "-m", "submodule")
    _git(source / "vendor/lib", "config", "http.https://github.com/.extraheader", "secret")
    return source


def test_a_submodule_stays_one_without_its_credentials(with_submodule: Path, tmp_path: Path) -> None:
    report = copy_tree(with_submodule, tmp_path / "copy")
    assert report.history == ()
    inner = tmp_path / "copy/vendor/lib"
    assert _git(inner, "rev-parse", "--show-toplevel") == str(inner)
    assert _git(tmp_path / "copy", "status", "--short") == ""
    assert "secret" not in (tmp_path / "copy/.git/modules/vendor/lib/config").read_text()


@pytest.mark.parametrize("asked_for", ["", "so that each run sees the same"])
def test_a_submodule_stays_one_where_the_history_around_it_is_replaced(
    with_submodule: Path, tmp_path: Path, asked_for: str
) -> None:
    """Its directory lies in that of the repository around it, and its own submodule's in its own."""
    inner = _repository(tmp_path / "inner", {"deep.py": "deep\n"})
    _git(with_submodule / "vendor/lib", "submodule", "--quiet", "add", str(inner), "deep")
    _git(with_submodule / "vendor/lib", "commit", "-q", "-m", "deep")
    _git(with_submodule, "commit", "-qam", "deeper")
    copy = tmp_path / "copy"
    withheld = [] if asked_for else [with_submodule / "checks/hidden.py"]
    report = copy_tree(with_submodule, copy, withheld=withheld, without_history=asked_for)
    assert len(report.history) == (3 if asked_for else 1)
    assert _git(copy, "log", "--format=%s") == "The workspace as it was given"
    for place in ("", "vendor/lib", "vendor/lib/deep"):
        assert _git(copy / place, "rev-parse", "--show-toplevel") == str(copy / place)
        assert _git(copy / place, "status", "--short") == ""
    if not asked_for:
        for place in ("vendor/lib", "vendor/lib/deep"):
            assert _git(copy / place, "rev-parse", "HEAD") == _git(with_submodule / place, "rev-parse", "HEAD")
        assert not _holds(copy, "the hidden test")


def test_a_submodule_with_withheld_files_is_replaced(with_submodule: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    report = copy_tree(with_submodule, copy, withheld=[with_submodule / "vendor/lib/hidden.txt"])
    assert [sentence.split(" was ")[0] for sentence in report.history] == ["the history of vendor/lib/.git"]
    assert _git(copy / "vendor/lib", "ls-files") == "lib.py"
    assert not _holds(copy / "vendor/lib", "hidden in the submodule")
    assert not (copy / ".git/modules/vendor/lib").exists()


@pytest.mark.parametrize("content", ["", "gitdir: /etc", "gitdir: ../../..", "nonsense", "gitdir: .git"])
def test_a_git_file_that_leads_nowhere_becomes_a_repository(tmp_path: Path, content: str) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/.git").write_text(content)
    (tmp_path / "source/file").touch()
    report = copy_tree(tmp_path / "source", tmp_path / "copy")
    assert len(report.history) == 1
    assert _git(tmp_path / "copy", "ls-files") == "file"


def test_borrowed_objects_are_not_handed_on(source: Path, tmp_path: Path) -> None:
    _git(tmp_path, "clone", "-q", "--shared", str(source), "borrower")
    report = copy_tree(tmp_path / "borrower", tmp_path / "copy")
    assert report.history == ("the history of .git was replaced by one commit: its objects lie in another repository",)
    assert _git(tmp_path / "copy", "status", "--short") == ""


def test_without_git_the_history_is_left_out(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git, "has_git", lambda: False)
    report = copy_tree(source, tmp_path / "copy")
    assert not (tmp_path / "copy/.git").exists()
    assert report.history[0].startswith(".git was left out: git is not installed")
