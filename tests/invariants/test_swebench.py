"""swebench, with real runs of pytest in the process sandbox."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import ValidationError
from support.context import make_check
from support.graded_tests import World

from keystone_action.scoring.composite import grade
from keystone_action.scoring.results import InvariantResult

HIDDEN = """
import os, pytest
from solution import add, double
def test_bug(): assert add(1, 2) == 3
@pytest.mark.parametrize("text", ["a", "b [c] ", "d::e"])
def test_many(text): assert add(text, "!") == text + "!"
def test_unrelated(): assert double(2) == 4
def test_pinned(): assert (os.environ["TZ"], os.environ["PYTHONHASHSEED"]) == ("UTC", "0")
@pytest.mark.xfail
def test_known(): assert False
@pytest.mark.skip
def test_skipped(): assert False
"""
FIXED = "def add(a, b): return a + b\ndef double(a): return a * 2\n"
HALF = "def add(a, b): return a + b if a != 1 else 0\ndef double(a): return a * 2\n"
BREAKS = "def add(a, b): return a + b\ndef double(a): return 0\n"
FILE = "testing/test_x.py"
CHECK = {
    "type": "swebench",
    "inject": [{"src": "hidden/test_x.py", "dest": FILE}],
    "fail_to_pass": [f"{FILE}::test_bug"],
    "pass_to_pass": [f"{FILE}::test_unrelated"],
}


@pytest.fixture
def world(tmp_path: Path, packages: Path) -> World:
    made = World(tmp_path, packages)
    (made.author / "hidden").mkdir()
    (made.author / "hidden" / "test_x.py").write_text(HIDDEN)
    made.given({"testing/readme": "", "solution.py": "def add(a, b): return a - b\ndef double(a): return a * 2\n"})
    return made


@pytest.mark.parametrize("more", [{}, {"cmd_prefix": "python3 -m pytest -q -p no:cacheprovider"}])
def test_the_documents_example(world: World, more: dict[str, str]) -> None:
    """`swebench` of 004_722b8593dcd13c4e.txt, with and without its `cmd_prefix`."""
    world.left({"solution.py": FIXED})
    outcome = world.grade({**CHECK, **more})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("pass", 1.0, False), outcome
    world.left({"solution.py": "def add(a, b): return 0\ndef double(a): return a * 2\n"})
    outcome = world.grade({**CHECK, **more})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 0.0, False)
    assert "0 of 1 tests of fail_to_pass passed, 1 of 1 of pass_to_pass." in outcome.message


def test_the_share_of_fail_to_pass_is_the_score_and_ids_match_exactly(world: World) -> None:
    ids = ["test_bug", "test_many[a]", "test_many[b [c] ]", "test_many[d::e]"]
    check = {**CHECK, "fail_to_pass": [f"{FILE}::{one}" for one in ids]}
    world.left({"solution.py": HALF})
    outcome = world.grade(check)
    assert (outcome.status, outcome.score) == ("fail", 0.75), outcome
    assert world.grade({**check, "pass_threshold": 0.75}).status == "pass"
    check = {
        **CHECK,
        "fail_to_pass": [f"{FILE}::test_many[b [c]]", f"{FILE}::test_many[b [c] ] ", f"{FILE}::test_many"],
    }
    assert world.grade(check).score == 0.0


@pytest.mark.parametrize(
    ("wanted", "advice"),
    [
        ("test_many[b", f"not found: the id seems to be cut at a blank, did you mean {FILE}::test_many[b [c] ], whose"),
        ("test_many[b [c]]", f"not found: did you mean {FILE}::test_many[b [c] ], whose outcome is passed?"),
        ("test_many[b [c] ] ", f"not found: did you mean {FILE}::test_many[b [c] ], whose outcome is passed?"),
        ("test_many", f"not found: did you mean {FILE}::test_many[a], whose outcome is passed; 2 more begin like it?"),
        ("test_never_was", "not found)."),
    ],
)
def test_an_id_that_is_not_there_is_told_the_near_one(world: World, wanted: str, advice: str) -> None:
    """SWE-bench#275, #290: hundreds of the published ids are cut at a blank."""
    world.left({"solution.py": FIXED})
    outcome = world.grade({**CHECK, "fail_to_pass": [f"{FILE}::test_bug", f"{FILE}::{wanted}"]})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 0.5, False)
    assert f"Not mended: {FILE}::{wanted} ({advice}" in outcome.message
    outcome = world.grade({**CHECK, "pass_to_pass": [f"{FILE}::{wanted}"]})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 1.0, True)
    assert f"Broken: {FILE}::{wanted} ({advice}" in outcome.message


def test_lists_as_json_text(world: World) -> None:
    """As the columns FAIL_TO_PASS and PASS_TO_PASS of SWE-bench's data set have them."""
    ids = [f"{FILE}::test_bug", f"{FILE}::test_many[b [c] ]"]
    check = {**CHECK, "fail_to_pass": json.dumps(ids), "pass_to_pass": "[]"}
    assert make_check(check) == make_check({**check, "fail_to_pass": ids, "pass_to_pass": []})
    world.left({"solution.py": FIXED})
    outcome = world.grade(check)
    assert (outcome.status, outcome.score) == ("pass", 1.0), outcome
    assert list(outcome.details["fail_to_pass"]) == ids


def test_a_broken_pass_to_pass_disqualifies_the_cell(world: World) -> None:
    world.left({"solution.py": BREAKS})
    outcome = world.grade(CHECK)
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 1.0, True)
    assert "Broken: testing/test_x.py::test_unrelated (failed)." in outcome.message
    results = [
        InvariantResult("fix", "swebench", "fail", 1.0, 4.0, False, outcome.message, disqualified=True),
        InvariantResult("other", "command_exit", "pass", 1.0, 4.0, False, ""),
    ]
    graded = grade(results, threshold=0.1)
    assert (graded.verdict, graded.composite) == ("fail", 0.0)
    assert graded.reason.startswith("check fix disqualifies: 1 of 1 tests of fail_to_pass passed")


def test_what_counts_as_green(world: World) -> None:
    world.left({"solution.py": FIXED})
    kept = {**CHECK, "pass_to_pass": [f"{FILE}::test_known", f"{FILE}::test_pinned"]}
    assert world.grade(kept).status == "pass"
    for lost in ("test_skipped", "test_never_was"):
        outcome = world.grade({**CHECK, "pass_to_pass": [f"{FILE}::{lost}"]})
        assert (outcome.status, outcome.disqualifies) == ("fail", True)


def test_ids_of_files_that_do_not_exist(world: World) -> None:
    world.left({"solution.py": FIXED})
    outcome = world.grade({**CHECK, "fail_to_pass": [f"{FILE}::test_bug", "gone/test_y.py::test"]})
    assert (outcome.status, outcome.score) == ("fail", 0.5)
    assert "gone/test_y.py::test (not found)" in outcome.message
    outcome = world.grade({"type": "swebench", "fail_to_pass": ["gone/test_y.py::test"]})
    assert (outcome.status, outcome.score) == ("fail", 0.0)


def test_a_file_that_cannot_be_collected_does_not_hide_the_others(world: World) -> None:
    world.given({"testing/test_other.py": "def test(): pass"})
    world.left({"solution.py": "def add("})
    outcome = world.grade({**CHECK, "pass_to_pass": ["testing/test_other.py::test"]})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 0.0, False)


@pytest.mark.parametrize(
    "files",
    [
        {"solution.py": "import os\nprint('8 passed', flush=True)\nos._exit(0)\n"},
        {"solution.py": "", "conftest.py": "collect_ignore = ['testing']\nimport os\nos._exit(0)\n"},
        {"solution.py": "", "pytest.py": "import os\nos._exit(0)\n"},
        {"solution.py": "import unittest\nraise unittest.SkipTest\n"},
        {"solution.py": "", "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--collect-only'\n"},
    ],
)
def test_no_credit_by_other_means(world: World, files: dict[str, str]) -> None:
    world.left(dict(files))
    outcome = world.grade(CHECK)
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 0.0, True)


@pytest.mark.parametrize("how", ["changed", "gone", "a link"])
def test_the_authors_own_tests_are_not_the_agents_to_change(world: World, how: str) -> None:
    """Files that ids name without being injected are as the author gave them; the agent's own are left."""
    world.given({"tests/test_old.py": "from solution import double\ndef test_keep(): assert double(2) == 4"})
    world.left({"solution.py": BREAKS})
    old = world.workspace / "tests" / "test_old.py"
    if how == "changed":
        old.write_text("def test_keep(): pass")
    else:
        old.unlink()
        if how == "a link":
            (world.workspace / "mine.py").write_text("def test_keep(): pass")
            old.symlink_to("../mine.py")
    outcome = world.grade({**CHECK, "pass_to_pass": ["tests/test_old.py::test_keep"]})
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 1.0, True), outcome
    assert outcome.details["restored"] == ["tests/test_old.py"]
    world.left({"testing/test_mine.py": "def test(): pass"})
    assert world.grade({**CHECK, "fail_to_pass": ["testing/test_mine.py::test"], "pass_to_pass": []}).status == "pass"


def test_tests_that_hang(world: World) -> None:
    world.left({"solution.py": "import time\ntime.sleep(600)\n"})
    outcome = world.grade(CHECK, timeout=3.0)
    assert (outcome.status, outcome.score, outcome.disqualifies) == ("fail", 0.0, True)


@pytest.mark.parametrize(
    "more",
    [
        {"fail_to_pass": []},
        {"fail_to_pass": ["test_bug"]},
        {"fail_to_pass": ["-p::x"]},
        {"fail_to_pass": ["test_one (app.tests.TestX)"]},
        {"fail_to_pass": "[]"},
        {"fail_to_pass": f"{FILE}::test_bug"},
        {"fail_to_pass": f'["{FILE}::test_bug", "test_bug"]'},
        {"fail_to_pass": f'["{FILE}::test_bug'},
        {"fail_to_pass": "[" * 100_000},
        {"pass_to_pass": '[{"a": 1}]'},
        {"cmd_prefix": "make test"},
        {"cmd_prefix": "python3 -m pytest $(cat x)"},
    ],
)
def test_what_cannot_be_graded_is_refused(more: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check({**CHECK, **more})
