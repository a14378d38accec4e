"""The files of a commit, read from a checkout that nobody vouches for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from support.repositories import commit, git, write

from keystone_action.files.git.commands import GitFailed
from keystone_action.files.git.commits import Remote, open_commit


def private(tmp_path: Path, name: str = "private") -> Path:
    folder = tmp_path / name
    folder.mkdir()
    return folder


def repository(place: Path, *options: str) -> Path:
    place.mkdir(parents=True)
    git(place, "init", "-q", "-b", "main", *options)
    return place


@pytest.mark.parametrize("form", ["sha1", "sha256"])
@pytest.mark.parametrize("name", ["plain", "with: colon", 'quote"d', "back\\slash: x"])
def test_files_modes_and_contents(tmp_path: Path, form: str, name: str) -> None:
    checkout = repository(tmp_path / name, f"--object-format={form}")
    write(checkout, {"a.txt": "a\n", "deep/er/b": "b", "run.sh": "x", "ünïcode\nname": "u"})
    (checkout / "run.sh").chmod(0o755)
    (checkout / "link").symlink_to("deep/er")
    sha = commit(checkout, {})
    git(checkout, "rm", "-rq", ".")
    tree = open_commit(checkout, sha, private(tmp_path))
    assert set(tree.entries) == {"a.txt", "deep/er/b", "run.sh", "ünïcode\nname", "link"}
    assert tree.folders == {"deep", "deep/er"}
    tree.write(tree.entries, top := private(tmp_path, "top"))
    assert (top / "ünïcode\nname").read_text() == "u"
    assert (top / "run.sh").stat().st_mode & 0o111
    assert (top / "link" / "b").read_text() == "b"


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_line_ends_are_those_of_a_checkout_of_this_very_commit(tmp_path: Path, form: str) -> None:
    checkout = repository(tmp_path / "r", f"--object-format={form}")
    attributes = {
        ".gitattributes": "*.bat text eol=crlf\n*.id ident\n*.run filter=run\n",
        "d/.gitattributes": "* -text\n",
    }
    files = {"a.bat": "a\n", "a.sh": "a\n", "d/b.bat": "b\n", "i.id": "$Id$\n", "f.run": "f\n"}
    git(checkout, "config", "filter.run.smudge", f"touch {tmp_path}/ran; cat")
    sha = commit(checkout, {**attributes, **files})
    commit(checkout, {".gitattributes": "* text eol=crlf\n"})
    tree = open_commit(checkout, sha, private(tmp_path))
    tree.write(["a.bat", "a.sh", "d/b.bat", "i.id", "f.run"], top := private(tmp_path, "top"))
    found = {name: (top / name).read_bytes() for name in ("a.bat", "a.sh", "d/b.bat", "f.run")}
    assert found == {"a.bat": b"a\r\n", "a.sh": b"a\n", "d/b.bat": b"b\n", "f.run": b"f\n"}
    assert (top / "i.id").read_bytes().startswith(b"$Id: ")
    assert not (tmp_path / "ran").exists()
    tree.write(["a.sh"], again := private(tmp_path, "again"), settings={"core.autocrlf": "true"})
    assert (again / "a.sh").read_bytes() == b"a\r\n"


def test_where_paths_lead(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "r")
    write(checkout, {"real/file": "x"})
    links = {"dir": "real", "up": "../outside", "abs": "/etc", "loop": "loop", "deep/back": "../dir/file", "gone": "no"}
    for name, target in links.items():
        (checkout / name).parent.mkdir(exist_ok=True)
        (checkout / name).symlink_to(target)
    tree = open_commit(checkout, commit(checkout, {}), private(tmp_path))
    leads = {
        "": "",
        "real": "real",
        "real/file": "real/file",
        "dir": "real",
        "dir/file": "real/file",
        "deep/back": "real/file",
        "dir/../real/file": "real/file",
        "up": None,
        "abs": None,
        "loop": None,
        "gone": None,
        "missing": None,
        "../r": None,
        "real/file/more": None,
    }
    assert {path: tree.resolve(path) for path in leads} == leads
    assert {"dir", "deep/back", "loop"} <= set(tree.followed)


def test_submodules_and_names_that_no_checkout_has_are_left_out(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "r")
    blob = git(checkout, "hash-object", "-w", "--stdin", "--path=x")
    first = commit(checkout, {"good": "x"})
    entries = (
        f"160000 commit {first}\tsub\n100644 blob {blob}\t.git\n100644 blob {blob}\t..\n100644 blob {blob}\tgood\n"
    )
    made = subprocess.run(["git", "mktree"], cwd=checkout, input=entries, capture_output=True, text=True, check=True)
    sha = git(checkout, "commit-tree", "-m", "odd", made.stdout.strip())
    tree = open_commit(checkout, sha, private(tmp_path))
    assert set(tree.entries) == {"good"}


def test_nothing_is_written_through_a_link(tmp_path: Path) -> None:
    """A tree made by hand can have a link, and files below its name."""
    checkout = repository(tmp_path / "r")
    blob = git(checkout, "hash-object", "-w", "--stdin")
    outside = tmp_path / "outside"
    outside.mkdir()
    target = subprocess.run(
        ["git", "hash-object", "-w", "--stdin"],
        cwd=checkout,
        input=str(outside),
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    inner = f"100644 blob {blob}\tevil\n"
    below = subprocess.run(["git", "mktree"], cwd=checkout, input=inner, capture_output=True, text=True, check=True)
    both = f"120000 blob {target}\tdoor\n040000 tree {below.stdout.strip()}\tdoor\n"
    made = subprocess.run(["git", "mktree"], cwd=checkout, input=both, capture_output=True, text=True, check=True)
    sha = git(checkout, "commit-tree", "-m", "odd", made.stdout.strip())
    tree = open_commit(checkout, sha, private(tmp_path))
    top = private(tmp_path, "top")
    tree.write(["door"], top)
    tree.write(tree.entries, top)
    assert list(outside.iterdir()) == []


@pytest.mark.parametrize("sha", ["HEAD", "", "a" * 39, "--help", "A" * 40, "0" * 40])
def test_what_is_no_commit(tmp_path: Path, sha: str) -> None:
    checkout = repository(tmp_path / "r")
    commit(checkout, {"a": "b"})
    with pytest.raises(GitFailed):
        open_commit(checkout, sha, private(tmp_path))


def test_a_missing_commit_is_fetched_into_our_own_repository(tmp_path: Path) -> None:
    origin = repository(tmp_path / "origin")
    sha = commit(origin, {"a": "b"})
    git(origin, "config", "uploadpack.allowAnySHA1InWant", "true")
    checkout = repository(tmp_path / "checkout")
    commit(checkout, {"other": "x"})
    before = git(checkout, "count-objects", "-v")
    tree = open_commit(checkout, sha, private(tmp_path), Remote(origin.as_uri()))
    assert tree.read(["a"]) == {"a": b"b"}
    assert git(checkout, "count-objects", "-v") == before


def test_a_partial_clone_is_completed(tmp_path: Path) -> None:
    """`filter: blob:none` leaves commits and trees without their files."""
    origin = repository(tmp_path / "origin")
    sha = commit(origin, {"a": "base\n"})
    commit(origin, {"a": "head\n"})
    for name in ("allowFilter", "allowAnySHA1InWant"):
        git(origin, "config", f"uploadpack.{name}", "true")
    git(tmp_path, "clone", "-q", "--filter=blob:none", origin.as_uri(), "partial")
    with pytest.raises(GitFailed, match="the checkout does not have it"):
        open_commit(tmp_path / "partial", sha, private(tmp_path))
    tree = open_commit(tmp_path / "partial", sha, private(tmp_path, "other"), Remote(origin.as_uri()))
    assert tree.read(["a"]) == {"a": b"base\n"}


def test_the_refusal_names_no_token(tmp_path: Path) -> None:
    checkout = repository(tmp_path / "r")
    commit(checkout, {})
    remote = Remote("http://user:hunter22@127.0.0.1:9/x/y", token="ghs_secret")
    with pytest.raises(GitFailed) as refused:
        open_commit(checkout, "a" * 40, private(tmp_path), remote)
    assert "127.0.0.1:9/x/y" in str(refused.value)
    assert "hunter22" not in str(refused.value)
    assert "ghs_secret" not in str(refused.value) + repr(remote)


def test_a_folder_without_git(tmp_path: Path) -> None:
    with pytest.raises(GitFailed, match="is not a git checkout"):
        open_commit(tmp_path, "a" * 40, private(tmp_path))
