"""The files that two versions of a spec name: what counts as changed, and by how much."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from keystone_action.gate.named_files import MAX_SHOWN, NamedFiles, changed_files, line_counts, same_content


def pair(tmp_path: Path, old: bytes, new: bytes) -> tuple[Path, Path]:
    paths = tmp_path / "old", tmp_path / "new"
    for path, content in zip(paths, (old, new), strict=True):
        path.write_bytes(content)
    return paths


def pointer(content: bytes) -> bytes:
    digest = hashlib.sha256(content).hexdigest()
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n".encode()


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        (b"a\n", b"a\n", True),
        (b"a\n", b"b\n", False),
        (b"a\nb\n", b"a\r\nb\r\n", False),
        (b"a\rb", b"a\nb", False),
        (pointer(b"\0big"), b"\0big", True),
        (pointer(b"\0big"), b"\0bog", False),
        (b"", b"", True),
        (b"", b"\0", False),
    ],
)
def test_line_ends_and_pointers_are_the_checkouts(tmp_path: Path, old: bytes, new: bytes, same: bool) -> None:
    assert same_content(*pair(tmp_path, old, new)) is same


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (b"a\nb\nc\n", b"a\nx\n", "+1 −2"),
        (b"", b"a\n", "+1 −0"),
        (b"no end", b"no end\n", "+1 −1"),
        (b"\0\1", b"\0\1\2", "2 → 3 bytes"),
        (b"-- a\n++ b\n", b"++ b\n", "+0 −1"),
    ],
)
def test_lines(tmp_path: Path, old: bytes, new: bytes, said: str) -> None:
    assert line_counts(*pair(tmp_path, old, new)) == said


def test_names_on_one_side(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for root, names in ((before, ("kept", "dropped", "gone", "fresh")), (after, ("kept", "dropped", "fresh", "new"))):
        root.mkdir()
        for name in names:
            (root / name).write_text("x")

    def named(root: Path, *names: str) -> NamedFiles:
        return NamedFiles(root, {name: root / name for name in names})

    found = changed_files(named(before, "kept", "dropped", "gone"), named(after, "kept", "fresh", "new"))
    assert found == ["dropped (no longer named)", "gone (deleted)", "fresh (newly named)", "new (added)"]


def test_a_crowd_hides_neither_what_went_nor_what_decides(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    names = [f"expected/{number:02}" for number in range(MAX_SHOWN)]
    for root in (before, after):
        (root / "expected").mkdir(parents=True)
        for name in (*names, "z/gone.sh", "z/check.sh"):
            (root / name).parent.mkdir(exist_ok=True)
            (root / name).write_text(f"{root.name}\n")
    ranks = {**dict.fromkeys(names, 1), "z/check.sh": 0, "z/gone.sh": 2}
    old = NamedFiles(before, {name: before / name for name in (*names, "z/gone.sh", "z/check.sh")}, ranks)
    fresh = {f"a{number}": after / "new" for number in range(MAX_SHOWN)}
    new = NamedFiles(after, {name: after / name for name in (*names, "z/check.sh")} | fresh)
    (after / "z/gone.sh").unlink()
    found = changed_files(old, new)
    assert found[:3] == ["z/gone.sh (deleted)", "z/check.sh (+1 −1)", "expected/00 (+1 −1)"]
    assert found[-1] == "and 22 more"


def test_a_name_too_long_to_show_is_shown_by_its_end(tmp_path: Path) -> None:
    name = "/".join(["x" * 60] * 3) + "/check.sh"
    (found,) = changed_files(NamedFiles(tmp_path, {name: tmp_path}), NamedFiles(tmp_path, {}))
    assert found.startswith("…")
    assert found.endswith("x/check.sh (deleted)")
    assert len(found) < 120


def test_so_many_that_the_rest_is_counted(tmp_path: Path) -> None:
    before, after = (
        NamedFiles(tmp_path, {}),
        NamedFiles(tmp_path, {f"f{n:02}": tmp_path / "x" for n in range(MAX_SHOWN + 3)}),
    )
    found = changed_files(before, after)
    assert (len(found), found[-1]) == (MAX_SHOWN + 1, "and 3 more")
