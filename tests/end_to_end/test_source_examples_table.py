"""tests/data/source_examples.yaml is true: each example is in the test that it names, and that test exists; and every
test of an example is in the table."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.command_line import ROOT

HERE = Path(__file__).parent
TABLE = yaml.safe_load((ROOT / "tests" / "data" / "source_examples.yaml").read_text("utf-8"))
ROWS = [
    (source, file, row["quote"], row["test"])
    for source, files in TABLE.items()
    for file, rows in files.items()
    for row in rows
]


@pytest.fixture(scope="module")
def collected() -> set[str]:
    """The ids of all tests of the files that the table names, and without what they are parametrised by."""
    places = sorted({str(HERE / file) for _, file, _, _ in ROWS})
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert listed.returncode == 0, listed.stdout + listed.stderr
    ids = {line.rpartition("/")[2] for line in listed.stdout.splitlines() if "::" in line}
    return ids | {one.partition("[")[0] for one in ids}


def test_there_are_examples_of_each_document() -> None:
    assert {source: sum(len(rows) for rows in files.values()) for source, files in TABLE.items()} == {
        "000_66edd30c29bbac31.txt": 24,
        "002_220bb8e992e29d33.txt": 17,
        "004_722b8593dcd13c4e.txt": 17,
    }


def test_every_test_that_is_named_exists(collected: set[str]) -> None:
    assert [row for row in ROWS if f"{row[1]}::{row[3]}" not in collected] == []


def test_every_test_of_an_example_is_named(collected: set[str]) -> None:
    named = {f"{file}::{test.partition('[')[0]}" for _, file, _, test in ROWS}
    assert {one for one in collected if "[" not in one} == named


@pytest.mark.parametrize(("source", "file", "quote", "test"), ROWS)
def test_what_is_quoted_is_in_the_test(source: str, file: str, quote: str, test: str) -> None:
    text = (HERE / file).read_text("utf-8")
    assert source in text.partition('"""\n')[0]
    assert squeezed(quote) in squeezed(text)
    assert f"def {test.partition('[')[0]}(" in text


def squeezed(text: str) -> str:
    """Without white space, quotes' escapes and what separates a document's comments."""
    return "".join(text.replace("\\", "").split())
