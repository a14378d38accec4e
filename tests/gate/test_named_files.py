"""The files that two versions of a spec name: what counts as changed, and by how much."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from keystone_action.gate.findings import Level
from keystone_action.gate.named_files import (
    MAX_SHOWN,
    NamedFiles,
    changed_files,
    counted_lines,
    file_finding,
    same_content,
)


def told(before: NamedFiles, after: NamedFiles) -> list[str]:
    """What is said of the files that differ, one by one."""
    (found,) = file_finding("changed files", changed_files(before, after))
    return found.text.removeprefix("changed files: ").split(", ")


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
    assert counted_lines(*pair(tmp_path, old, new)) == said


def test_names_on_one_side(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    for root, names in ((before, ("kept", "dropped", "gone", "fresh")), (after, ("kept", "dropped", "fresh", "new"))):
        root.mkdir()
        for name in names:
            (root / name).write_text("x")

    def named(root: Path, *names: str) -> NamedFiles:
        return NamedFiles(root, {name: root / name for name in names})

    found = told(named(before, "kept", "dropped", "gone"), named(after, "kept", "fresh", "new"))
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
    found = told(old, new)
    assert found[:3] == ["z/gone.sh (deleted)", "z/check.sh (+1 −1)", "expected/00 (+1 −1)"]
    assert found[-1] == "and 22 more"


def test_a_name_too_long_to_show_is_shown_by_its_end(tmp_path: Path) -> None:
    name = "/".join(["x" * 60] * 3) + "/check.sh"
    (found,) = told(NamedFiles(tmp_path, {name: tmp_path}), NamedFiles(tmp_path, {}))
    assert found.startswith("…")
    assert found.endswith("x/check.sh (deleted)")
    assert len(found) < 120


def test_so_many_that_the_rest_is_counted(tmp_path: Path) -> None:
    before, after = (
        NamedFiles(tmp_path, {}),
        NamedFiles(tmp_path, {f"f{n:02}": tmp_path / "x" for n in range(MAX_SHOWN + 3)}),
    )
    found = told(before, after)
    assert (len(found), found[-1]) == (MAX_SHOWN + 1, "and 3 more")


def of_lines(tmp_path: Path, counts: dict[str, tuple[int, int]], rank: int = 0) -> tuple[NamedFiles, NamedFiles]:
    """Files with so many lines before and after."""
    sides = []
    for side, name in enumerate(("before", "after")):
        root = tmp_path / name
        root.mkdir(exist_ok=True)
        for file, lines in counts.items():
            (root / file).write_text("".join(f"line {number}\n" for number in range(lines[side])))
        sides.append(NamedFiles(root, {file: root / file for file in counts}, dict.fromkeys(counts, rank)))
    return sides[0], sides[1]


def test_no_crowd_of_files_with_a_line_more_hides_one_that_was_emptied(tmp_path: Path) -> None:
    crowd = {f"a{number:02}": (10, 11) for number in range(30)}
    found = told(*of_lines(tmp_path, {**crowd, "z_emptied": (10, 0), "z_cut": (10, 3), "z_less": (10, 9)}))
    assert found[:4] == [
        "z_emptied (+0 −10",
        "now empty)",
        "z_cut (+0 −7)",
        "z_less (+0 −1)",
    ]
    assert found[-1] == "and 13 more"


def test_a_crowd_of_scripts_leaves_room_for_the_test_that_was_cut_most(tmp_path: Path) -> None:
    scripts = of_lines(tmp_path, {f"a{number:02}": (10, 9) for number in range(30)})
    tests = of_lines(tmp_path, {f"t{number}": (10, 11) for number in range(9)} | {"test_all.py": (10, 1)}, rank=1)
    before, after = (
        NamedFiles(x.root, x.files | y.files, {**x.ranks, **y.ranks}) for x, y in zip(scripts, tests, strict=True)
    )
    assert "test_all.py (+0 −9)" in told(before, after)


@pytest.mark.parametrize(
    ("counts", "rank", "level"),
    [((3, 0), 3, Level.TAKEN), ((3, 4), 0, Level.LOWERED), ((3, 4), 2, Level.AROUND), ((0, 4), 0, Level.LOWERED)],
)
def test_how_grave_a_changed_file_is(tmp_path: Path, counts: tuple[int, int], rank: int, level: Level) -> None:
    (found,) = changed_files(*of_lines(tmp_path, {"a": counts}, rank))
    assert found.level is level


def test_endless_names_leave_room_for_what_stands_behind_them(tmp_path: Path) -> None:
    names = {"x" * 90 + f"{number:02}": (1, 2) for number in range(20)}
    found = told(*of_lines(tmp_path, names))
    assert len(", ".join(found)) < 800
    assert found[-1] == f"and {20 - len(found) + 1} more"
