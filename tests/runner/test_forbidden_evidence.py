"""Where the evidence of a rule is missing, nothing is said of the cell."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from keystone_action.errors import HarnessError, OutputError, ServiceError
from keystone_action.evidence.audit import AuditLog, now, read_audit_log
from keystone_action.evidence.secret_search import SecretSearch
from keystone_action.evidence.writes import TableWrite
from keystone_action.runner.cell.judge import _table_writes
from keystone_action.runner.cell.leaked_secrets import LeakSearch
from keystone_action.runner.cell.seal import _settle_places, write_logs


def test_a_database_that_can_t_be_watched_is_an_error() -> None:
    places = {"db": SimpleNamespace(database=object(), writes=None), "api": SimpleNamespace(database=None, writes=None)}
    with pytest.raises(HarnessError, match=r"forbidden\.x: what is written into db can't be seen"):
        write_logs(cast(Any, places), "forbidden.x")


def test_a_service_that_broke_keeps_no_other_from_being_settled() -> None:
    settled = []

    def settle(name: str) -> None:
        settled.append(name)
        if name != "whole":
            raise ServiceError(f"service {name} broke")

    places = {name: SimpleNamespace(settle=partial(settle, name)) for name in ("first", "second", "whole")}
    with pytest.raises(ServiceError, match="service first broke"):
        _settle_places(cast(Any, places))
    assert settled == ["first", "second", "whole"]


@pytest.mark.parametrize("line", [b"no JSON\n", b"{}\n", b"[1]\n", b'{"ts": "x"'])
def test_an_audit_log_that_can_t_be_read_is_an_error(tmp_path: Path, line: bytes) -> None:
    log = AuditLog(tmp_path / "audit.jsonl")
    log.write("connect", {"host": "a"}, ts=now())
    start = log.size()
    log.write("connect", {"host": "b"}, ts=now())
    assert [one.details["host"] for one in read_audit_log(log.path, start)] == ["b"]
    log.path.write_bytes(log.path.read_bytes() + line)
    with pytest.raises(OutputError, match="can't be read"):
        list(read_audit_log(log.path, start))


class Rows:
    """A log of a million rows, or one that breaks off."""

    not_seen: Sequence[str] = ()

    def __init__(self, rows: Iterator[tuple[str, str]]) -> None:
        self._rows = rows

    def writes(self) -> Sequence[TableWrite]:
        return [TableWrite("db", "public.a", "insert", 1, "log")]

    def texts(self) -> Iterator[tuple[str, str]]:
        return self._rows


def test_rows_are_looked_through_in_large_pieces_and_no_value_runs_into_the_next() -> None:
    def rows() -> Iterator[tuple[str, str]]:
        for number in range(200_000):
            yield "public.a", f"value {number}"
            yield "public.b", "tok-01234"
            yield "public.b", "56789"
        yield "public.c", "it is tok-0123456789"
        yield "public.a", "tok-0123456789"

    search = LeakSearch(SecretSearch({"TOKEN": "tok-0123456789"}))
    search.in_rows("db", Rows(rows()))
    assert search.result().details.splitlines() == [
        "TOKEN is in rows written into db: public.a, seen in the server's own log of changes",
        "TOKEN is in rows written into db: public.c, by comparison before and after the agent: net changes only",
    ]


def test_rows_that_break_off_are_an_error() -> None:
    def rows() -> Iterator[tuple[str, str]]:
        yield "public.a", "x"
        raise ServiceError("service db: the session was lost")

    with pytest.raises(ServiceError, match="the session was lost"):
        LeakSearch(SecretSearch({"TOKEN": "tok-0123456789"})).in_rows("db", Rows(rows()))


class Broken(Rows):
    """A log that can't be read."""

    def __init__(self) -> None:
        super().__init__(iter(()))

    def writes(self) -> Sequence[TableWrite]:
        raise ServiceError("service other: its log is gone")


@pytest.mark.parametrize("broken_first", [True, False])
@pytest.mark.parametrize("allowed", [[], ["a"]], ids=["forbidden", "allowed"])
def test_a_log_that_can_t_be_read_hides_no_violation_that_another_proves(
    broken_first: bool, allowed: list[str]
) -> None:
    logs = {"db": Rows(iter(())), "other": Broken()}
    services = {
        name: SimpleNamespace(database=object(), writes=logs[name]) for name in sorted(logs, reverse=broken_first)
    }
    spec = SimpleNamespace(services=[], forbidden=SimpleNamespace(db_writes_outside=allowed))
    progress = SimpleNamespace(note=lambda *_: None)
    running = SimpleNamespace(spec=spec, progress=progress)
    cell = cast(Any, SimpleNamespace(running=running, evidence=SimpleNamespace(services=services)))
    if allowed:
        with pytest.raises(ServiceError, match="its log is gone"):
            list(_table_writes(cell))
    else:
        (found,) = _table_writes(cell)
        assert found.violated
        assert "public.a" in found.details
