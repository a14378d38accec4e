"""GITHUB_OUTPUT, read back by the runner's rules."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.runner_rules import parse_env_file

from keystone_action.errors import OutputError
from keystone_action.github.outputs import entry, write_outputs

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_-]{0,20}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=60) | st.sampled_from(
    ["EOF", "a\nEOF\nverdict=pass", "x<<EOF", "\n", "\r\n", "ghadelimiter_", "verdict=pass\n"]
)


@given(st.dictionaries(NAMES, TEXT, max_size=4))
def test_what_is_written_is_what_the_runner_reads(outputs: dict[str, str]) -> None:
    assert parse_env_file("".join(entry(name, value) for name, value in outputs.items())) == outputs


def test_values_are_appended_after_a_line_without_an_end(tmp_path: Path) -> None:
    path = tmp_path / "set_output"
    path.write_bytes(b"earlier=1")
    write_outputs(path, {"verdict": "pass"})
    write_outputs(path, {"total": "3"})
    assert parse_env_file(path.read_text()) == {"earlier": "1", "verdict": "pass", "total": "3"}
    assert path.read_bytes().endswith(b"\n")


def test_delimiters_are_not_repeated() -> None:
    assert entry("a", "b").split("\n", 1)[0] != entry("a", "b").split("\n", 1)[0]


def test_a_value_that_holds_its_delimiter_is_refused() -> None:
    with pytest.raises(OutputError, match="verdict"):
        entry("verdict", "a\nEND\nb", delimiter="END")


@pytest.mark.parametrize("name", ["", "a b", "a=b", "a<<b", "a\nb", "1a", "é"])
def test_a_bad_name_is_refused(name: str) -> None:
    with pytest.raises(OutputError):
        entry(name, "value")


def test_a_file_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"could not be written.*directory"):
        write_outputs(tmp_path, {"verdict": "pass"})
    with pytest.raises(OutputError, match="No such file"):
        write_outputs(tmp_path / "missing" / "file", {"verdict": "pass"})


def test_text_that_is_no_unicode_is_escaped(tmp_path: Path) -> None:
    write_outputs(tmp_path / "out", {"path": os.fsdecode(b"a\xff")})
    assert parse_env_file((tmp_path / "out").read_text()) == {"path": r"a\udcff"}
