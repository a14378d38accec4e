"""The files that a cell leaves in the results: masked, of one attempt, and no longer than said."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.context import make_evidence

from keystone_action.errors import OutputError
from keystone_action.evidence.agent_run import AgentRun
from keystone_action.evidence.masking import MASK, Masker
from keystone_action.runner.cell.running_cell import PROMPTS_LIMIT, CellFiles, GradedCheck, bound_output, bound_prompts
from keystone_action.scoring.results import InvariantResult

SECRET = "hunter2-hunter2"
SAID = f"the key is {SECRET}, they say\n"


def test_no_file_of_a_cell_holds_a_secret(tmp_path: Path) -> None:
    printed = AgentRun(stdout=SAID, stderr=SAID)
    evidence = make_evidence(tmp_path, tmp_path / "private", audit=SAID, agent=printed, patch=SAID)
    evidence.trace.write_bytes(SAID.encode() + b"\xff")
    files = CellFiles(tmp_path / "cell", Masker([SECRET]))
    files.start()
    result = InvariantResult("a check", "custom", "pass", 1.0, 1.0, False, "")
    files.write_graded(evidence, [GradedCheck(result, SAID, {}), GradedCheck(result, "", {})])
    files.failure(SAID)
    top = files.directory
    written = {str(path.relative_to(top)): path.read_text("utf-8") for path in top.rglob("*.*")}
    names = ("agent.stdout", "agent.stderr", "audit.jsonl", "trace.jsonl", "diff.patch", "checks/a check.log")
    assert set(written) == {*names, "internal-error.log"}
    for name, text in written.items():
        assert text.startswith(f"the key is {MASK}, they say\n"), name


def test_a_patch_keeps_the_bytes_of_files(tmp_path: Path) -> None:
    patch = f"+caf\udce9 {SECRET}\n"
    evidence = make_evidence(tmp_path, tmp_path / "private", agent=AgentRun(stdout="", stderr=""), patch=patch)
    files = CellFiles(tmp_path / "cell", Masker([SECRET]))
    files.start()
    files.write_graded(evidence, [])
    assert (files.directory / "diff.patch").read_bytes() == b"+caf\xe9 ***\n"


def test_nothing_of_an_earlier_attempt_stays(tmp_path: Path) -> None:
    files = CellFiles(tmp_path / "cells" / "cell", Masker([]))
    files.start()
    files.failure("the first attempt")
    files.start()
    assert list(files.directory.iterdir()) == []


def test_a_folder_that_can_not_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="can't be written"):
        CellFiles(tmp_path / "file" / "cell", Masker([])).start()


def test_names_and_values_at_any_depth_are_masked() -> None:
    given = {SECRET: [{"a": (SECRET, 1, None)}], "b": True}
    assert Masker([SECRET]).value(given) == {MASK: [{"a": [MASK, 1, None]}], "b": True}


@pytest.mark.parametrize("length", [0, 9, 10])
def test_what_is_short_enough_stays(length: int) -> None:
    assert bound_output("x" * length, 10) == "x" * length


def test_a_long_text_keeps_both_ends() -> None:
    assert bound_output("start" + "x" * 1_234 + "enden", 10) == "start\n[… 1,234 characters cut …]\nenden"


def test_prompts_are_bounded_each_and_together_and_the_cut_is_said() -> None:
    assert bound_prompts([]) == ()
    assert bound_prompts(["a", "b"]) == ("a", "b")
    first, *_, last = many = bound_prompts(["x" * 10_000, *["ü" * 8_000] * 20])
    assert "\n[… 1,808 characters cut …]\n" in first
    assert len(many) == 4
    assert last == "ü" * 8_000 + "\n[… further turns cut: 17 …]"
    tiny = bound_prompts(["go", *[""] * 1_000_000])
    assert len(json.dumps(tiny)) <= PROMPTS_LIMIT + 100
    assert len(bound_prompts(["🧑" * 100_000])) == 1
