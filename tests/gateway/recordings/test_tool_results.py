"""What commands print of time and processes counts as equal, also where a program sends it as JSON in a text."""

from __future__ import annotations

import json

import pytest

from keystone_action.gateway.recordings.tool_results import with_equal_results


def shown(text: str) -> str:
    return str(with_equal_results({"role": "tool", "content": text})["content"])


PAIRS = [
    ("Mon Nov 23 14:23:32 UTC 2026", "Tue Dec  1 04:23:42 CET 2026"),
    ("Mon Nov 23 02:23:32 -12 2026", "Tue Nov 24 04:23:42 +14 2026"),
    ("Mon 23 Nov 2026 02:23:32 -03", "Tue 24 Nov 2026 14:23:32 +0530"),
    ("3 passed in 0.12s", "3 passed in 1.3s"),
    ("0.12 seconds", "17 seconds"),
    ("[1] 12590", "[1] 317"),
    ("  12590 pts/0 sh", "    317 pts/0 sh"),
    ("pid 12590", "pid 317"),
    ("0x7f0a12345678", "0x7ffd12345679"),
    ("-rw-r--r-- 1 61001 61001 5 Nov 23 14:23 a.txt", "-rw-r--r-- 1 agent agent 5 Dec  1 04:11 a.txt"),
    ("uid=61001 gid=61001 groups=61001", "uid=1000(agent) gid=1000(agent) groups=1000(agent)"),
]


@pytest.mark.parametrize("around", ["{}", "hello\n{}\nmore", "<untrusted_context>\nOutput: {}\n</untrusted_context>"])
@pytest.mark.parametrize(("one", "other"), PAIRS)
def test_as_it_is_and_as_json_in_a_text(around: str, one: str, other: str) -> None:
    one, other = around.format(one), around.format(other)
    assert shown(one) == shown(other)
    as_json = [json.dumps({"returncode": 0, "output": text}, indent=2) for text in (one, other)]
    assert shown(as_json[0]) == shown(as_json[1])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("[1] 12590 eggs", "[1] 317 eggs"),
        ("12590", "317"),
        ("the file n3 s", "the file n4 s"),
        ("version 1.12", "version 1.13"),
        ("is 3 + 4 ? no", "is 3 + 5 ? no"),
    ],
)
def test_other_figures_stay(one: str, other: str) -> None:
    as_json = [json.dumps({"returncode": 0, "output": text}, indent=2) for text in (one, other)]
    assert shown(one) != shown(other)
    assert shown(as_json[0]) != shown(as_json[1])
