"""Whatever stands in a case: a spec, or errors with a place; never anything else."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.dialects.known import DIALECTS
from keystone_action.invariants.registry import CheckTypes
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.loading.loader import load
from keystone_action.spec.loading.spec_source import CloneFailed

CASE: dict[str, Any] = {
    "id": "add",
    "description": "d",
    "task": {"prompt": "do", "system_prompt": "s", "instruction_files": ["a.md"], "turns": []},
    "source": {"repo": "a/b", "commit": "c", "subdir": "d", "isolation": "auto"},
    "fixtures": {"repo": "a/b", "commit": "c", "subdir": "d"},
    "artifacts": {"skills": [], "mcp": None},
    "matrix": {"harnesses": ["echo"], "models": ["m"], "trials": 1},
    "environment": {"kind": "pip-venv", "requirements": ["a"], "requirement_files": ["a.md"], "env": {"A": "b"}},
    "container": {"image": "a", "setup": ["b"], "python": "python3", "caches": ["c"]},
    "setup": {"stub": [{"file": "a.py", "function": "f"}], "run": ["true"]},
    "observe": {"tracing": True, "interaction": {"policy": "auto-approve"}},
    "graders": [
        {"type": "command", "cmd": "true", "weight": 1, "gate": False},
        {"type": "tests", "cmd": "true", "inject": ["a.md", {"src": "a.md", "dest": "b"}]},
        {"type": "model_judge", "rubric": "a.md", "models": ["openai:x"]},
        {"type": "files", "expect_dir": ".", "patterns": ["a"]},
        {"type": "trace", "require_tools": [{"kind": "write"}]},
        {"type": "swebench", "fail_to_pass": ["a.py::b"], "gate_weight": 1},
        {"type": "tool_correctness", "expected": ["write"]},
    ],
    "expect": {"pass_threshold": 1.0},
    "availability": "required",
}
HARNESSES: dict[str, Any] = {
    "echo": {"argv": ["a", "{prompt}"], "timeout_s": 3, "env": {"A": "b"}, "trace": {"format": "otel", "path": "x"}}
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.floats() | st.sampled_from(["", "a", "{", "{x}", "-", "/"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "file", "a", ""]), inner),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of everything in a document."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(one for key, item in items for one in places(item, (*path, key)))]


def changed(document: Any, path: tuple[Any, ...], value: Any, *, remove: bool) -> Any:
    """The document with another value at a path, or without what is there."""
    if not path:
        return document
    found = copy.deepcopy(document)
    at = found
    for step in path[:-1]:
        at = at[step]
    if remove:
        del at[path[-1]]
    else:
        at[path[-1]] = value
    return found


Change = st.tuples(st.booleans(), VALUES)


def read(directory: Path, case: Any, harnesses: Any) -> LoadedSpec:
    """Write a case, its harnesses and a repository that can be cloned, and load it."""
    root = directory / "clone"
    (root / "d").mkdir(parents=True)
    for place in (directory, root / "d"):
        (place / "a.md").write_text("text")
    (directory / "harnesses.yaml").write_text(json.dumps(harnesses))
    path = directory / "case.yaml"
    path.write_text(json.dumps(case))

    def clone(url: str, commit: str) -> Path:
        if url != "https://github.com/a/b.git" or commit != "c":
            raise CloneFailed(f"{url} {commit}")
        return root.resolve()

    return load(path, CheckTypes(), dialects=DIALECTS, clone=clone)


def test_the_case_itself_is_right(tmp_path: Path) -> None:
    assert read(tmp_path, CASE, HARNESSES).spec.id == "add"


@settings(deadline=None, max_examples=3 * settings().max_examples // 2)
@given(st.data())
def test_a_case_is_a_spec_or_has_errors_with_a_place(data: st.DataObject) -> None:
    case, harnesses = CASE, HARNESSES
    for _ in range(data.draw(st.integers(1, 3))):
        remove, value = data.draw(Change)
        case = changed(case, data.draw(st.sampled_from(places(case))), value, remove=remove)
    if data.draw(st.booleans()):
        remove, value = data.draw(Change)
        harnesses = changed(harnesses, data.draw(st.sampled_from(places(harnesses))), value, remove=remove)
    if "graders" not in case:
        return
    with tempfile.TemporaryDirectory() as name:
        errors: tuple[Diagnostic, ...] = ()
        try:
            assert not read(Path(name), case, harnesses).has_expressions
        except SpecError as error:
            errors = error.diagnostics
    assert all(one.path.startswith(name) and one.line >= 1 and one.message for one in errors)
