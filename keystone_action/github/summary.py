"""The job summary: Markdown in the file that GITHUB_STEP_SUMMARY names, up to 1,048,576 bytes a step.

The input `summary-template` is a file of the author's, read before the agent runs. It may loop for ever or print
without end, so it is rendered in a process of its own, with an empty environment and limits of time, memory and size;
the process reads what it is to render and writes nothing but its answer.
"""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keystone_action.errors import HarnessError, OutputError, UsageError
from keystone_action.files.copies import hand_over
from keystone_action.github.links import TEMPLATES
from keystone_action.report.write import results_pieces
from keystone_action.scoring.results import RunResult

MAX_TEMPLATE = 262_144
"""Bytes of a template."""
SECONDS = 10.0
MEMORY = 2 << 30
"""Bytes of address space; the results of thousands of cells are a few hundred million."""
MAX_ANSWER = 16 << 20
"""Bytes of what the process answers: a whole summary, each character as JSON may write it, and more."""
_START = "import sys; sys.path[:] = {path!r}; from keystone_action.github.summary import answer; answer()"


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
            raise UsageError(f"input summary-template: {name} is not a file")
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
        raise UsageError(f"input summary-template: {name} is not UTF-8 text (byte {error.start + 1:,})") from error


def answer() -> None:
    """What the process does: one question on standard input, one answer on standard output."""
    _limit()
    from keystone_action.report.author_summary import TemplateProblem, check_template, render_author_summary
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


MAX_SUMMARY = 1024 * 1024
"""Bytes; above it the runner shows nothing at all of a step's summary and an error instead."""
_SMALLEST = 256
"""Bytes below which no summary is worth rendering."""


class Summaries:
    """What a run's summary is: by the workflow's own template, if it has one, else ours. warn: is told when the
    template can't be rendered; ours stands in for it then, and from there on. links: addresses of the specs' files;
    run_url: of the workflow's run, which has the other reports."""

    def __init__(self, template: SummaryTemplate | None, warn: Callable[[str], None]) -> None:
        self.template = template
        self.links: Mapping[str, str] = {}
        self.run_url = ""
        self._warn = warn

    def text(self, run: RunResult, limit: int) -> str:
        """The summary in at most so many bytes. A job that is being cancelled has no time for a template."""
        from keystone_action.report.summary import render_summary

        if self.template is not None and not run.cancelled:
            try:
                return self.template.render(run, limit)
            except TemplateError as problem:
                self._give_up(problem.message)
            except Exception as error:  # noqa: BLE001 - what breaks here changes no verdict
                self._give_up(f"rendering it broke: {type(error).__name__}: {error}")
        return render_summary(run, limit, links=self.links, report=self.run_url)

    def replace_file(self, run: RunResult, directory: Path, workspace: Path) -> None:
        """Writes summary.md by the template in place of ours. Without one, or when that fails, ours stays."""
        from keystone_action.report.write import SUMMARY, write_file

        if self.template is None:
            return
        text = self.text(run, MAX_SUMMARY)
        if self.template is not None:
            write_file(directory / SUMMARY, [text])
            hand_over([directory / SUMMARY], workspace)

    def _give_up(self, problem: str) -> None:
        self.template = None
        self._warn(f"the summary is Keystone's own, since the summary-template failed: {problem}")


def append_text(path: Path, render: Callable[[int], str]) -> bool:
    """Appends what `render` makes of so many bytes of room.

    Returns False when no room was left; nothing is written of a text that is too long even so. Raises OutputError
    when the file can't be written.
    """
    try:
        used = path.stat().st_size if path.exists() else 0
        separator = "\n" if used else ""
        room = MAX_SUMMARY - used - len(separator) - 1
        if room < _SMALLEST:
            return False
        text = separator + render(room).rstrip("\n") + "\n"
        if len(text.encode("utf-8", "backslashreplace")) > MAX_SUMMARY - used:
            return False
        descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "wb") as file:
            file.write(text.encode("utf-8", "backslashreplace"))
    except OSError as error:
        raise OutputError(f"the summary could not be written to {path}: {error.strerror}") from error
    return True
