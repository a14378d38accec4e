"""Which of the agent's changes to a catalogue give a query another meaning: pure, without a database."""

from __future__ import annotations

import pytest

from keystone_action.services.redefinitions import Catalogue, CatalogueChanges, CatalogueEntry, CatalogueWatch

BEFORE: Catalogue = {
    ("public", "orders"): CatalogueEntry("table"),
    ("public", "open_orders"): CatalogueEntry("view", "select * from orders"),
    ("public", "report"): CatalogueEntry("view", "select count(*) from open_orders"),
    ("public", "total"): CatalogueEntry("function", "select sum(n) from orders"),
    ("public", "unrelated"): CatalogueEntry("view", "select 1"),
}
PATH = ("public",)


def told(now: Catalogue, query: str) -> str | None:
    changes = CatalogueChanges(BEFORE, now, PATH)
    return changes.redefinition(changes.names_in(query))


@pytest.mark.parametrize(
    "query", ["select * from open_orders", "SELECT * FROM Report", "select * from report join total() t on true"]
)
def test_a_view_that_was_redefined_is_found_also_behind_others(query: str) -> None:
    now = {**BEFORE, ("public", "open_orders"): CatalogueEntry("view", "select * from orders where false")}
    assert told(now, query) == "the agent redefined the view public.open_orders"


def test_a_table_that_became_a_view_is_found_behind_two_views() -> None:
    now = {**BEFORE, ("public", "orders"): CatalogueEntry("view", "select 1")}
    assert told(now, "select * from report") == "the agent replaced the table public.orders by a view"


def test_a_rule_on_a_table_is_found_behind_a_function() -> None:
    now = {**BEFORE, ("public", "orders"): CatalogueEntry("table", traits=frozenset({"a rule (hide)"}))}
    assert told(now, "select total()") == "the agent gave the table public.orders a rule (hide)"


def test_what_a_query_does_not_read_and_what_did_not_change_is_no_matter() -> None:
    now = {
        **BEFORE,
        ("public", "unrelated"): CatalogueEntry("view", "select 2"),
        ("public", "new"): CatalogueEntry("table"),
        ("public", "orders"): CatalogueEntry("table", bytes=8192),
    }
    assert told(now, "select * from report") is None
    assert told(now, "select * from new") is None
    assert told(now, "select * from unrelated") == "the agent redefined the view public.unrelated"


def test_nothing_is_said_before_a_catalogue_was_taken_down() -> None:
    looks: list[Catalogue] = [BEFORE, {**BEFORE, ("public", "unrelated"): CatalogueEntry("view", "select 2")}]
    watch = CatalogueWatch(lambda _: (looks.pop(0), PATH, frozenset()))
    assert watch.changes().redefinitions == {}
    watch.seal()
    assert list(watch.changes().redefinitions) == [("public", "unrelated")]
    assert looks == []
