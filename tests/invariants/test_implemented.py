"""`implemented`: the graders page of Touchstone (004_722b8593dcd13c4e.txt), contract 5.3: what is a stub, what not."""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.changed import grade_changes
from support.command_line import run_spec, spec
from support.context import make_check

from keystone_action.invariants.check import Outcome
from keystone_action.invariants.syntax_program import judge_files
from keystone_action.invariants.types.implemented import code_lines, is_source, is_test

REAL = {
    "a function": "def f(x):\n    return x + 1",
    "a method": "class A:\n    def f(self):\n        self.x = 1",
    "an async function": "async def f():\n    await g()",
    "a generator": "def f():\n    yield 1",
    "a script": "print('hello')",
    "a constant": "LIMIT = 3",
    "a dataclass": "@dataclass\nclass A:\n    x: int",
    "an enumeration": "class A(Enum):\n    ONE = 1",
    "beside a stub": "def f():\n    raise NotImplementedError\ndef g():\n    return f",
    "beside abstract members": (
        "class A(ABC):\n    @abstractmethod\n    def f(self): ...\n"
        "    @abc.abstractmethod\n    def g(self):\n        raise NotImplementedError\n"
        "class B(A):\n    def f(self):\n        return 1"
    ),
    "beside a Protocol": "class P(Protocol[T]):\n    def f(self) -> int: ...\ndef g(p):\n    return p.f()",
    "with overloads": "@overload\ndef f(x: int): ...\n@typing.overload\ndef f(x: str): ...\ndef f(x):\n    return x",
    "behind a condition": "if sys.version_info > (3,):\n    def f():\n        return 1",
    "in a loop": "def f(xs):\n    for x in xs:\n        x.go()",
    "an error of its own": "def f(x):\n    raise ValueError(x)",
    "in try": "def f():\n    try:\n        return open('x')\n    except OSError:\n        return None",
    "in match": "def f(x):\n    match x:\n        case 1:\n            return 2",
    "NotImplementedError for what is left": "def f(x):\n    if x:\n        return 1\n    raise NotImplementedError(x)",
    "NotImplementedError after a match": (
        "def f(x):\n    match x:\n        case 1:\n            return 2\n    raise NotImplementedError"
    ),
    "NotImplementedError elsewhere": "def f(x):\n    if x:\n        raise NotImplementedError\n    return 1",
}
STUBS = {
    "empty": "",
    "a comment": "# TODO: write this",
    "a docstring": '"""To do."""',
    "pass": "def f():\n    pass",
    "dots": "def f(): ...",
    "a documented body": 'def f():\n    """Does it."""',
    "NotImplementedError": "def f():\n    raise NotImplementedError",
    "with a message": 'def f():\n    """Docs."""\n    raise NotImplementedError("later")',
    "after nothing": "def f(x):\n    if x:\n        return None\n    raise NotImplementedError",
    "after a function in it": "def f(x):\n    def g():\n        return 1\n    raise NotImplementedError",
    "after a call": "def f():\n    log('todo')\n    raise NotImplementedError()",
    "return": "def f():\n    return",
    "return None": "def f(x):\n    return None",
    "return NotImplemented": "def f(x):\n    return NotImplemented",
    "a name": "def f(x):\n    x",
    "a local name": "def f(x):\n    y = x\n    pass",
    "behind a condition": "def f(x):\n    if x:\n        pass\n    else:\n        return None",
    "try": "def f():\n    try:\n        pass\n    except ValueError:\n        raise NotImplementedError",
    "imports beside": "import os\nfrom x import y\ndef f(): pass",
    "a logger beside": "log = logging.getLogger(__name__)\nLIMIT = 3\ndef f(): pass",
    "a call of its own stub": "def main(): pass\nif __name__ == '__main__':\n    main()",
    "a class": "class A:\n    pass",
    "a class of stubs": "class A:\n    x = 1\n    def __init__(self):\n        pass\n    def f(self): ...",
    "a nested function": "def f():\n    def g():\n        return 1",
    "abstract beside a stub": "class A(ABC):\n    @abstractmethod\n    def f(self): ...\ndef g(): ...",
}
DECLARATIONS = {
    "imports": "from .a import b",
    "a Protocol": "class P(Protocol):\n    x: int\n    def f(self) -> int: ...",
    "an abstract class": "class A(ABC):\n    @abstractmethod\n    def f(self): ...",
    "an error class": 'class NotFound(Exception):\n    """Nothing there."""',
}
CASES = [
    (kind, source)
    for kind, sources in (("real", REAL), ("stub", STUBS), ("declarations", DECLARATIONS))
    for source in sources.values()
]


@pytest.mark.parametrize(("kind", "source"), CASES)
def test_what_is_a_stub(kind: str, source: str) -> None:
    assert judge_files(source, None)["kind"] == kind


@pytest.mark.parametrize("source", ["def f(:", "\0", "x = (", "(" * 300 + ")" * 300])
def test_what_is_no_python_is_broken(source: str) -> None:
    assert judge_files(source, None) == {"kind": "broken", "changed": True}


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        ("x = 1", "x = 1\n# a comment", False),
        ("x = 1", "x   =   (1)\n\n", False),
        ("def f():\n    return 1", 'def f():\n    """Docs."""\n    return 1', False),
        ("x = 1", "x = 2", True),
        ("def f(:", "x = 2", True),
        (None, "x = 2", True),
    ],
)
def test_what_is_a_change(before: str | None, after: str, changed: bool) -> None:
    assert judge_files(after, before)["changed"] is changed


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    made = tmp_path / "workspace"
    made.mkdir()
    (made / "a.py").write_text("def f(x):\n    raise NotImplementedError\n")
    (made / "old.py").write_text("def g(x):\n    return x\n")
    return made


def check(workspace: Path, files: dict[str, str], document: dict[str, Any] | None = None, **fields: Any) -> Outcome:
    """Graded after an agent that wrote these files."""

    def agent(root: Path) -> None:
        for name, text in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(textwrap.dedent(text))

    return grade_changes({"type": "implemented", **(document or {})}, workspace, agent, **fields)


DONE = "def f(x):\n    return x + 1\n"


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"a.py": DONE}, ""),
        ({"new/b.py": DONE, "new/__init__.py": ""}, ""),
        ({"new/b.py": DONE, "new/__init__.py": "from .b import f\n"}, ""),
        ({"a.py": DONE, "tests/test_a.py": "def test_a(): pass\n"}, ""),
        ({"a.py": DONE, ".venv/x.py": "", "node_modules/x.js": ""}, ""),
        ({"main.go": "package main\n"}, ""),
        ({}, "The agent did not change any source file"),
        ({"notes.md": "done"}, "The agent did not change any source file"),
        ({"test_a.py": DONE, "a_test.py": DONE, "a.test.js": "x()"}, "The agent did not change any source file"),
        ({"__init__.py": "# nothing\n"}, "The agent did not change any source file"),
        ({"old.py": "# mine now\ndef g(x):\n    return x\n"}, "The agent did not change any source file"),
        ({"a.py": "def f(x):\n    pass\n"}, "a.py: does nothing: it is a stub."),
        ({"a.py": DONE, "b.py": "def g(): ...\n"}, "b.py: does nothing: it is a stub."),
        ({"b.py": "# TODO\n"}, "b.py: does nothing: it is a stub."),
        ({"b.py": "import os\n"}, "b.py: only declarations, nothing is implemented."),
        ({"a.py": "def f(:\n"}, "a.py: can't be parsed as Python."),
        ({"main.go": "// TODO\n/* later\n\n */\n"}, "main.go: does nothing: it is a stub."),
    ],
)
def test_without_files_it_looks_at_what_the_agent_changed(workspace: Path, files: dict[str, str], problem: str) -> None:
    """004_722b8593dcd13c4e.txt: `{type: implemented, gate: true}`, "scan all *.py (excludes test_*)"."""
    outcome = check(workspace, files)
    assert (outcome.status, outcome.score) == (("fail", 0.0) if problem else ("pass", 1.0)), outcome.message
    assert problem in outcome.message


@pytest.mark.parametrize(
    ("files", "names", "problem"),
    [
        ({"a.py": DONE}, ["a.py"], ""),
        ({"a.py": DONE}, ["a.py", "old.py"], ""),
        ({"a.py": DONE, "b.py": "def g(): ...\n"}, ["a.py"], ""),
        ({"a.py": DONE}, ["*.py"], ""),
        ({"test_a.py": DONE}, ["test_a.py"], ""),
        ({"notes.md": "done"}, ["notes.md"], ""),
        ({"old.py": DONE}, ["a.py"], "The agent did not change any of a.py"),
        ({"a.py": "def f(x): ...\n"}, ["a.py"], "a.py: does nothing"),
        ({"a.py": ""}, ["a.py"], "a.py: does nothing"),
        ({"old.py": DONE}, ["a.py", "old.py"], "a.py: does nothing"),
        ({"a.py": DONE}, ["a.py", "gone.py"], "gone.py does not exist."),
        ({"a.py": DONE}, ["src/*.py"], "src/*.py does not exist."),
    ],
)
def test_with_files_it_looks_at_those(workspace: Path, files: dict[str, str], names: list[str], problem: str) -> None:
    """004_722b8593dcd13c4e.txt: `{type: implemented, gate: true, files: ["a.py"]}`, "scan specific files"."""
    outcome = check(workspace, files, {"files": names})
    assert (outcome.status, outcome.score) == (("fail", 0.0) if problem else ("pass", 1.0)), outcome.message
    assert problem in outcome.message


def fills(text: str) -> Callable[[Path], None]:
    return lambda root: (root / "a.py").write_text(text) and None


@pytest.mark.parametrize(
    "text",
    [
        "(" * 100_000,
        "-" * 1_000_000 + "1",
        "x" + ".a" * 500_000,
        "[" * 90 + "]" * 90 + "(",
        "x = " + "1+" * 300_000 + "1",
    ],
)
def test_source_that_breaks_parsers_earns_nothing(workspace: Path, text: str) -> None:
    outcome = grade_changes({"type": "implemented"}, workspace, fills(text))
    assert (outcome.status, outcome.score) == ("fail", 0.0)


def test_source_above_the_limit_earns_nothing(workspace: Path) -> None:
    outcome = grade_changes({"type": "implemented"}, workspace, fills("x = 1\n" * (2 << 20)))
    assert (outcome.status, "at most 8,388,608 are read" in outcome.message) == ("fail", True)


@pytest.mark.parametrize("files", [None, ["link.py"]])
def test_a_link_that_leads_out_earns_nothing(workspace: Path, files: list[str] | None) -> None:
    (workspace.parent / "real.py").write_text(DONE)
    outcome = grade_changes(
        {"type": "implemented", "files": files}, workspace, lambda root: (root / "link.py").symlink_to("../real.py")
    )
    assert (outcome.status, outcome.score) == ("fail", 0.0)


@pytest.mark.parametrize(
    ("path", "text", "lines"),
    [
        ("x.js", "// a\n\n/* b\n c */ d();\n/* e */\nf('// g') // h", ["d();", "f('// g') // h"]),
        ("x.sh", "#!/bin/sh\n# b\n  echo '#'", ["echo '#'"]),
        ("x.sql", "-- a\n/* b */ SELECT 1", ["SELECT 1"]),
        ("x.html", "<!-- a\nb --><p>\n", ["<p>"]),
        ("x.rb", "=begin\na\n=end\nputs 1", ["puts 1"]),
        ("x.css", "// no comment here\n/* one */", ["// no comment here"]),
        ("x.go", "/* never closed\ncode()", []),
        ("x.unknown", "# a\n// b\n", ["# a", "// b"]),
        ("x.js", "\r\n\t\r\nx\r\n", ["x"]),
    ],
)
def test_lines_of_code(path: str, text: str, lines: list[str]) -> None:
    assert code_lines(text, path) == lines


@given(st.text("/*#-<!>=x\n ", max_size=30), st.sampled_from(["a.js", "a.py", "a.sql", "a.html", "a.rb", "a.txt"]))
def test_lines_of_code_are_parts_of_lines(text: str, path: str) -> None:
    for line in code_lines(text, path):
        assert line.strip() == line != ""
        assert line in text


def test_names() -> None:
    assert [is_source(one) for one in ("a.py", "a.TS", "a.md", "a.json", "Makefile")] == [
        True,
        True,
        False,
        False,
        False,
    ]
    assert [is_test(one) for one in ("x/test_a.py", "a_test.go", "testing.py", "latest.py", "a.spec.ts")] == [
        True,
        True,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize("fields", [{"files": []}, {"files": [""]}, {"files": "a.py"}, {"patterns": ["x"]}])
def test_bad_fields_are_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        make_check({"type": "implemented", **fields})


WITH_GATE = """version: 1
id: gated
task: {prompt: "do it"}
workspace: start
agent: {type: command, command: "%s"}
invariants:
  wrote_it: {gate: true, check: {type: implemented}}
  there: {check: {type: file_exists, path: a.py}}
  missing: {check: {type: file_exists, path: missing.txt}}
scoring: {pass_threshold: 0.5}
"""


@pytest.mark.parametrize(
    ("command", "composite"), [("echo 'def f(): return 1' > a.py", 0.5), ("echo 'def f(): pass' > a.py", 0.0)]
)
def test_as_a_gate_it_only_caps(tmp_path: Path, command: str, composite: float) -> None:
    """ "a cap-only grader: it never adds credit, it only disqualifies the cell"; 5.3: "As a gate without `weight`, its
    weight is 0"."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "a.py").write_text("def f(): raise NotImplementedError\n")
    called = run_spec(tmp_path, WITH_GATE % command)
    assert (called.code, called.cells[0]["composite"]) == (0 if composite else 1, composite), called.err
    assert called.checks["wrote_it"]["weight"] == 0


def test_alone_as_a_gate_it_grades_nothing(tmp_path: Path) -> None:
    called = run_spec(
        tmp_path, spec().replace("{check: {type: file_absent, path: x}}", "{gate: true, check: {type: implemented}}")
    )
    assert called.code == 2
    assert "every invariant has the weight 0" in called.err
