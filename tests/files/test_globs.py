"""Globs over what an agent left."""

from __future__ import annotations

from pathlib import Path

import pytest

from keystone_action.files import globs
from keystone_action.files.globs import glob_inside, has_wildcard, matcher
from keystone_action.files.paths import PathEscape, PathUnreadable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    for name in ("a.txt", "src/b.txt", "src/deep/c.txt", ".hidden/d.txt", "src/.e.txt", "app/[id]/page.tsx", "app/i/x"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside/o.txt").touch()
    (root / "dangling.txt").symlink_to("nowhere")
    (root / "out.txt").symlink_to("../outside/o.txt")
    (root / "link").symlink_to("src")
    (root / "outlink").symlink_to("../outside")
    return root


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("a.txt", ["a.txt"]),
        ("none.txt", []),
        ("*.txt", ["a.txt", "out.txt"]),
        ("src/*.txt", ["src/b.txt"]),
        ("src/.*.txt", ["src/.e.txt"]),
        ("**/*.txt", ["a.txt", "out.txt", "src/b.txt", "src/deep/c.txt"]),
        ("src/**/c.tx?", ["src/deep/c.txt"]),
        ("**/[bc].txt", ["src/b.txt", "src/deep/c.txt"]),
        (".hidden/*", [".hidden/d.txt"]),
        ("link/*.txt", ["link/b.txt"]),
        ("*/b.txt", ["src/b.txt"]),
        ("app/[id]/page.tsx", ["app/[id]/page.tsx"]),
        ("app/[id]/*", ["app/i/x"]),
        ("src/*/", ["src/deep"]),
        ("./a*", ["a.txt", "app"]),
    ],
)
def test_what_a_pattern_finds(root: Path, pattern: str, found: list[str]) -> None:
    assert glob_inside(root, pattern) == found


def test_dot_files_when_asked_for(root: Path) -> None:
    assert ".hidden/d.txt" in glob_inside(root, "**/*.txt", dot=True)
    assert "src/.e.txt" in glob_inside(root, "src/*", dot=True)


@pytest.mark.parametrize("pattern", ["../*", "outlink/*", "/etc/*", "outlink/o.txt"])
def test_no_pattern_leads_out(root: Path, pattern: str) -> None:
    with pytest.raises(PathEscape):
        glob_inside(root, pattern)


def test_gives_up_on_too_many_entries(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(globs, "ENTRIES_LIMIT", 3)
    with pytest.raises(PathUnreadable, match="more than 3 entries"):
        glob_inside(root, "**")


def test_a_matcher_takes_any_of_its_patterns() -> None:
    matches = matcher(["src/**", "*.md"])
    assert [path for path in ("src/a/b", "README.md", "docs/a.md", "src") if matches(path)] == ["src/a/b", "README.md"]
    assert has_wildcard("a?")
    assert not has_wildcard("a/b")
