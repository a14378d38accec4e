"""Which tables `db_writes_outside` means, and what is told of a write to another."""

from __future__ import annotations

import pytest

from keystone_action.evidence.writes import HowKnown, TableWrite
from keystone_action.runner.cell.forbidden_rules import judge_table_writes


def write(table: str, *, how: HowKnown = "log", service: str = "db", what: str = "table") -> TableWrite:
    return TableWrite(service, table, "update", 3, how, "2026-11-23T10:00:00Z" if how == "log" else "", what)


@pytest.mark.parametrize(
    ("allowed", "table", "holds"),
    [
        ([], "public.customers", False),
        (["customers"], "public.customers", True),
        (["customers"], "other.customers", True),
        (["public.customers"], "public.customers", True),
        (["public.customers"], "other.customers", False),
        (["cust*"], "public.customers", True),
        (["public.*"], "public.customers", True),
        (["*.customers"], "shop.customers", True),
        (["*"], "public.customers", True),
        (["*"], "public.a.b.c", True),
        (["public*"], "public.customers", False),  # a name without a dot is a table's
        (["customers"], "public.x.customers", False),  # nobody can tell which of both is in which
        (["cust*"], "a.cust.omers", False),
        (["Customers"], "public.customers", False),
        (["customers"], "customers", True),
        (["a", "b"], "public.b", True),
    ],
)
def test_which_tables_are_meant(allowed: list[str], table: str, holds: bool) -> None:
    assert judge_table_writes(allowed, [write(table)]).violated is not holds


def test_where_there_are_no_schemas_a_dot_is_a_part_of_the_name() -> None:
    assert judge_table_writes(["customers"], [write("x.customers")], without_schemas=["db"]).violated
    assert not judge_table_writes(["x.customers"], [write("x.customers")], without_schemas=["db"]).violated


def test_what_where_when_and_how_sure_is_told() -> None:
    log = judge_table_writes([], [write("public.audit")])
    assert log.details == (
        "db: table public.audit: update of 3 rows at 2026-11-23T10:00:00Z, seen in the server's own log of changes"
    )
    compared = judge_table_writes([], [write("seq", how="comparison", what="sequence")])
    assert compared.details == (
        "db: sequence seq: update of 3 rows, by comparison before and after the agent: net changes only"
    )


def test_a_name_with_ends_of_lines_makes_no_lines_of_its_own() -> None:
    told = judge_table_writes([], [write("public.x\r\ndb: table \u202e\x1b[0m é")]).details
    assert told.startswith(r"db: table public.x\r\ndb: table \u202e\x1b[0m é: update of 3 rows at ")


def test_ten_are_told_and_the_others_counted() -> None:
    found = judge_table_writes([], (write(f"t{number}") for number in range(1_000)))
    assert found.details.count("\n") == 10
    assert found.details.endswith("and 990 more")
