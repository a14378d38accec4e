"""What runs of pytest are made of: command lines, configuration, results."""

from __future__ import annotations

import ast
import hashlib
import hmac
import io
import json
import zipfile
from importlib.metadata import metadata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from keystone_action.invariants.test_runs import pytest_run
from keystone_action.invariants.test_runs.case_counts import BadReport
from keystone_action.invariants.test_runs.pytest_run import (
    OWN_PYTEST,
    Invocation,
    of_injected,
    own_pytest,
    parse,
    read_results,
)

KEY = bytes(32)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python3 -m pytest -q a.py", Invocation("python3", ("-q", "a.py"))),
        ("python -m pytest", Invocation("python")),
        ("pytest -k 'a or b'", Invocation(arguments=("-k", "a or b"))),
        ("CI=1 X= pytest", Invocation(env={"CI": "1", "X": ""})),
        ("pytest 'a.py::test[x]'", Invocation(arguments=("a.py::test[x]",))),
        (["python3.12", "-m", "pytest", "$x"], Invocation("python3.12", ("$x",))),
        ("pytest; true", None),
        ("pytest || true", None),
        ("pytest > log", None),
        ("pytest tests/*.py", None),
        ("pytest $ARGS", None),
        ("pytest 'open", None),
        ("sh -c pytest", None),
        ("python3 -m pytest_of_ours", None),
        ("./python3 -m pytest", None),
        ("", None),
        (["CI=1", "pytest"], None),
    ],
)
def test_which_commands_are_pytest(command: str | list[str], expected: Invocation | None) -> None:
    assert parse(command) == expected


@given(st.text())
def test_any_text_is_a_command_or_not(text: str) -> None:
    found = parse(text)
    assert found is None or "pytest" in text or "py.test" in text


def test_what_the_default_command_runs() -> None:
    assert of_injected(["test_a.py", "helper.py", "conftest.py", "data.json"]).arguments == ("-q", "test_a.py")
    assert of_injected(["checks.py", "conftest.py"]).arguments == ("-q", "checks.py")
    assert of_injected([]).arguments == ("-q",)


@pytest.mark.parametrize(
    ("files", "arguments", "expected"),
    [
        ({}, [], None),
        ({"pytest.ini": ""}, [], "pytest.ini"),
        ({"tox.ini": "[tox]"}, [], None),
        ({"tox.ini": "[pytest]", "setup.cfg": "[tool:pytest]"}, [], "tox.ini"),
        ({"setup.cfg": "[metadata]\nname = x\n[tool:pytest]"}, ["a/test_x.py"], "setup.cfg"),
        ({"pyproject.toml": "[project]\nname = 'x'"}, [], None),
        ({"pyproject.toml": "[tool.pytest.ini_options]", "tox.ini": "[pytest]"}, [], "pyproject.toml"),
        ({"pyproject.toml": "not toml", "setup.cfg": "no ini"}, [], None),
        ({"pytest.ini": "", "a/pytest.ini": ""}, ["a/test_x.py", "a/b/test_y.py"], "a/pytest.ini"),
        ({"pytest.ini": "", "a/pytest.ini": ""}, ["a/test_x.py", "b/test_y.py"], "pytest.ini"),
    ],
)
def test_the_authors_configuration(files: dict[str, str], arguments: list[str], expected: str | None) -> None:
    def read(path: str) -> bytes | None:
        return files[path].encode() if path in files else None

    assert pytest_run.find_configuration(arguments, read) == expected


def report(place: Path, document: object, key: bytes = KEY) -> None:
    content = json.dumps(document).encode()
    (place / "report").write_bytes(hmac.new(key, content, hashlib.sha256).hexdigest().encode() + b"\n" + content)


EMPTY: dict[str, object] = {"collected": [], "outcomes": {}, "skipped_by": {}, "collection_errors": [], "own": ""}


def test_outcomes_of_phases(tmp_path: Path) -> None:
    outcomes = {"a": ["passed"], "b": ["passed", "error"], "c": ["failed", "passed"], "d": ["xfailed"], "e": []}
    report(tmp_path, {**EMPTY, "collected": [*outcomes, "never"], "outcomes": outcomes, "collection_errors": ["x.py"]})
    found = read_results(tmp_path, "report", KEY, ())
    assert found.outcomes == {
        "a": "passed", "b": "error", "c": "failed", "d": "xfailed", "e": "not run", "never": "not run",
    }  # fmt: skip
    counts = found.counts()
    assert (counts.passed, counts.failures, counts.errors, counts.skipped) == (1, 1, 4, 1)


def test_a_skip_counts_by_whose_file_it_was_raised_in(tmp_path: Path) -> None:
    skipped = {"a": ["skipped"], "b": ["skipped"]}
    by = {"a": ["test_x.py"], "b": ["test_x.py", "solution.py"]}
    report(tmp_path, {**EMPTY, "collected": ["a", "b"], "outcomes": skipped, "skipped_by": by})
    assert read_results(tmp_path, "report", KEY, {"solution.py"}).outcomes == {"a": "skipped", "b": "error"}


@pytest.mark.parametrize("document", [[], 1, {}, {**EMPTY, "outcomes": 1}, {**EMPTY, "collected": None}])
def test_a_document_of_another_shape(tmp_path: Path, document: object) -> None:
    report(tmp_path, document)
    with pytest.raises(BadReport):
        read_results(tmp_path, "report", KEY, ())


def test_reports_of_others(tmp_path: Path) -> None:
    with pytest.raises(BadReport, match="was never written"):
        read_results(tmp_path, "report", KEY, ())
    report(tmp_path, EMPTY, key=bytes(31) + b"x")
    with pytest.raises(BadReport, match="not the one"):
        read_results(tmp_path, "report", KEY, ())
    (tmp_path / "report").write_bytes(b"")
    with pytest.raises(BadReport, match="not the one"):
        read_results(tmp_path, "report", KEY, ())
    (tmp_path / "report").write_bytes("ключ\n{}".encode())
    with pytest.raises(BadReport, match="not the one"):
        read_results(tmp_path, "report", KEY, ())


def test_the_driver_is_there_to_be_copied() -> None:
    assert b"def main()" in pytest_run._driver()


@pytest.mark.parametrize("version", ["3.10", "3.11", "3.12", "3.13", "3.14"])
def test_our_own_pytest_has_all_that_it_needs_on_each_python(version: str) -> None:
    environment = {
        **default_environment(),
        "python_version": version,
        "python_full_version": f"{version}.0",
        "extra": "",
    }
    for name in OWN_PYTEST:
        described = metadata(name)
        assert version in SpecifierSet(described["Requires-Python"]), name
        needed = (Requirement(line) for line in described.get_all("Requires-Dist") or ())
        names = {one.name for one in needed if one.marker is None or one.marker.evaluate(environment)}
        assert names - {"colorama"} <= set(OWN_PYTEST), name  # colorama is for Windows only


def test_our_own_pytest_is_written_for_the_oldest_python_that_may_run_it() -> None:
    with zipfile.ZipFile(io.BytesIO(own_pytest())) as archive:
        names = archive.namelist()
        for name in names:
            if not name.startswith("pygments/lexers/"):
                ast.parse(archive.read(name), feature_version=(3, 10))
    assert {"pytest/__init__.py", "pluggy/__init__.py", "exceptiongroup/__init__.py", "tomli/__init__.py"} <= set(names)
    assert all(name.endswith(".py") for name in names)
