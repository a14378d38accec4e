"""What a recording gets that is not whole, not ours, or not as it was written."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.recording_files import entry, recording, written

from keystone_action.gateway.recordings.files import read_recording
from keystone_action.gateway.recordings.recording import RecordingError, recording_path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return recording_path(tmp_path / "recordings" / "repair", "repair.r0")


def put(path: Path, lines: list[bytes]) -> None:
    """Other lines, whose first one fits them."""
    header = json.loads(lines[0])
    header["lines"] = len(lines) - 1
    header["sha256"] = hashlib.sha256(b"".join(lines[1:])).hexdigest()
    path.write_bytes(b"".join([json.dumps(header).encode() + b"\n", *lines[1:]]))


def changed(line: bytes, **changes: Any) -> bytes:
    document = {name: value for name, value in {**json.loads(line), **changes}.items() if value is not ...}
    return json.dumps(document).encode() + b"\n"


def first_changed(**changes: Any) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [changed(lines[0], **changes), *lines[1:]]


def second_changed(**changes: Any) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [lines[0], changed(lines[1], **changes), *lines[2:]]


def third_changed(**changes: Any) -> Callable[[list[bytes]], list[bytes]]:
    return lambda lines: [*lines[:2], changed(lines[2], **changes), *lines[3:]]


# ruff: noqa: E501 - a case a line
ANY_WAY = {
    "empty": (lambda _: [b""], ":1: expected a recording, found an empty file"),
    "another version": (first_changed(keystone_recording=2), ":1: expected a recording of version 1, found version 2"),
    "a version that is true": (first_changed(keystone_recording=True), "version 1, found version true"),
    "no recording": (lambda _: [b"{}\n"], "expected the first line of a recording"),
    "not an object": (lambda _: [b"[]\n"], ":1: expected an object, found a list"),
    "cut in the first line": (lambda lines: [lines[0][:50]], ":1: expected a line with its end"),
    "cut in mid-line": (lambda lines: [*lines[:-1], lines[-1][:-20]], ":4: expected a line with its end, .*: it is cut"),
    "cut between lines": (lambda lines: lines[:-1], ":3: expected 3 lines after the first one, found 2: the file was cut"),
    "a line too many": (lambda lines: [*lines, lines[-1]], "expected .*, found"),
    "another spec": (first_changed(spec="other"), ":1: expected a recording of the spec 'repair', found one of \"other\""),
    "no spec": (first_changed(spec=...), ":1: expected the field `spec`, found none"),
    "a spec that is a number": (first_changed(spec=7), ":1: expected a text under `spec`, found the number 7"),
    "an unknown field": (first_changed(extra=7), "fields of this version only, found `\"extra\"`"),
    "a date that is none": (first_changed(date="x" * 40), "expected a date and a time under `date`"),
    "a date without end": (first_changed(date="x" * 400), "expected at most 300 characters under `date`, found 400"),
    "a provider that is a number": (first_changed(providers={"a": 1}), "expected texts in `providers`"),
    "lines in another order": (lambda lines: [lines[0], *lines[:0:-1]], ":2: expected the first request of a conv"),
    "an edited answer": (second_changed(answer={}), ":1: expected lines with the SHA-256 that stands here"),
    "an edited prompt": (second_changed(request={"messages": []}), ":2: expected a request with the key .* it was edited"),
}  # fmt: skip
"""Whether the first line fits the others or not."""
FITTING = {
    "no UTF-8": (lambda lines: [*lines[:2], b'{"a": "\xff"}\n'], ":3: expected UTF-8, found the byte 0xff at column 8"),
    "no JSON": (lambda lines: [*lines[:2], b"{'a': 1}\n"], ":3: expected JSON, found Expecting property name"),
    "NaN": (lambda lines: [*lines[:2], b'{"seconds": NaN}\n'], ":3: expected JSON, found the number NaN"),
    "infinity": (lambda lines: [*lines[:2], b'{"seconds": 1e999}\n'], ":3: expected JSON, found the number 1e999"),
    "endless number": (lambda lines: [*lines[:2], b"[" + b"7" * 5000 + b"]\n"], ":3: expected JSON, found"),
    "a name twice": (lambda lines: [*lines[:2], b'{"a": 1, "a": 1}\n'], ":3: expected JSON, found a name twice"),
    "deep": (lambda lines: [*lines[:2], b'{"a":' + b"[" * 300 + b"]" * 300 + b"}\n"], ":3: expected at most 200 lists"),
    "very deep": (lambda lines: [*lines[:2], b"[" * 99999 + b"]" * 99999 + b"\n"], ":3: expected at most 200 lists"),
    "an empty line": (lambda lines: [*lines, b"\n"], ":5: expected JSON"),
    "no key": (second_changed(key=...), ":2: expected the field `key`, found none"),
    "turn below 0": (second_changed(turn=-1), ":2: expected a whole number under `turn`, found the number -1"),
    "turn that is true": (second_changed(turn=True), ":2: expected a whole number under `turn`, found true or false"),
    "tools that are 1": (second_changed(with_tools=1), ":2: expected true or false under `with_tools`, found the num"),
    "request that is null": (second_changed(request=None), ":2: expected an object under `request`, found null"),
    "answer that is a text": (second_changed(answer="x"), ":2: expected an object under `answer`, found a text"),
    "seconds below 0": (second_changed(seconds=-1.5), ":2: expected a number under `seconds`, found the number -1.5"),
    "odd status": (second_changed(status=101), ":2: expected a status of HTTP, 200 to 599, under `status`, found 101"),
    "odd usage": (second_changed(usage={"output": -1}), ":2: expected a number of at least 0 under `usage.output`"),
    "unknown usage": (second_changed(usage={"tokens": 1}), ":2: expected counts of tokens and `cost_usd`"),
    "an unknown field": (second_changed(extra=1), ":2: expected fields of this version only"),
    "an edited model": (second_changed(model="dear"), ":2: expected a request with the key .* it was edited"),
    "an edited API": (second_changed(api="openai"), ":2: expected a request with the key .* it was edited"),
    "an edited later prompt": (third_changed(request={"messages": ["x"]}), ":3: expected a request with the key"),
    "continues what is not there": (second_changed(continues={"messages": 0}), ":2: expected the first request"),
    "continues too much": (third_changed(continues={"messages": 2}), ":3: .*`continues` says 2 of 'messages', .* has 1"),
    "continues a text": (third_changed(continues={"system": 1}), ":3: .*`continues` says 1 of 'system', .* has 0"),
    "continues below 0": (third_changed(continues={"messages": -1}), ":3: expected counts in `continues`"),
    "without what is not there": (third_changed(without=["tools"]), ":3: .*`without` names 'tools'"),
    "a key in an answer": (
        second_changed(answer={"text": [f"use sk-ant-api03-{'Ab3_' * 20}AA"]}),
        ":2: expected no key of a provider, found what looks like a key of Anthropic",
    ),
    "a key as a name": (third_changed(answer={f"AIza{'x1_-Y' * 7}": 1}), ":3: .* a key of Google"),
}  # fmt: skip


@pytest.mark.parametrize("name", ANY_WAY)
def test_a_bad_file_is_refused(path: Path, name: str) -> None:
    change, message = ANY_WAY[name]
    path.write_bytes(b"".join(change(written(path))))
    with pytest.raises(RecordingError, match=message) as caught:
        read_recording(path, spec_id="repair")
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 3
    assert "record anew with --gateway record" in caught.value.sentences


@pytest.mark.parametrize("name", FITTING)
def test_a_bad_line_is_refused_though_the_first_line_fits(path: Path, name: str) -> None:
    change, message = FITTING[name]
    put(path, change(written(path)))
    with pytest.raises(RecordingError, match=message):
        read_recording(path, spec_id="repair")


@given(data=st.data())
@settings(
    max_examples=2 * settings().max_examples, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_is_changed_is_told(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "c.jsonl"
    whole = b"".join(written(path))
    at = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "put", "take"]))
    byte = data.draw(st.binary(min_size=1, max_size=1))
    other = {"cut": whole[:at], "put": whole[:at] + byte + whole[at:], "take": whole[:at] + whole[at + 1 :]}[kind]
    path.write_bytes(other)
    # Texts of the first line have no digest: product, cell and date are for people.
    try:
        found = read_recording(path, spec_id="repair")
    except RecordingError:
        return
    assert found.entries == recording().entries


def test_what_is_not_there_is_no_recording(path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_recording(path)
    with pytest.raises(FileNotFoundError):
        read_recording(path, below=path.parents[2])


def test_a_large_file_is_refused_unread(path: Path) -> None:
    written(path)
    os.truncate(path, 100_000_000)
    with pytest.raises(RecordingError, match="expected at most 67,108,864 bytes, found 100,000,000"):
        read_recording(path)


@pytest.mark.slow
def test_few_bytes_are_not_made_into_many(path: Path) -> None:
    """Each line may continue the whole conversation before it."""
    lines = written(path, entry(0, request={"messages": [{}] * 200_000}))
    second = changed(lines[1], continues={"messages": 200_000}, request={"messages": []})
    put(path, [*lines, *[second] * 1_000])
    with pytest.raises(RecordingError, match="2,000,000 messages in all, found more"):
        read_recording(path)
    put(path, [*lines, *[second] * 20_000])
    with pytest.raises(RecordingError, match="at most 20,000 requests"):
        read_recording(path)
