"""What agents left is in report.html of a run, of `keystone report` and of joined shards."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from support.command_line import Called, keystone

from keystone_action.spec.plan import shard_of

SPEC = """\
version: 1
id: notes
task: {prompt: "write a note"}
agent: {type: command, command: 'echo "note </script> {{ cell.replica }}" > note.txt; echo written'}
parallelism: {replicas: 2}
audit: {file_changes: true}
invariants:
  noted: {check: {type: file_exists, path: nothing.txt}}
"""


def details(page: str) -> list[dict[str, Any]]:
    """What the page has of its cells."""
    found: list[dict[str, Any]] = json.loads(page.split('id="details">')[1].split("</script>", maxsplit=1)[0])
    return found


def assert_whole(page: str) -> None:
    cells = details(page)
    assert len(cells) == 2
    for number, found in enumerate(cells):
        assert f"+note </script> {number}\n" in found["diff"]
        assert [event["title"] for event in found["audit"]] == ["added note.txt"]
        assert found["agent"]["printed"] == [["Its output", "written"]]
        assert {"agent.stdout", "audit.jsonl", "diff.patch", "trace.jsonl"} <= {name for name, _ in found["files"]}


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("notes")
    (made / "keystone.yaml").write_text(SPEC)
    return made


def call(directory: Path, *words: str, code: int = 1) -> Called:
    called = keystone(*words, directory=directory)
    assert called.code == code, called.out + called.err
    return called


def test_the_command_report_gives_the_page_of_the_run(directory: Path) -> None:
    call(directory, "run", "keystone.yaml", "--output", "out")
    page = (directory / "out" / "report.html").read_text("utf-8")
    assert_whole(page)
    for name in ("out", "out/results.json"):
        assert call(directory, "report", name, "--format", "html", code=0).out == page


def test_joined_shards_have_one_page_of_all_cells(directory: Path) -> None:
    apart = next(count for count in range(2, 9) if shard_of("notes.r0", count) != shard_of("notes.r1", count))
    for number in range(1, apart + 1):
        words = ("run", "keystone.yaml", "--shard", f"{number}/{apart}", "--output", f"shards/{number}")
        keystone(*words, directory=directory)
    pages = [page.read_text("utf-8") for page in (directory / "shards").glob("*/report.html")]
    assert sorted(len(details(page)) for page in pages) == [*[0] * (apart - 2), 1, 1]
    call(directory, "merge", "shards", "--output", "merged")
    page = (directory / "merged" / "report.html").read_text("utf-8")
    assert_whole(page)
    assert re.search(r'"total":2\b', page)
