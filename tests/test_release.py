"""What a release does to the tree, on a copy of the files that it touches; and the shell of release.yml by real git."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from keystone_action import __version__
from tools.release import ReleaseError, bump, check, main, pin

ROOT = Path(__file__).parents[1]
DIGEST = "sha256:" + "a" * 64
IMAGE = f"docker://ghcr.io/keystone-action/keystone-action:{__version__}@{DIGEST}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    names = ["pyproject.toml", "uv.lock", "action.yml", "README.md", "keystone_action/__init__.py"]
    globs = [".github/workflows/*.yml", "docs/*.md", "examples/workflows/*.yml", "tools/*.py"]
    for source in [ROOT / name for name in names] + [path for glob in globs for path in ROOT.glob(glob)]:
        copy = tmp_path / source.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
    return tmp_path


def texts(tree: Path) -> dict[str, str]:
    return {str(path.relative_to(tree)): path.read_text() for path in tree.rglob("*") if path.is_file()}


def test_this_tree_could_be_released() -> None:
    check(ROOT, __version__)


def test_a_version_that_is_not_the_trees_is_refused(tree: Path) -> None:
    with pytest.raises(ReleaseError, match=re.escape(f"pyproject.toml has {__version__}, not 9.9.9")):
        check(tree, "9.9.9")


@pytest.mark.parametrize("name", ["keystone_action/__init__.py", "uv.lock", ".github/workflows/evaluate.yml"])
def test_one_place_that_was_forgotten_is_named(tree: Path, name: str) -> None:
    path = tree / name
    marks = {"uv.lock": 'name = "keystone-action"\nversion = "', ".github/workflows/evaluate.yml": "action@v"}
    before = marks.get(name, '"') + __version__
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, before.replace(__version__, "8.8.8"), 1))
    with pytest.raises(ReleaseError, match=rf"^{re.escape(name)} has "):
        check(tree, __version__)


@pytest.mark.parametrize("version", ["1", "v1.2.3", "1.2.3-rc1", "1.2.3\n", "1.2.3; true", ""])
def test_what_is_no_version_is_refused(tree: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="is no version"):
        bump(tree, version)


def test_a_new_version_stands_everywhere_and_nothing_else_changes(tree: Path) -> None:
    before = texts(tree)
    bump(tree, "3.14.1")
    after = texts(tree)
    for name, text in after.items():
        undone = text.replace("3.14.1", __version__)
        undone = re.sub(r"(keystone-action/keystone-action\S*@v)3\b", rf"\g<1>{__version__.partition('.')[0]}", undone)
        assert undone == before[name], name
    assert "keystone-action/keystone-action@v3.14.1\n" in after[".github/workflows/evaluate.yml"]
    assert "uses: keystone-action/keystone-action@v3\n" in after["README.md"]
    check(tree, "3.14.1")


def test_the_image_is_written_and_nothing_else_changes(tree: Path) -> None:
    before = yaml.safe_load((tree / "action.yml").read_text())
    pin(tree, IMAGE)
    after = yaml.safe_load((tree / "action.yml").read_text())
    assert after["runs"].pop("image") == IMAGE
    assert before["runs"].pop("image") == "Dockerfile"
    assert after == before
    with pytest.raises(ReleaseError, match="on main it builds the image"):
        pin(tree, IMAGE)


@pytest.mark.parametrize(
    "image",
    [
        IMAGE.removeprefix("docker://"),
        IMAGE.partition("@")[0],
        IMAGE.replace(__version__, "latest"),
        IMAGE.replace(__version__, "9.9.9"),
        IMAGE + "\n",
        IMAGE.replace("ghcr", "$(x)"),
    ],
)
def test_an_image_without_version_or_digest_is_refused(tree: Path, image: str) -> None:
    with pytest.raises(ReleaseError):
        pin(tree, image)
    assert "image: Dockerfile" in (tree / "action.yml").read_text()


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == main(["publish", "1.0.0"]) == 2
    assert main(["check", "9.9.9"]) == 1
    assert "release: pyproject.toml has" in capsys.readouterr().err


def test_the_workflow_tags_the_release_commit_and_moves_the_major_tag(
    tree: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Its own shell, with real git and a bare repository for GitHub; `gh` is all that is missing here."""
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text())
    assert workflow["defaults"] == {"run": {"shell": "bash"}}
    steps = workflow["jobs"]["publish"]["steps"]
    (script,) = [step["run"] for step in steps if step.get("name", "").startswith("Pin the image")]
    folder = tmp_path_factory.mktemp("release")
    origin, said = folder / "origin.git", folder / "gh.log"
    (folder / "gh").write_text(f'#!/bin/sh\necho "$@" >> {said}\n')
    (folder / "gh").chmod(0o755)

    def git(*arguments: str) -> str:
        identity = ["-c", "user.name=a", "-c", "user.email=a@b.test"]
        return subprocess.run(
            ["git", *identity, *arguments], cwd=tree, check=True, capture_output=True, text=True
        ).stdout.strip()

    subprocess.run(["git", "init", "--quiet", "--bare", str(origin)], check=True)
    git("init", "--quiet", "--initial-branch=main")
    git("remote", "add", "origin", str(origin))
    git("add", ".")
    git("commit", "--quiet", "--message=main")
    major = f"v{__version__.partition('.')[0]}"
    git("tag", major)
    git("push", "--quiet", "origin", "main", major)
    main_commit = git("rev-parse", "HEAD")
    environ = {
        "PATH": f"{folder}:/usr/local/bin:/usr/bin:/bin",
        "HOME": str(folder),
        "IMAGE": "ghcr.io/keystone-action/keystone-action",
        "VERSION": __version__,
        "DIGEST": DIGEST,
    }
    command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
    done = subprocess.run(command, cwd=tree, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    git("fetch", "--quiet", "--tags", "--force", "origin")
    release = git("ls-remote", "origin", f"refs/tags/v{__version__}").split()[0]
    assert git("ls-remote", "origin", f"refs/tags/{major}").split()[0] == release
    assert git("ls-remote", "origin", "refs/heads/main").split()[0] == main_commit
    assert git("rev-parse", f"{release}^") == main_commit
    assert git("diff", "--name-only", main_commit, release) == "action.yml"
    assert f"image: {IMAGE}" in git("show", f"{release}:action.yml")
    assert f"release create v{__version__} --verify-tag" in said.read_text()
