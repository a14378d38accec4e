"""What a release does to the tree, on a copy of the files that it touches."""

from __future__ import annotations

import io
import re
import shutil
from pathlib import Path

import pytest
import yaml

from keystone_action import __version__
from tools.release import ReleaseError, bump, check, main, newest, pin, show

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


OTHERS = ["keystone_action/__init__.py", "uv.lock", "docs/command-line.md", ".github/workflows/evaluate.yml"]


@pytest.mark.parametrize("name", OTHERS)
def test_one_place_that_was_forgotten_is_named(tree: Path, name: str) -> None:
    path = tree / name
    marks = {
        "uv.lock": 'name = "keystone-action"\nversion = "',
        ".github/workflows/evaluate.yml": "action@v",
        "docs/command-line.md": "rev: v",
    }
    before = marks.get(name, '"') + __version__
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, before.replace(__version__, "8.8.8"), 1))
    with pytest.raises(ReleaseError, match=rf"^{re.escape(name)} has "):
        check(tree, __version__)


@pytest.mark.parametrize("version", ["1", "v1.2.3", "1.2.3-rc1", "1.2.3\n", "1.2.3; true", ""])
def test_what_is_no_version_is_refused(tree: Path, version: str) -> None:
    with pytest.raises(ReleaseError, match="is not a version"):
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
    assert "uses: keystone-action/keystone-action@v3 # zizmor" in after["README.md"]
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


def test_the_pages_name_the_commit_of_the_newest_release_and_nothing_else_changes(tree: Path) -> None:
    """Whatever they named before: the major version, or the commit of an earlier release."""
    before = texts(tree)
    show(tree, f"{__version__}@{'a' * 40}")
    show(tree, f"3.14.1@{'b' * 40}")
    after = texts(tree)
    for name, text in after.items():
        for old, new in zip(before[name].splitlines(), text.splitlines(), strict=True):
            start, used, _ = old.partition("uses: keystone-action/keystone-action")
            pinned = re.escape(start + used) + r"(/\.github/workflows/evaluate\.yml)?@b{40} # v3\.14\.1"
            page = name.endswith(".md") or name.startswith("examples/")
            assert re.fullmatch(pinned, new) if page and used else old == new, name
    assert "@" + "b" * 40 in after["README.md"]
    check(tree, __version__)


@pytest.mark.parametrize("released", ["1.2.3", "1.2.3@", "1.2.3@main", "v1.2.3@" + "a" * 40, "1.2.3@" + "a" * 41])
def test_what_names_no_commit_of_a_release_is_refused(tree: Path, released: str) -> None:
    before = texts(tree)
    with pytest.raises(ReleaseError):
        show(tree, released)
    assert texts(tree) == before


@pytest.mark.parametrize("version", ["0.2.0", "1.2.10", "1.10.0", "2.0.0"])
def test_a_version_goes_on_from_the_tags_of_its_major(version: str) -> None:
    newest(["v0", "v0.1.0", "v1", "v1.2.9", "v3.0.0", "v1.99", "v1.99.0-rc1", "nightly"], version)


@pytest.mark.parametrize(
    ("version", "said"),
    [("1.2.9", "released already"), ("1.2.3", "v1.2.10 is newer than v1.2.3; the tag v1 would go back")],
)
def test_no_version_is_released_twice_or_moves_a_tag_back(version: str, said: str) -> None:
    with pytest.raises(ReleaseError, match=said):
        newest(["v1", "v1.2.9", "v1.2.10", "v0.9.9"], version)


def test_the_command_says_how_it_is_used(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["check"]) == main(["publish", "1.0.0"]) == 2
    assert main(["check", "9.9.9"]) == 1
    assert "release: pyproject.toml has" in capsys.readouterr().err
    monkeypatch.setattr("sys.stdin", io.StringIO("v1\nv1.0.0\n"))
    assert main(["newest", "1.0.0"]) == 1
