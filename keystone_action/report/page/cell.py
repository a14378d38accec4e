"""All that the page has of one cell: its checks with what they found, and its evidence, within a budget.

Cells that did not pass come first and are there whole; of those that passed, a few. What is left out is said, with the
file that has it. The folder of a cell may come from another job, so nothing in it is believed: no link is followed, no
pipe is waited for, and what can't be read is said on the page. Secrets were masked when the files were written.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keystone_action.report import words
from keystone_action.report.escape import excerpt, first_line
from keystone_action.report.page.rows import Placed, inert_json, shown
from keystone_action.report.sentences import view
from keystone_action.report.sentences.facts import cell_cost
from keystone_action.scoring.fields import plain_json
from keystone_action.scoring.results import AgentResult, CellResult, InvariantResult, SpecResult

READ_LIMIT = 1 << 20
"""Bytes of a file that are looked at."""
MAX_EVENTS = 300
"""Of a trace, and of an audit log; the first and the last of them."""
MAX_FILES = 200
MAX_EVENT_TEXT = 60_000
"""Characters of the texts of one file's events; where they are used up, texts are cut shorter."""
_TITLE, _SHORT, _TEXT, _LONG_TEXT = 300, 200, 1500, 4000
_Event = dict[str, Any]


class CellFolder:
    """`cells/<id>/` of a run, opened; without a folder, or for a name that is none, it is empty. Close it."""

    def __init__(self, cells: Path | None, cell_id: str) -> None:
        self._descriptor = -1
        if cells is None or "/" in cell_id or "\0" in cell_id or cell_id in ("", ".", ".."):
            return
        try:
            self._descriptor = os.open(cells / cell_id, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError:
            return

    def close(self) -> None:
        """Harmless when repeated."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def files(self) -> list[tuple[str, int]]:
        """Names and sizes of the plain files in it, and in `checks/`; at most MAX_FILES."""
        if self._descriptor < 0:
            return []
        return sorted([*_plain_files(self._descriptor), *self._logs_of_checks()])[:MAX_FILES]

    def _logs_of_checks(self) -> list[tuple[str, int]]:
        try:
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            logs = os.open("checks", flags, dir_fd=self._descriptor)
        except OSError:
            return []
        try:
            return [(f"checks/{name}", size) for name, size in _plain_files(logs)]
        finally:
            os.close(logs)

    def text(self, name: str) -> tuple[str, int]:
        """The start of a file, at most READ_LIMIT bytes, and the file's size; ("", 0) where there is none."""
        if self._descriptor < 0:
            return "", 0
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with os.fdopen(os.open(name, flags, dir_fd=self._descriptor), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    return "", 0
                return file.read(READ_LIMIT).decode("utf-8", "replace"), status.st_size
        except OSError:
            return "", 0


def _plain_files(descriptor: int) -> Iterator[tuple[str, int]]:
    with os.scandir(descriptor) as entries:
        for number, entry in enumerate(entries):
            if number >= MAX_FILES:
                return
            if entry.is_file(follow_symlinks=False):
                yield entry.name, entry.stat(follow_symlinks=False).st_size


def diff_of(folder: CellFolder, limit: int, left_out: list[str]) -> str:
    """The start of the diff, whole lines. left_out: gets a sentence about what is not here."""
    text, size = folder.text("diff.patch")
    kept = text if len(text) <= limit else text[:limit].rpartition("\n")[0]
    if len(kept) < len(text) or size > READ_LIMIT:
        left_out.append(f"diff.patch has {size:,} bytes, and this page its first {len(kept):,} characters.")
    return kept


def trace_rows(folder: CellFolder, left_out: list[str]) -> list[_Event]:
    """What the agent did, in order, as `{at, kind, title, text}`."""
    return _events(folder, "trace.jsonl", _trace_event, left_out)


def audit_of(folder: CellFolder, left_out: list[str]) -> list[_Event]:
    """Requests, writes and what else was observed, in the order of the audit log, in the same form."""
    return _events(folder, "audit.jsonl", _audit_event, left_out)


def _events(
    folder: CellFolder, name: str, read: Callable[[str, Mapping[str, Any]], _Event | None], left_out: list[str]
) -> list[_Event]:
    text, size = folder.text(name)
    lines = text.splitlines() if size <= READ_LIMIT else text.rpartition("\n")[0].splitlines()
    events = [event for line in lines if (event := _event(line, read)) is not None]
    half = MAX_EVENTS // 2
    kept = events if len(events) <= MAX_EVENTS else events[:half] + events[-half:]
    if size > READ_LIMIT:
        left_out.append(f"{name} has {size:,} bytes, of which the first {READ_LIMIT:,} were looked at.")
    room = MAX_EVENT_TEXT
    for event in kept:
        event["title"] = first_line(event["title"], _TITLE)
        if text := event.get("text", ""):
            event["text"] = excerpt(text, characters=max(_SHORT, min(room, _LONG_TEXT)))
            room -= len(event["text"])
    if room < 0:
        left_out.append(f"Long texts of {name} are cut here.")
    if len(kept) < len(events):
        kept[half:half] = [{"kind": "gap", "title": f"{len(events) - len(kept):,} more are in {name}", "text": ""}]
    return kept


def _event(line: str, read: Callable[[str, Mapping[str, Any]], _Event | None]) -> _Event | None:
    """A line that can't be read is shown as it is."""
    try:
        document = json.loads(line)
        kind, ts = str(document["type"]), document.get("ts", "")
        told = document.get("payload", document.get("details"))
        event = read(kind, told)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {"kind": "unread", "title": "a line that can't be read", "text": excerpt(line, characters=_TEXT)}
    return None if event is None else {"at": ts if isinstance(ts, str) else "", "kind": kind, **event}


def _trace_event(kind: str, told: Mapping[str, Any]) -> _Event | None:
    if kind == "trace":
        said = [str(told.get("problem") or ""), *map(str, told.get("not_understood") or ())]
        return {"title": f"told by {told['source']}", "text": _bounded("\n".join(filter(None, said)))}
    if kind == "tool_call":
        return {"title": f"{told['name']} ({told['kind']})", "text": _bounded(_written(told["input"]))}
    if kind == "tool_result":
        return {"title": str(told["status"] or "no status"), "text": _bounded(str(told["output"]))}
    if kind in ("message", "thought"):
        return {"title": str(told.get("role", "")), "text": _bounded(str(told["text"]))}
    if kind == "stop":
        return {"title": str(told["reason"] or "no reason was seen"), "text": ""}
    if kind == "usage":
        return {"title": ", ".join(f"{name} {value}" for name, value in told.items() if value is not None), "text": ""}
    return {"title": kind.replace("_", " "), "text": _bounded(_written(told))}


def _audit_event(kind: str, told: Mapping[str, Any]) -> _Event | None:
    if kind == "http_call":
        bodies = [f"{title}:\n{told[key]}" for title, key in _BODIES.items() if told.get(key)]
        title = f"{told['method']} {told['url']} → {told['status']}, by {told['service']}"
        return {"title": title, "text": "\n\n".join(excerpt(body, characters=_LONG_TEXT // 2) for body in bodies)}
    if kind == "db_write":
        rows = "rows not counted" if told["rows"] is None else words.count(told["rows"], "row")
        return {"title": f"{told['operation']} {told['service']}.{told['table']}: {rows}, by {told['how_known']}"}
    if kind == "model_request":
        calls = ", ".join(map(str, told.get("calls") or ()))
        title = f"{told['model']}: {told['status'] or 'no answer'}, {words.duration(told['seconds'])}"
        return {"title": title + (f", calls {calls}" if calls else ""), "text": _bounded(_written(told))}
    if kind == "connect":
        return {"title": f"{told['host']}:{told['port']} {'allowed' if told['allowed'] else 'refused'}"}
    if kind == "file_change":
        return {"title": f"{told['kind']} {told['path']}"}
    if kind == "process":
        return {"title": f"exit {told['exit']}", "text": _bounded(" ".join(map(str, told["argv"])))}
    return {"title": kind.replace("_", " "), "text": _bounded(_written(told))}


_BODIES = {"sent": "request_body", "answered": "response_body"}


def _bounded(text: str) -> str:
    return excerpt(text, characters=_TEXT)


def _written(value: Any) -> str:
    """A mapping as `name: value` lines, all else as JSON."""
    if isinstance(value, Mapping):
        return "\n".join(
            f"{name}: {item if isinstance(item, str) else _one_line(item)}" for name, item in value.items()
        )
    return "" if value is None else _one_line(value)


MAX_PASSED = 100
"""Cells that passed whose evidence is in the page."""
BUDGET = 6_000_000
"""Bytes of all cells together. One more is never begun once they are used up."""
MAX_CELL = 200_000
"""Characters of one cell's texts, about: each kind has its part."""
_DIFF, _PRINTED, _MESSAGE, _DETAILS = MAX_CELL // 3, MAX_CELL // 8, MAX_CELL // 40, MAX_CELL // 20
_VALUE = 4000
MAX_CHECKS = 300
MAX_SHOWN_ROWS = 20


def details(specs: Sequence[SpecResult], cells: Sequence[Placed], folder: Path | None) -> Iterator[str]:
    """One line of JSON a cell, in the order of the rows, until the budget is used up. folder: of the run."""
    left, passed = BUDGET, 0
    for number, cell in cells:
        passed += cell.verdict == "pass"
        if passed > MAX_PASSED or left <= 0:
            return
        line = inert_json(shown(_details(specs[number], cell, folder)))
        left -= len(line)
        yield line


def _details(spec: SpecResult, cell: CellResult, folder: Path | None) -> dict[str, Any]:
    left_out: list[str] = []
    files = CellFolder(None if folder is None else folder / "cells", cell.id)
    try:
        found = {
            "trace": trace_rows(files, left_out),
            "diff": diff_of(files, _DIFF, left_out),
            "audit": audit_of(files, left_out),
            "files": files.files(),
        }
    finally:
        files.close()
    if len(cell.invariants) > MAX_CHECKS:
        left_out.append(f"This cell has {len(cell.invariants):,} checks, and this page {MAX_CHECKS} of them.")
    worst = sorted(cell.invariants, key=lambda check: check.status == "pass")[:MAX_CHECKS]
    return {
        "path": spec.path,
        "error": excerpt(cell.error or "", characters=_MESSAGE),
        "attempts": cell.attempts,
        **({"mark": mark} if (mark := view.counted_as_zero([cell])) else {}),
        "usage": cell_cost(cell),
        "source": cell.trace.source,
        "replayed": cell.trace.replayed,
        "notices": [excerpt(notice, characters=_MESSAGE) for notice in cell.notices[:50]],
        "forbidden": [
            {"rule": rule.rule, "text": excerpt(rule.details, characters=_MESSAGE)}
            for rule in cell.forbidden
            if rule.violated
        ],
        "checks": list(_checks(worst, spec)),
        "asked": view.asked(cell.prompts, lines=200, characters=_PRINTED),
        "agent": None if cell.agent is None else _agent(cell.agent),
        **found,
        "left_out": left_out,
    }


def _agent(agent: AgentResult) -> dict[str, Any]:
    return {
        "ended": words.agent(agent),
        "printed": [(title, excerpt(text, lines=400, characters=_PRINTED)) for title, text in view.last_words(agent)],
    }


def _checks(checks: Sequence[InvariantResult], spec: SpecResult) -> Iterator[dict[str, Any]]:
    """The first ones whole, as far as there is room; of the others a line."""
    room = MAX_CELL
    for check in checks:
        found = _check(check, spec, whole=room > 0)
        room -= len(found["message"]) + sum(len(str(value)) for value in found["found"])
        yield found


def _check(check: InvariantResult, spec: SpecResult, *, whole: bool) -> dict[str, Any]:
    return {
        "name": check.name,
        "type": check.type,
        "status": check.status,
        "score": words.score(check.score),
        "weight": words.weight(check.weight),
        "gate": words.gate(check),
        "message": excerpt(check.message, characters=_MESSAGE) if whole else first_line(check.message),
        "about": "" if check.description == check.name else check.description,
        "line": spec.positions.get(check.name),
        "seconds": round(check.duration_s, 3),
        "found": _found(check.details) if whole else [],
    }


def _found(details: dict[str, Any]) -> list[dict[str, Any]]:
    """What a check found, a value each: `{name, text}`, and rows of a query as `{name, columns, rows}`."""
    found: list[dict[str, Any]] = []
    left = _DETAILS
    values = plain_json(details)
    for name, value in values.items():
        if left <= 0:
            found.append({"name": "…", "text": "more is in results.json"})
            break
        if name == "columns" and _is_table(values):
            continue
        if name == "found" and _is_table(values):
            rows = [[_cell_text(item) for item in row] for row in value[:MAX_SHOWN_ROWS]]
            found.append({"name": name, "columns": [_cell_text(item) for item in values["columns"]], "rows": rows})
            left -= sum(len(item) for row in rows for item in row)
            continue
        text = value if isinstance(value, str) else _json(value)
        found.append({"name": name, "text": excerpt(text, characters=_VALUE)})
        left -= min(len(text), _VALUE)
    return found


def _is_table(values: dict[str, Any]) -> bool:
    columns, rows = values.get("columns"), values.get("found")
    return isinstance(columns, list) and isinstance(rows, list) and all(isinstance(row, list) for row in rows)


def _cell_text(value: Any) -> str:
    return first_line(value if isinstance(value, str) else _json(value), 200)


def _one_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(value: Any) -> str:
    short = json.dumps(value, ensure_ascii=False)
    return short if len(short) <= 100 else json.dumps(value, ensure_ascii=False, indent=2)
