"""What the audit log gets once an agent has ended: the files that it changed, its processes, and what it wrote into
databases."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import now, shown_time
from keystone_action.files.paths import display_path

if TYPE_CHECKING:
    from keystone_action.evidence.writes import TableWrite
    from keystone_action.files.snapshot import Change, FileState
    from keystone_action.runner.cell.under_way import CellUnderWay


def write_events(under_way: CellUnderWay) -> None:
    """What the spec wants of `file_change`, `process` and `db_write`. Raises OutputError, and what services raise."""
    ts = now()
    try:
        for change in under_way.all_changes:
            under_way.audit.write("file_change", _file_change(change), ts=ts)
        for process in under_way.agent_run.processes if under_way.agent_run is not None else ():
            under_way.audit.write("process", _process(process), ts=_moment(process["started"]))
        if under_way.agent_run is not None and (count := under_way.agent_run.processes_left_out):
            under_way.audit.write("processes_left_out", {"count": count}, ts=ts)
        for write in _table_writes(under_way):
            under_way.audit.write("db_write", _db_write(write), ts=write.ts or ts)
    except OSError as error:
        raise OutputError(f"the audit log can't be written: {error.strerror or error}") from error


def _table_writes(under_way: CellUnderWay) -> Iterator[TableWrite]:
    if under_way.spec.watches_writes:
        from keystone_action.runner.cell.forbidden.judging import write_logs

        for log in write_logs(under_way, "audit.db_writes").values():
            yield from log.writes()


def _process(seen: Mapping[str, Any]) -> dict[str, Any]:
    code = None if seen["status"] is None else os.waitstatus_to_exitcode(seen["status"])
    return {
        "argv": seen["argv"],
        "pid": seen["pid"],
        "start": _moment(seen["started"]),
        "end": None if seen["ended"] is None else _moment(seen["ended"]),
        "exit": code,
        "how_known": "started" if seen["is_first"] else "seen",
    }


def _moment(seconds: float) -> str:
    return shown_time(datetime.fromtimestamp(seconds, UTC))


def _file_change(change: Change) -> dict[str, Any]:
    state = change.after if change.after is not None else change.before
    assert state is not None
    return {
        "path": display_path(change.path),
        "kind": change.change,
        "entry": state.kind,
        "size_before": _size(change.before),
        "size_after": _size(change.after),
    }


def _size(state: FileState | None) -> int | None:
    return state.size if state is not None and state.kind == "file" else None


def _db_write(write: TableWrite) -> dict[str, Any]:
    return {
        "service": write.service,
        "table": write.table,
        "what": write.what,
        "operation": write.operation,
        "rows": write.rows,
        "how_known": write.how_known,
    }
