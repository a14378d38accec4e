"""The input summary-template: the author's file, read before the agent runs, rendered in a process that can be stopped.

A template may loop for ever or print without end. Its process has a time, a memory and a size that it can't pass, an
empty environment, no standard input but what it is to render, and writes nothing but its answer.
"""

from __future__ import annotations

import json
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_action.errors import HarnessError, UsageError
from keystone_action.github.links import TEMPLATES
from keystone_action.report.results import results_pieces
from keystone_action.scoring.results import RunResult

MAX_TEMPLATE = 262_144
"""Bytes of a template."""
SECONDS = 10.0
MEMORY = 2 << 30
"""Bytes of address space; the results of thousands of cells are a few hundred million."""
MAX_ANSWER = 16 << 20
"""Bytes of what the process answers: a whole summary, each character as JSON may write it, and more."""
_START = "import sys; sys.path[:] = {path!r}; from keystone_action.github.log.summary_template import answer; answer()"


class TemplateError(HarnessError):
    """A template that could not be rendered. Our own summary stands in for it, and the verdict stays."""


@dataclass(frozen=True, slots=True)
class SummaryTemplate:
    """A template that compiles. name: its path as people know it."""

    text: str
    name: str

    @classmethod
    def read(cls, path: Path, workspace: Path) -> SummaryTemplate:
        """Raises UsageError for a file that is missing, no file, too long or no text, and for a template that does not
        compile or names what is not there."""
        name = path.relative_to(workspace).as_posix() if path.is_relative_to(workspace) else path.as_posix()
        template = cls(_read(path, name), name)
        try:
            template._ask(None)
        except TemplateError as problem:
            raise UsageError(f"input summary-template: {problem.message}", help=problem.help) from problem
        return template

    def render(self, run: RunResult, limit: int) -> str:
        """The summary in at most `limit` bytes. Raises TemplateError with a sentence: file, line, what is wrong."""
        return self._ask(run, limit)

    def _ask(self, run: RunResult | None, limit: int = 0) -> str:
        question = {"text": self.text, "name": self.name, "limit": limit}
        with tempfile.TemporaryFile() as asked, tempfile.TemporaryFile() as answered:
            asked.write(json.dumps(question).encode() + b"\n")
            if run is not None:
                asked.writelines(piece.encode() for piece in results_pieces(run))
            asked.seek(0)
            try:
                code = subprocess.run(
                    [sys.executable, "-I", "-c", _START.format(path=sys.path)],
                    stdin=asked,
                    stdout=answered,
                    stderr=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    timeout=SECONDS,
                    check=False,
                ).returncode
            except subprocess.TimeoutExpired:
                raise TemplateError(f"{self.name}: it took more than {SECONDS:g} s, and was stopped") from None
            answered.seek(0)
            return self._answer(answered.read(MAX_ANSWER + 1), code)

    def _answer(self, raw: bytes, code: int) -> str:
        try:
            answer: dict[str, str] = json.loads(raw)
        except ValueError:
            raise TemplateError(
                f"{self.name}: the process that renders it ended with {code}; it may have taken too much memory"
            ) from None
        if "problem" in answer:
            raise TemplateError(answer["problem"], help=f"{TEMPLATES} has what a template may use")
        return answer["text"]


def _read(path: Path, name: str) -> str:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise UsageError(f"input summary-template: {name} is no file")
        with path.open("rb") as file:
            raw = file.read(MAX_TEMPLATE + 1)
    except OSError as error:
        raise UsageError(
            f"input summary-template: {name} can't be read: {error.strerror}",
            help="it is a path relative to working-directory; is the file in the checkout?",
        ) from error
    if len(raw) > MAX_TEMPLATE:
        raise UsageError(f"input summary-template: {name} is longer than {MAX_TEMPLATE:,} bytes")
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"input summary-template: {name} is no UTF-8 text (byte {error.start + 1:,})") from error


def answer() -> None:
    """What the process does: one question on standard input, one answer on standard output."""
    _limit()
    from keystone_action.report.author.summary import TemplateProblem, check_template, render_author_summary
    from keystone_action.scoring.document import run_from_document

    question: dict[str, Any] = json.loads(sys.stdin.buffer.readline())
    text, name = question["text"], question["name"]
    said: dict[str, str]
    try:
        document = sys.stdin.buffer.read()
        if document:
            run = run_from_document(json.loads(document))
            said = {"text": render_author_summary(text, name, run, question["limit"])}
        else:
            check_template(text, name)
            said = {"text": ""}
    except TemplateProblem as problem:
        said = {"problem": str(problem)}
    except MemoryError:
        said = {"problem": f"{name}: it takes more memory than the {MEMORY >> 30} GiB that there are for it"}
    sys.stdout.write(json.dumps(said))


def _limit() -> None:
    """Limits that the template's process can't get around. Only lowers what there is."""
    import resource

    wanted = {
        resource.RLIMIT_CPU: int(SECONDS) + 1,
        resource.RLIMIT_AS: MEMORY,
        resource.RLIMIT_FSIZE: MAX_ANSWER,
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NPROC: 0,
    }
    for limit, value in wanted.items():
        _, hard = resource.getrlimit(limit)
        lowest = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(limit, (lowest, lowest))
