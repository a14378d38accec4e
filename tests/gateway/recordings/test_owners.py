"""The user of a sandbox, as tools show it, counts as equal from run to run."""

from __future__ import annotations

import pytest

from keystone_action.gateway.recordings.tool_results import with_equal_results


def shown(text: str) -> str:
    made = with_equal_results({"role": "tool", "content": text})
    return str(made["content"])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-rw-r--r-- 1 61001 61001 5 a.txt", "-rw-r--r-- 1 64999 64999 5 a.txt"),
        ("drwxr-xr-x  2 keystone-1 root 4096 b", "drwxr-xr-x  2 agent agent 4096 b"),
        ("uid=61001 gid=61001 groups=61001", "uid=1000(agent) gid=1000(agent) groups=1000(agent),4(adm)"),
    ],
)
def test_owners_are_equal(one: str, other: str) -> None:
    assert shown(one) == shown(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("-rw-r--r-- 1 a a 5 a.txt", "-rw-r--r-- 1 a a 6 a.txt"),
        ("-rw-r--r-- 1 a a 5 a.txt", "-rwxr--r-- 1 a a 5 a.txt"),
        ("-rw-r--r-- 1 a a 5 a.txt", "-rw-r--r-- 1 a a 5 b.txt"),
        ("paid=1 x", "paid=2 x"),
        ("the answer is 61001", "the answer is 61002"),
    ],
)
def test_sizes_modes_names_and_other_numbers_are_not(one: str, other: str) -> None:
    assert shown(one) != shown(other)
