"""The page on forbidden rules tells each way of writing into PostgreSQL as the tests find it."""

from __future__ import annotations

from pathlib import Path

from support.written import WAYS, Told

PAGE = Path(__file__).parents[2] / "docs" / "forbidden.md"


def shown(expected: set[Told]) -> str:
    told = sorted(f"{operation} {what} `{table.replace('|', '')}`" for table, what, operation, _, _ in expected)
    return "; ".join(told) or "nothing"


def row(way: str, expected: set[Told]) -> str:
    sure = " and ".join(sorted({known for *_, known in expected}, reverse=True)) or "it does not count"
    return f"| {way} | {shown(expected)} | {sure} |"


def test_the_page_has_a_row_for_each_way() -> None:
    page = PAGE.read_text("utf-8").splitlines()
    rows = [row(way, expected) for way, (_, expected) in WAYS.items()]
    assert [line for line in rows if line not in page] == [], "\n".join(rows)
