"""docs/compatibility.md is true: what is refused is refused with the message of its row, every other row names a test
that exists or is compared with the released tool, and the README leads there."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.command_line import NO_ENGINE, ROOT
from support.compatibility import PAGE, SYSTEMS, Row, rows, write_refused

from keystone_action.cli import main as cli

ROWS = rows()
REFUSED = [row for row in ROWS if row.status == "refused"]


def named(evidence: object) -> list[str]:
    """The tests that a row names, relative to tests/."""
    shown = evidence if isinstance(evidence, list) else [evidence]
    return [one for one in shown if one != "by comparison"]


def test_every_row_is_in_the_table_and_the_reverse() -> None:
    assert [(row.system, row.name) for row in ROWS] == [
        (system, name) for system in SYSTEMS for name in SYSTEMS[system]
    ]
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_every_status_has_its_evidence() -> None:
    for row in ROWS:
        keys = {"refused"} if row.status == "refused" else {"shown"}
        assert set(row.evidence) - {"released"} == keys, row.name
        if row.evidence.get("shown") == "by comparison":
            assert row.status == "differs", row.name
        if row.status == "differs":
            assert row.told, row.name


def test_nothing_is_left_for_later() -> None:
    """What a system has works here, or is refused with a reason."""
    assert {row.status for row in ROWS} == {"supported", "differs", "refused"}
    assert "not yet" not in PAGE.read_text("utf-8").lower()


def test_every_test_that_is_named_exists() -> None:
    wanted = {test for row in ROWS for test in named(row.evidence.get("shown", []))}
    there = {test for place in {test.partition("::")[0] for test in wanted} for test in collected(place)}
    assert wanted - there == set()


def collected(place: str) -> set[str]:
    """The tests that pytest finds in a file, which would itself take seconds."""
    path = ROOT / "tests" / place
    assert path.match("test_*.py"), path
    return set(_named_tests(place, ast.parse(path.read_text("utf-8")).body))


def _named_tests(prefix: str, body: list[ast.stmt]) -> Iterator[str]:
    for one in body:
        if isinstance(one, ast.ClassDef) and one.name.startswith("Test"):
            yield from _named_tests(f"{prefix}::{one.name}", one.body)
        elif isinstance(one, ast.FunctionDef) and one.name.startswith("test"):
            yield f"{prefix}::{one.name}"


@pytest.mark.parametrize("row", REFUSED, ids=[row.name for row in REFUSED])
def test_what_is_refused_is_refused_with_its_message(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / ".git").mkdir()
    words = write_refused(tmp_path, row.system, row.name)
    monkeypatch.chdir(tmp_path)
    for name, value in NO_ENGINE.items():
        monkeypatch.setenv(name, value)
    code = cli.main(words)
    told = capfd.readouterr().err
    assert code == 2, told
    pattern = ".*".join(re.escape(part) for part in row.message.split("…"))
    assert re.search(pattern, told, re.DOTALL), told
    assert not (tmp_path / ".keystone").exists()


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGE.read_text("utf-8")):
        assert (PAGE.parent / link).exists(), link
    assert "docs/compatibility.md" in (ROOT / "README.md").read_text("utf-8")
