"""The targets of the Makefile share out the tests by their marks: each test is in exactly one of them."""

from __future__ import annotations

import re
from itertools import chain, combinations
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from _pytest.mark.expression import Expression
from support.tiers import mark_tiers, may_have, require_words

ROOT = Path(__file__).parent.parent
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")
RECIPES = {
    name: recipe.replace("\\\n", " ")
    for name, recipe in re.findall(r"^([\w-]+):.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
}
TARGETS = ("test", "test-slow", "test-containers")
MARKS = ("browser", "command", "database", "docker", "property", "sandbox", "slow", "waits")


def expression_of(target: str) -> str:
    """What it gives `-m`."""
    found = re.search(r'-m (?:"([^"]+)"|([\w-]+))', RECIPES[target].split("pytest", 1)[1])
    assert found
    return found[1] or found[2]


def run_by(marks: set[str]) -> list[str]:
    """The targets that run a test with these marks."""
    return [
        target
        for target in TARGETS
        if Expression.compile(expression_of(target)).evaluate(lambda name, **_: name in marks)
    ]


def test_each_test_is_in_exactly_one_target() -> None:
    """But for properties, which `make test-slow` tries again with more examples."""
    for marks in map(set, chain.from_iterable(combinations(MARKS, size) for size in range(len(MARKS) + 1))):
        again = ["test-slow"] if "property" in marks and not marks & {"slow", "docker"} else []
        home = "test-containers" if "docker" in marks else "test-slow" if "slow" in marks else "test"
        assert run_by(marks) == [home, *again], marks


def test_a_target_leaves_out_no_room() -> None:
    for target in TARGETS:
        assert "--ignore" not in RECIPES[target]
        assert "-k" not in RECIPES[target].split()


def test_properties_get_more_examples_in_the_slow_target_alone() -> None:
    assert [name for name, recipe in RECIPES.items() if "--hypothesis-profile=many" in recipe] == ["test-slow"]


def test_what_a_change_must_pass_is_all_of_them() -> None:
    run = re.findall(r"^make (?:-j2 )?(.+)$", (ROOT / ".ci" / "run").read_text("utf-8"), re.MULTILINE)
    assert sorted(" ".join(run).split()) == sorted([*TARGETS, "lint"])


@pytest.mark.parametrize(
    ("place", "fixtures", "marks", "target"),
    [
        ("scoring/test_x.py", (), (), "test"),
        ("sandbox/test_x.py", ("sandboxes",), (), "test"),
        ("services/test_x.py", ("postgres",), ("waits",), "test"),
        ("end_to_end/test_x.py", ("tmp_path",), (), "test"),
        ("report/test_x.py", (), ("browser",), "test-slow"),
        ("differential/test_x.py", (), (), "test-slow"),
        ("images/test_x.py", (), (), "test-slow"),
        ("images/test_x.py", ("engine",), (), "test-containers"),
        ("end_to_end/test_x.py", ("agent_installers",), (), "test-containers"),
        ("report/test_x.py", (), ("browser", "docker"), "test-containers"),
    ],
)
def test_the_marks_of_a_test_are_told_from_its_room_and_its_fixtures(
    place: str, fixtures: tuple[str, ...], marks: tuple[str, ...], target: str
) -> None:
    found = set(marks)
    item = SimpleNamespace(
        path=ROOT / "tests" / place,
        fixturenames=fixtures,
        obj=lambda: None,
        add_marker=found.add,
        get_closest_marker=lambda name: name if name in found else None,
    )
    mark_tiers([cast(pytest.Item, item)])
    assert run_by(found) == [target]


def test_a_target_imports_no_file_that_has_none_of_its_tests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.tiers._TESTS", tmp_path)
    texts = {
        "plain": "def test_it(): ...",
        "engine": "def test_it(engine): ...",
        "marked": "@pytest.mark.slow",
        "chosen": "from hypothesis import given",
        "both": "@pytest.mark.slow\ndef test_it(engine): ...",
    }
    files = {name: tmp_path / f"test_{name}.py" for name in texts}
    for name, text in texts.items():
        files[name].write_text(text)
    found = {
        target: [name for name, path in files.items() if may_have(path, expression_of(target))] for target in TARGETS
    }
    assert found == {
        "test": ["plain", "engine", "marked", "chosen", "both"],
        "test-slow": ["marked", "chosen", "both"],
        "test-containers": ["engine", "both"],
    }


def test_a_test_that_a_target_would_not_import_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("support.tiers._TESTS", tmp_path)
    (tmp_path / "test_x.py").write_text("def test_it(service): ...")
    marks = [pytest.mark.docker.mark]
    item = SimpleNamespace(path=tmp_path / "test_x.py", nodeid="test_x.py::test_it", iter_markers=lambda: marks)
    with pytest.raises(pytest.UsageError, match="test_it is docker"):
        require_words([cast(pytest.Item, item)])
    marks.clear()
    require_words([cast(pytest.Item, item)])
