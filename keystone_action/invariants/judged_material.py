"""What `input_from` names, as the text that a check looks at. Everything in it is the word of the agent or of a
service."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from keystone_action.evidence.agent_run import AgentTurn, LongText
from keystone_action.evidence.masking import Masker
from keystone_action.evidence.model import Evidence
from keystone_action.evidence.requests import Missing, parse_field, read_field
from keystone_action.files.paths import PathProblem, display_path, read_head_inside
from keystone_action.files.snapshot import FileState
from keystone_action.spec.models.fields import InputSource
from keystone_action.system.command import WHOLE_LIMIT

MATERIAL_LIMIT = 200_000
"""Bytes that a judge gets to see (spec 5.2 "Output"); of a workspace, changed files come first."""
FILE_LIMIT = 64_000
"""Bytes of one file of a workspace, so that one long log can't push everything else out."""
_SPARE = 64_000
"""Bytes that are read beyond what a judge sees: a secret at the cut is masked whole."""
_VENDORED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "vendor", "__pycache__", ".mypy_cache", ".tox"})


class NothingToJudge(Exception):  # noqa: N818 - an outcome: the check fails
    """The agent left nothing to judge; the message is a sentence without its full stop."""


class NoTrace(Exception):  # noqa: N818 - an outcome: the check is skipped
    """There is no trace of this agent."""


class BadSource(Exception):  # noqa: N818 - an outcome: the check is in error
    """The source that was named does not exist. The loader refuses what it can see; the value of an expression is known
    only when the check runs."""


@dataclass(frozen=True, slots=True)
class Material:
    """The text to judge."""

    text: str
    notes: tuple[str, ...] = ()
    """Sentences about what is not in the text."""
    size: int = 0
    """How many bytes there are in all, where the text is only the first of them; else 0."""


def collect_material(evidence: Evidence, source: str) -> Material:
    """The material that a valid `input_from` names, for a judge: its first MATERIAL_LIMIT bytes, with secrets masked.

    A judge is never asked about an empty text: the check fails instead. Blocks. Raises NothingToJudge, NoTrace,
    BadSource.
    """
    found = _gather(evidence, source, MATERIAL_LIMIT + _SPARE)
    if not found.text.strip():
        raise NothingToJudge(f"{source} is empty: there is nothing to judge")
    # What goes to a model provider must not carry the run's secrets, even if the agent printed them.
    masked = Masker(evidence.secrets).text(found.text).encode("utf-8", "surrogatepass")
    size = found.size or (len(masked) if len(masked) > MATERIAL_LIMIT else 0)
    return Material(masked[:MATERIAL_LIMIT].decode("utf-8", "ignore"), found.notes, size)


def gather_material(evidence: Evidence, source: str) -> Material:
    """The whole material, for checks that send it nowhere: it may be empty, and secrets in it are not masked.

    Raises what `collect_material` raises, NothingToJudge also where not all of the material was kept, and
    TooMuchPrinted.
    """
    return _gather(evidence, source, None)


def _gather(evidence: Evidence, source: str, most: int | None) -> Material:
    """most: how many bytes are enough; None when only the whole will do."""
    named = _SOURCES.get(source)
    if named is not None:
        return named(evidence, most)
    if source.startswith("file:"):
        return _file(evidence, source.removeprefix("file:"), most)
    return _request(evidence, source, most)


def _output(evidence: Evidence, most: int | None) -> Material:
    agent = evidence.agent
    if agent.problem:
        raise NothingToJudge(f"there is no output: {agent.problem}")
    return _printed_material(agent.output, agent.long_output, most) or Material(agent.whole_output())


def _stdout(evidence: Evidence, most: int | None) -> Material:
    agent = evidence.agent
    return _printed_material(agent.stdout, agent.long_stdout, most) or Material(agent.whole_stdout())


def _printed_material(shown: str, long: LongText | None, most: int | None) -> Material | None:
    """The part of a stream that is enough for a judge; None when the whole is wanted, which the caller then reads."""
    if most is None:
        return None
    if long is None or long.file is None:
        return Material(shown, size=long.size if long is not None else 0)
    return Material(long.start(most).decode("utf-8", "replace"), size=long.size)


def _diff(evidence: Evidence, most: int | None) -> Material:
    if not evidence.files.changes:
        raise NothingToJudge("the agent changed no file: there is no diff")
    if evidence.files.patch_cut and most is None:
        raise NothingToJudge(f"the diff does not show all that changed: {'; '.join(evidence.files.patch_cut[:3])}")
    patch = evidence.files.patch.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = patch or "\n".join(f"{c.change}: {display_path(c.path)}" for c in evidence.files.changes)
    return Material(text, evidence.files.patch_cut[:3])


def _trace(evidence: Evidence, most: int | None) -> Material:
    observed = evidence.observed
    if observed is not None and observed.problem:
        raise NothingToJudge(observed.problem)
    if observed is not None and observed.tool_calls is None and not observed.messages:
        raise NoTrace
    try:
        with evidence.trace.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if most is None and size > WHOLE_LIMIT:
                raise NothingToJudge(f"the trace has {size:,} bytes; at most {WHOLE_LIMIT:,} can be judged")
            text = file.read(most or WHOLE_LIMIT).decode("utf-8", "replace")
    except FileNotFoundError:
        text, size = "", 0
    if not text.strip() and evidence.agent.tool_calls is not None:
        text = "\n".join(json.dumps(dict(call), ensure_ascii=False, default=str) for call in evidence.agent.tool_calls)
    if not text.strip():
        raise NoTrace
    return Material(text, size=size if most is not None and size > most else 0)


def _file(evidence: Evidence, path: str, most: int | None) -> Material:
    try:
        head, size = read_head_inside(evidence.workspace, path, limit=most or WHOLE_LIMIT)
    except PathProblem as problem:
        raise NothingToJudge(str(problem)) from None
    is_cut = size > len(head)
    if is_cut and most is None:
        raise NothingToJudge(f"{display_path(path)} has {size:,} bytes; at most {WHOLE_LIMIT:,} are read")
    text = _text(head, cut=is_cut)
    if text is None:
        raise NothingToJudge(f"{display_path(path)} is not text: its bytes are not UTF-8")
    return Material(text, size=size if is_cut else 0)


def _request(evidence: Evidence, source: str, most: int | None) -> Material:
    service, _, field = source.partition(".")
    log = evidence.request_log(service)
    if log is None:
        raise BadSource(f"the service {service} records nothing; input_from needs an http_mock with record: true")
    try:
        parsed = parse_field(field)
    except ValueError as problem:
        raise BadSource(f"input_from {source!r}: {problem}") from None
    requests = log.requests()
    value = read_field(parsed, requests)
    if isinstance(value, Missing):
        raise NothingToJudge(f"{service}: {value.reason}")
    index = -1 if parsed.request == "last" else parsed.request
    cut = requests[index].cut if isinstance(index, int) else 0
    notes = (f"{cut:,} bytes of the request's body were not kept",) if cut else ()
    if cut and most is None:
        raise NothingToJudge(f"{service}: {cut:,} bytes of the request's body were not kept, so it can't be judged")
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return Material(value, notes)


def _workspace(evidence: Evidence, most: int | None) -> Material:
    """Changed files first, then the others, each under a header that no file's content can forge: it carries a digest
    of all that follows."""
    limit = WHOLE_LIMIT if most is None else MATERIAL_LIMIT
    changed = {change.path: change.change for change in evidence.files.changes}
    entries = {path: state for path, state in evidence.files.after.items() if state.kind != "directory"}
    hidden = {path for path in entries if not _VENDORED.isdisjoint(path.split("/"))}
    order = sorted(entries.keys() - hidden, key=lambda path: (path not in changed, path))
    parts: list[tuple[str, str]] = []
    size = shown = 0
    notes: list[str] = []
    for path in order:
        label = changed.get(path, "unchanged")
        header, body = _entry(evidence, path, entries[path], label, most)
        size += len(header.encode("utf-8", "replace")) + len(body.encode()) + 40
        if size > limit and most is None:
            raise NothingToJudge(f"the workspace has more than {limit:,} bytes of text, and no more are judged")
        if size > limit:
            break
        parts.append((header, body))
        shown += 1
    if shown < len(order):
        notes.append(f"{len(order) - shown} of {len(order)} files are not shown: a judge gets {limit:,} bytes")
    if hidden:
        notes.append(f"{len(hidden)} files in .git, node_modules and the like are not shown")
    removed = sorted(path for path, change in changed.items() if change == "removed")[:200]
    parts += [(f"{display_path(path)} (removed)", "") for path in removed]
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    blocks = [f"=== file {digest}: {header} ===\n{body}" for header, body in parts]
    return Material(
        "\n".join([*blocks, *(f"=== {digest}: {note} ===" for note in notes)] if blocks else []), tuple(notes)
    )


def _entry(evidence: Evidence, path: str, state: FileState, label: str, most: int | None) -> tuple[str, str]:
    name = display_path(path)
    if state.kind == "link":
        return f"{name} ({label}, a link to {display_path(state.target)})", ""
    if state.kind != "file":
        return f"{name} ({label}, not a regular file)", ""
    try:
        head, size = read_head_inside(evidence.workspace, path, limit=WHOLE_LIMIT if most is None else FILE_LIMIT)
    except PathProblem as problem:
        if most is None:
            raise NothingToJudge(f"{name} can't be read: {problem}") from None
        return f"{name} ({label}, not shown: {problem})", ""
    text = _text(head, cut=size > len(head))
    if text is None:
        return f"{name} ({label}, {size:,} bytes, binary)", ""
    if most is None and size > len(head):
        raise NothingToJudge(f"{name} has {size:,} bytes; at most {WHOLE_LIMIT:,} are read")
    cut = f", cut to its first {len(head):,}" if size > len(head) else ""
    return f"{name} ({label}, {size:,} bytes{cut})", text


def _text(content: bytes, *, cut: bool) -> str | None:
    """The text of a file, None when it is binary. cut: the last character may be incomplete."""
    if b"\0" in content:
        return None
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        if cut and error.start >= len(content) - 3:
            return content[: error.start].decode()
        return None


def _conversation(evidence: Evidence, most: int | None) -> Material:
    """Each turn with what was said and what the agent answered, under headers that no answer can forge: they carry a
    digest of all that follows."""
    agent = evidence.agent
    turns = agent.turns or (AgentTurn(evidence.task_prompt, agent.output, agent.long_output, agent.problem),)
    if not any(turn.output and not turn.problem for turn in turns):
        why = f": {agent.problem}" if agent.problem else ""
        raise NothingToJudge(f"the agent answered nothing{why}")
    limit = most or WHOLE_LIMIT
    parts: list[tuple[str, str]] = []
    size = 0
    for number, turn in enumerate(turns, 1):
        if turn.problem:  # what it said instead is not the answer that was asked for
            answer = Material(f"(no answer: {turn.problem})")
        else:
            answer = _printed_material(turn.output, turn.long_output, most) or Material(turn.whole_output())
        text = answer.text
        parts += [(f"turn {number}, the user", turn.prompt), (f"turn {number}, the agent", text)]
        size += len(turn.prompt.encode("utf-8", "replace")) + (answer.size or len(text.encode("utf-8", "replace")))
    if size > limit and most is None:
        raise NothingToJudge(f"the conversation has {size:,} bytes; at most {limit:,} can be judged")
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    text = "\n".join(f"=== {name} {digest} ===\n{said}" for name, said in parts)
    return Material(text, size=size if size > limit else 0)


_SOURCES: dict[str, Callable[[Evidence, int | None], Material]] = {
    "conversation": _conversation,
    "agent_output": _output,
    "stdout": _stdout,
    "workspace": _workspace,
    "diff": _diff,
    "trace": _trace,
}


_SOURCE = InputSource()


def _valid_source(source: str) -> str:
    if source in _SOURCE.fixed or "{{" in source or (source.startswith("file:") and len(source) > len("file:")):
        return source
    service, dot, field = source.partition(".")
    if not service or not dot:
        expected = f"{', '.join(_SOURCE.fixed)}, file:<path> or <service>.<field>"
        raise PydanticCustomError(
            "input_source", "expected {expected}; found {found}", {"expected": expected, "found": repr(source)}
        )
    try:
        parse_field(field)
    except ValueError as problem:
        raise PydanticCustomError("input_source", "{problem}", {"problem": str(problem)}) from None
    return source


InputFrom = Annotated[str, AfterValidator(_valid_source), _SOURCE]
"""`agent_output`, `conversation`, `stdout`, `workspace`, `diff`, `trace`, `file:<path>` below the workspace, or
`<service>.<field>` of a mock that records."""
