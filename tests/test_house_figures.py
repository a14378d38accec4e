"""The figures of the house: each counts what its name says, on a package small enough to count by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import house_figures as figures

FILES = {
    "spec/text.py": "class Column:\n    name: str\n    width: int\n\n\ndef parse():\n    pass\n",
    "spec/reader.py": "from keystone_action.spec.text import Column\n",
    "runner/run.py": "def late():\n    from keystone_action.spec import reader\n\n\nclass Column:\n    pass\n",
    "invariants/types/sql.py": "import os\n",
    "dialects/agenticassure/libraries/suite.py": "class Column: ...\n",
}


@pytest.fixture
def modules(tmp_path: Path) -> list[figures.Module]:
    for name, source in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return figures.modules_of(tmp_path)


def test_another_projects_modules_are_not_counted(modules: list[figures.Module]) -> None:
    assert {module.path for module in modules} == {name for name in FILES if "libraries" not in name}


def test_an_import_counts_wherever_it_stands(modules: list[figures.Module]) -> None:
    single = {"spec/text.py": "spec/reader.py", "spec/reader.py": "runner/run.py"}
    assert figures.single_importers(modules) == single


def test_a_name_that_two_modules_define_is_listed(modules: list[figures.Module]) -> None:
    assert figures.names_twice(modules) == {"Column": ["runner/run.py", "spec/text.py"]}


def test_fields_and_lines_are_counted(modules: list[figures.Module]) -> None:
    assert figures.records(modules) == {"runner/run.py:Column": 0, "spec/text.py:Column": 2}
    assert figures.longest_function(modules) == (2, "spec/text.py:parse")
    assert "| all | 4 | 15 | 266.7 |" in figures.rooms_table(modules)


def test_a_trivial_cell_is_followed_from_the_command_to_its_check() -> None:
    files, functions = figures.touched_by_a_trivial_cell(Path(__file__).parent.parent)
    assert 20 < files < functions
