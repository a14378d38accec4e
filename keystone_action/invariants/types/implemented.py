"""`implemented`: the agent wrote an implementation, not just a stub or a comment."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, ClassVar

from pydantic import Field

from keystone_action.evidence.model import Evidence
from keystone_action.files.globs import find_paths, is_set_aside
from keystone_action.files.paths import PathMissing, PathProblem, display_path, display_paths, name_paths, read_inside
from keystone_action.invariants.check import Check, CheckContext, Outcome, failed, passed
from keystone_action.invariants.own_process import NotFinished, ask_program
from keystone_action.spec.models.fields import WorkspacePath

PYTHON = frozenset({".py", ".pyw"})


@dataclass(frozen=True, slots=True)
class Comments:
    """How a language writes them: what begins one to the end of the line, and what opens and closes a block."""

    line: tuple[str, ...] = ()
    block: tuple[tuple[str, str], ...] = ()


_C = Comments(("//",), (("/*", "*/"),))
_HASH = Comments(("#",))
_MARKUP = Comments((), (("<!--", "-->"),))
_STYLES: Mapping[Comments, str] = {
    _C: ".js .jsx .mjs .cjs .ts .tsx .mts .cts .go .rs .java .kt .kts .scala .groovy .c .h .cc .cpp .cxx .hh .hpp .cs"
    " .swift .m .mm .dart .zig .v .sol .proto .scss .less",
    Comments((), (("/*", "*/"),)): ".css",
    Comments(("//", "#"), (("/*", "*/"),)): ".php .tf",
    _HASH: ".sh .bash .zsh .fish .pl .pm .r .jl .ex .exs .nim .tcl .awk .pyi .pyx .ps1",
    Comments(("#",), (("=begin", "=end"),)): ".rb",
    Comments(("--",), (("/*", "*/"),)): ".sql",
    Comments(("--",), (("--[[", "]]"),)): ".lua",
    Comments(("--",), (("{-", "-}"),)): ".hs .elm",
    Comments((), (("(*", "*)"),)): ".ml .mli",
    Comments(("//",), (("(*", "*)"),)): ".fs .fsx",
    Comments((";",)): ".clj .cljs .lisp .scm .el .asm .s",
    Comments(("%",)): ".erl .hrl",
    Comments(("//",), (("<!--", "-->"), ("/*", "*/"))): ".vue .svelte .astro",
    _MARKUP: ".html .htm .xml .xsl",
}
_BY_SUFFIX = {suffix: style for style, suffixes in _STYLES.items() for suffix in suffixes.split()}


def is_source(path: str) -> bool:
    """Whether a path has the name of a source file."""
    suffix = PurePosixPath(path).suffix.lower()
    return suffix in PYTHON or suffix in _BY_SUFFIX


def is_python(path: str) -> bool:
    """Whether a path has the name of a Python module."""
    return PurePosixPath(path).suffix.lower() in PYTHON


def is_test(path: str) -> bool:
    """`test_*` and `*_test` with any suffix; `*.test.*` and `*.spec.*` of JavaScript, too."""
    name = PurePosixPath(path).name
    stem = name.partition(".")[0]
    return stem.startswith("test_") or stem.endswith("_test") or ".test." in name or ".spec." in name


def code_lines(text: str, path: str) -> list[str]:
    """The lines that are neither blank nor only a comment, without the space around them. A comment is told by what a
    line begins with, so that no text in quotes is taken for one."""
    style = _HASH if is_python(path) else _BY_SUFFIX.get(PurePosixPath(path).suffix.lower(), Comments())
    found: list[str] = []
    closing = ""
    for whole in text.split("\n"):
        line = whole.strip()
        while line:
            if closing:
                _, closed, line = line.partition(closing)
                closing = "" if closed else closing
                line = line.strip()
                continue
            opened = next((pair for pair in style.block if line.startswith(pair[0])), None)
            if opened is None:
                break
            line, closing = line[len(opened[0]) :], opened[1]
        if line and not line.startswith(style.line):
            found.append(line)
    return found


SOURCE_LIMIT = 8 << 20
TOTAL_LIMIT = 64 << 20
"""Bytes of one source, and of all that are looked at."""
_PROGRAM = Path(__file__).parent.parent / "syntax_program.py"


class Implemented(Check):
    """Passes when the agent wrote an implementation, not just a stub or a comment; meant as a gate.

    Without `files` it looks at the source files that the agent changed or added; tests, empty `__init__.py`, vendored
    directories and those that begin with a dot are left out. There must be at least one, and none may be a stub.

    A Python file is a stub when, abstract and Protocol members and overloads aside, nothing in it does anything: empty
    bodies, docstrings, `raise NotImplementedError`, `return None`. A file with nothing but declarations is not a stub,
    but not an implementation either: at least one file must do something. In other languages a file that is only
    comments or blank is a stub. A change of comments, docstrings or layout is none. What can't be parsed as Python
    fails.

    Score 1 or 0. As a gate without a `weight` its weight is 0: it can disqualify, and earns nothing.
    """

    type_name: ClassVar[str] = "implemented"
    origin: ClassVar[str] = "Touchstone"
    default_timeout: ClassVar[float] = 60.0
    late_fails: ClassVar[bool] = True
    gate_weight: ClassVar[float] = 0.0

    files: (
        Annotated[list[Annotated[str, Field(min_length=1), WorkspacePath(glob=True)]], Field(min_length=1)] | None
    ) = None
    """The files that are looked at instead: each must be there, none be a stub, at least one be changed.

    Example: `["src/*.py"]`
    """

    @property
    def judges_changes(self) -> bool:
        """Always."""
        return True

    async def evaluate(self, context: CheckContext) -> Outcome:
        import anyio.to_thread

        deadline = time.monotonic() + context.timeout
        evidence, originals = context.evidence, context.evidence.files.originals
        try:
            sources = await anyio.to_thread.run_sync(self._sources, evidence, originals, abandon_on_cancel=True)
            judged = [source.as_text() for source in sources if not is_python(source.path)]
            python = [source for source in sources if is_python(source.path)]
            if python:
                question = [{"after": one.after, "before": one.before} for one in python]
                answers = await ask_program(_PROGRAM, question, timeout=max(deadline - time.monotonic(), 0.001))
                judged += [
                    _Judged(source.path, answer["kind"], changed=source.touched and answer["changed"])
                    for source, answer in zip(python, answers, strict=True)
                ]
        except PathProblem as problem:
            return failed(f"{problem}.")
        except NotFinished as problem:
            return failed(f"The sources can't be looked at: {problem}.")
        return self._outcome(judged)

    def _sources(self, evidence: Evidence, originals: Path | None) -> list[_Source]:
        """What is to be judged. Raises PathProblem."""
        changed = {one.path: one for one in evidence.files.changes if one.change in ("added", "modified")}
        paths = self._list_files(evidence) if self.files is not None else sorted(filter(_is_candidate, changed))
        sources: list[_Source] = []
        left = TOTAL_LIMIT
        for path in paths:
            state = evidence.files.after.get(path)
            if self.files is None and (state is None or state.kind != "file"):
                continue
            after = _read(evidence.workspace, path, left)
            left -= len(after)
            change = changed.get(path)
            before = None
            if change is not None and change.before is not None and change.before.kind == "file" and originals:
                before = _earlier(originals, path)
            if self.files is None and path.rpartition("/")[2] == "__init__.py" and not code_lines(after, path):
                continue
            sources.append(_Source(path, after, before, touched=change is not None))
        return sources

    def _list_files(self, evidence: Evidence) -> list[str]:
        found: dict[str, None] = {}
        for pattern in self.files or ():
            paths = find_paths(evidence.workspace, pattern)
            matches = [
                one for one in paths if (state := evidence.files.after.get(one)) is None or state.kind != "directory"
            ]
            if not matches:
                raise PathMissing(f"{display_path(pattern)} does not exist")
            found.update(dict.fromkeys(matches))
        return list(found)

    def _outcome(self, judged: Sequence[_Judged]) -> Outcome:
        changed = [one for one in judged if one.changed]
        if self.files is None:
            judged = changed
        names = name_paths([one.path for one in judged])
        details: dict[str, Any] = {"files": {display_path(one.path): one.kind for one in judged[:100]}}
        if not changed:
            what = "any source file" if self.files is None else f"any of {names}"
            return failed(f"The agent did not change {what}, comments and layout aside.", **details)
        for kind, words in (("broken", "can't be parsed as Python"), ("stub", "does nothing: it is a stub")):
            if wrong := [one.path for one in judged if one.kind == kind]:
                return failed(f"{name_paths(wrong)}: {words}.", wrong=display_paths(wrong), **details)
        if not any(one.kind == "real" for one in judged):
            return failed(f"{names}: only declarations, nothing is implemented.", **details)
        return passed(f"{names}: implemented.", **details)


@dataclass(frozen=True, slots=True)
class _Judged:
    path: str
    kind: str
    changed: bool


@dataclass(frozen=True, slots=True)
class _Source:
    """A source file before and after the agent."""

    path: str
    after: str
    """Its text as the agent left it."""
    before: str | None
    """Its text before; None where it did not exist."""
    touched: bool
    """Whether its bytes were changed."""

    def as_text(self) -> _Judged:
        """The judgement of a file that is not valid Python."""
        lines = code_lines(self.after, self.path)
        before = None if self.before is None else code_lines(self.before, self.path)
        return _Judged(self.path, "real" if lines else "stub", changed=self.touched and lines != before)


def _is_candidate(path: str) -> bool:
    return is_source(path) and not is_test(path) and not is_set_aside(path)


def _read(root: Path, path: str, left: int) -> str:
    return read_inside(root, path, limit=max(min(SOURCE_LIMIT, left), 0)).decode("utf-8", "replace")


def _earlier(originals: Path, path: str) -> str | None:
    try:
        return _read(originals, path, SOURCE_LIMIT)
    except PathProblem:
        return None
