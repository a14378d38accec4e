"""Which rows are new and which are gone, by their hashes."""

from __future__ import annotations

import secrets
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keystone_action.services import compared_rows as rows


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("rows")


def new(directory: Path) -> str:
    return str(directory / secrets.token_hex(8))


def compare(directory: Path, before: list[bytes], after: list[bytes]) -> tuple[rows.RowDifference, Counter[bytes]]:
    key = rows.new_key()
    files = [new(directory), new(directory)]
    assert [rows.keep_digests(each, file, key) for each, file in zip((before, after), files, strict=True)] == [
        len(before),
        len(after),
    ]
    found = rows.row_difference(files[0], files[1], new(directory))
    added: Counter[bytes] = Counter()
    for some in rows.added_at_once(found.added_path):
        added.update(some)
    names = {rows.digest(row, key): row for row in after}
    return found, Counter({names[one]: times for one, times in added.items()})


LISTS = st.lists(st.sampled_from([b"a", b"b", b"c", b"", b"ab"]), max_size=12)


@given(LISTS, LISTS)
def test_equal_rows_are_counted(directory: Path, before: list[bytes], after: list[bytes]) -> None:
    found, added = compare(directory, before, after)
    assert found.removed == (Counter(before) - Counter(after)).total()
    assert found.added == (Counter(after) - Counter(before)).total()
    assert added == Counter(after) - Counter(before)


@settings(deadline=None, max_examples=20)
@given(st.lists(st.binary(max_size=3), max_size=60), st.lists(st.binary(max_size=3), max_size=60))
def test_what_does_not_fit_into_memory_is_compared_in_parts(
    directory: Path, before: list[bytes], after: list[bytes]
) -> None:
    whole, rows.DIGESTS_AT_ONCE = rows.DIGESTS_AT_ONCE, 7
    try:
        found, added = compare(directory, before, after)
    finally:
        rows.DIGESTS_AT_ONCE = whole
    assert (found.removed, added) == ((Counter(before) - Counter(after)).total(), Counter(after) - Counter(before))


def test_order_does_not_count(directory: Path) -> None:
    found, _ = compare(directory, [b"a", b"b"], [b"b", b"a"])
    assert (found.removed, found.added) == (0, 0)


def test_a_hash_can_not_be_told_without_its_key() -> None:
    assert rows.digest(b"row", rows.new_key()) != rows.digest(b"row", rows.new_key())
