"""One thing is written in one way wherever the program says it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from keystone_action.cli.arguments import build_parser
from keystone_action.report import words
from keystone_action.scoring.results import PlanInfo
from keystone_action.scoring.shards import shard_notice

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "keystone_action"


def test_a_percentage_has_no_space_before_its_sign() -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        documents = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documents:
                found |= {(path.name, text) for text in re.findall(r"[0-9}] %(?![a-z(])", node.value)}
    assert found == set()
    for path in [*PACKAGE.rglob("*.j2"), *PACKAGE.rglob("report/*.js")]:
        assert not re.search(r"[0-9] % ?[a-z]", path.read_text("utf-8")), path


def test_both_numbers_of_a_part_are_written_alike() -> None:
    plan = PlanInfo("1/2", 10_005, "", {})
    assert shard_notice(plan, 6_612).startswith("shard 1/2: 6,612 of 10,005 cells;")


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0, "0 s"), (0.0004, "less than 0.001 s"), (0.047, "0.047 s"), (3.14159, "3.1 s")]
)
def test_times_are_those_of_people(seconds: float, said: str) -> None:
    assert words.duration(seconds) == said


def test_fail_on_is_explained_in_the_same_words_everywhere() -> None:
    """A regression is what got worse: a drop of the pass rate counts too where both fail."""
    action = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["inputs"]["fail-on"]["description"]
    run = build_parser().commands["run"].format_help()
    for text in (action, run):
        assert "what got worse than in the baseline" in " ".join(text.split())
    assert "got worse" in (ROOT / "docs" / "scoring.md").read_text("utf-8")
