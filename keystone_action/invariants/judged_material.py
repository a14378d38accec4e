"""What `input_from` names, as the text that a judge is given. Everything in it is the agent's, or a service's, word."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from keystone_action.evidence.fields import Missing, look_up, parse_field
from keystone_action.evidence.model import Evidence, FileState
from keystone_action.sandbox.paths import PathProblem, display_path, read_head_inside

MATERIAL_LIMIT = 200_000
"""Bytes of a workspace that are put together for a judge (spec 5.3)."""
FILE_LIMIT = 64_000
"""Bytes of one file of a workspace, so that one long log can't push everything else out."""
_READ_LIMIT = 4 << 20
_VENDORED = frozenset({".git", ".hg", ".venv", "venv", "node_modules", "vendor", "__pycache__", ".mypy_cache", ".tox"})


class NothingToJudge(Exception):  # noqa: N818 - an outcome: the check fails
    """The agent left nothing to judge; the message is a sentence without its full stop."""


class NoTrace(Exception):  # noqa: N818 - an outcome: the check is skipped
    """There is no trace of this agent."""


class BadSource(Exception):  # noqa: N818 - an outcome: the check is in error
    """What was named can't be looked at. The loader refuses what it can see; an expression is known only here."""


@dataclass(frozen=True, slots=True)
class Material:
    """The text to judge; notes are sentences about what is not in it."""

    text: str
    notes: tuple[str, ...] = ()


def collect(evidence: Evidence, source: str) -> Material:
    """The material that a valid `input_from` names, for a judge; blocking. An empty one is never given to a judge: it
    fails the check without asking. Raises NothingToJudge, NoTrace, BadSource."""
    material = gather(evidence, source)
    if not material.text.strip():
        raise NothingToJudge(f"{source} is empty: there is nothing to judge")
    return Material(_without_secrets(material.text, evidence.secrets), material.notes)


def gather(evidence: Evidence, source: str) -> Material:
    """The same as it is, possibly empty, secrets and all: for checks that send it nowhere. Raises as `collect`."""
    named = _SOURCES.get(source)
    if named is not None:
        return named(evidence)
    if source.startswith("file:"):
        return _file(evidence, source.removeprefix("file:"))
    return _request(evidence, source)


def _output(evidence: Evidence) -> Material:
    if evidence.agent.problem:
        raise NothingToJudge(f"there is no output: {evidence.agent.problem}")
    return Material(evidence.agent.output)


def _stdout(evidence: Evidence) -> Material:
    return Material(evidence.agent.stdout)


def _diff(evidence: Evidence) -> Material:
    if not evidence.changes:
        raise NothingToJudge("the agent changed no file: there is no diff")
    return Material(evidence.patch or "\n".join(f"{c.change}: {display_path(c.path)}" for c in evidence.changes))


def _trace(evidence: Evidence) -> Material:
    observed = evidence.observed
    if observed is not None and observed.problem:
        raise NothingToJudge(observed.problem)
    if observed is not None and observed.tool_calls is None and not observed.messages:
        raise NoTrace
    try:
        with evidence.trace.open("rb") as file:
            text = file.read(_READ_LIMIT).decode("utf-8", "replace")
    except FileNotFoundError:
        text = ""
    if not text.strip() and evidence.agent.tool_calls is not None:
        text = "\n".join(json.dumps(dict(call), ensure_ascii=False, default=str) for call in evidence.agent.tool_calls)
    if not text.strip():
        raise NoTrace
    return Material(text)


def _file(evidence: Evidence, path: str) -> Material:
    try:
        head, size = read_head_inside(evidence.workspace, path, limit=_READ_LIMIT)
    except PathProblem as problem:
        raise NothingToJudge(str(problem)) from None
    text = _text(head, cut=size > len(head))
    if text is None:
        raise NothingToJudge(f"{display_path(path)} is no text: its bytes are not UTF-8")
    return Material(text)


def _request(evidence: Evidence, source: str) -> Material:
    service, _, field = source.partition(".")
    log = evidence.request_logs.get(service)
    if log is None:
        raise BadSource(f"the service {service} records nothing; input_from needs an http_mock with record: true")
    try:
        parsed = parse_field(field)
    except ValueError as problem:
        raise BadSource(f"input_from {source!r}: {problem}") from None
    requests = log.requests()
    value = look_up(parsed, requests)
    if isinstance(value, Missing):
        raise NothingToJudge(f"{service}: {value.reason}")
    index = -1 if parsed.request == "last" else parsed.request
    cut = requests[index].cut if isinstance(index, int) else 0
    notes = (f"{cut:,} bytes of the request's body were not kept",) if cut else ()
    if not isinstance(value, str):
        value = json.dumps(value, ensure_ascii=False, indent=2, default=str)
    return Material(value, notes)


def _workspace(evidence: Evidence) -> Material:
    """Changed files first, then the others, each under a header that no file's content can forge: it carries a digest
    of all that follows."""
    changed = {change.path: change.change for change in evidence.changes}
    entries = {path: state for path, state in evidence.after.items() if state.kind != "directory"}
    hidden = {path for path in entries if not _VENDORED.isdisjoint(path.split("/"))}
    order = sorted(entries.keys() - hidden, key=lambda path: (path not in changed, path))
    parts: list[tuple[str, str]] = []
    size = shown = 0
    notes: list[str] = []
    for path in order:
        label = changed.get(path, "unchanged")
        header, body = _entry(evidence, path, entries[path], label)
        size += len(header.encode("utf-8", "replace")) + len(body.encode()) + 40
        if size > MATERIAL_LIMIT:
            break
        parts.append((header, body))
        shown += 1
    if shown < len(order):
        notes.append(f"{len(order) - shown} of {len(order)} files are not shown: a judge gets {MATERIAL_LIMIT:,} bytes")
    if hidden:
        notes.append(f"{len(hidden)} files in .git, node_modules and the like are not shown")
    removed = sorted(path for path, change in changed.items() if change == "removed")[:200]
    parts += [(f"{display_path(path)} (removed)", "") for path in removed]
    digest = hashlib.sha256(repr(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]
    blocks = [f"=== file {digest}: {header} ===\n{body}" for header, body in parts]
    return Material(
        "\n".join([*blocks, *(f"=== {digest}: {note} ===" for note in notes)] if blocks else []), tuple(notes)
    )


def _entry(evidence: Evidence, path: str, state: FileState, label: str) -> tuple[str, str]:
    name = display_path(path)
    if state.kind == "link":
        return f"{name} ({label}, a link to {display_path(state.target)})", ""
    if state.kind != "file":
        return f"{name} ({label}, no regular file)", ""
    try:
        head, size = read_head_inside(evidence.workspace, path, limit=FILE_LIMIT)
    except PathProblem as problem:
        return f"{name} ({label}, not shown: {problem})", ""
    text = _text(head, cut=size > len(head))
    if text is None:
        return f"{name} ({label}, {size:,} bytes, binary)", ""
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


def _without_secrets(text: str, secrets: tuple[str, ...]) -> str:
    """What goes to a model provider must not carry the run's secrets, whatever the agent printed."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= 4:
            text = text.replace(secret, "***")
    return text


_SOURCES: dict[str, Callable[[Evidence], Material]] = {
    "agent_output": _output,
    "stdout": _stdout,
    "workspace": _workspace,
    "diff": _diff,
    "trace": _trace,
}
