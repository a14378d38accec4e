from __future__ import annotations

import base64
import hashlib
import html
import json
import os
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings import writing
from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.reading import read_recording
from keystone_action.gateway.recordings.recording import SIZE_LIMIT, Entry, Recording, RecordingError, recording_path
from keystone_action.gateway.recordings.request_key import key_of
from keystone_action.gateway.recordings.writing import write_recording

MESSAGES = [
    {"role": "user", "content": "Repair it — ☃ \ud800 \u2028"},
    {"role": "assistant", "content": [{"type": "tool_use", "id": "{id:1}", "name": "bash", "input": {"c": "ls"}}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "{id:1}", "content": "a.py\r\nb.py"}]},
    {"role": "assistant", "content": "Done."},
    {"role": "user", "content": "Thanks."},
]


def entry(turn: int, **changes: Any) -> Entry:
    request: dict[str, Any] = {"model": "m", "system": "You repair.", "messages": MESSAGES[: 2 * turn + 1]}
    normal = {**request, **changes.pop("request", {})}
    key = key_of("anthropic", "m", normal)
    answer = {"id": f"{{id:{turn + 1}:msg_}}", "content": [{"type": "text", "text": "{workspace}/a.py"}]}
    found = Entry(
        api="anthropic",
        model="m",
        key=key,
        whole_key=key,
        conversation=0,
        turn=turn,
        with_tools=True,
        request=normal,
        answer=answer,
        usage={"uncached": 5, "output": 7, "cost_usd": 0.01},
        seconds=1.25,
    )
    return replace(found, **changes)


def recording(*entries: Entry) -> Recording:
    return Recording(
        entries or (entry(0), entry(1), entry(2)),
        spec="repair",
        cell="repair.r0",
        product="1.0",
        date="2026-11-23T14:05:00Z",
        providers={"anthropic": "anthropic"},
    )


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return recording_path(tmp_path / "recordings" / "repair", "repair.r0")


def test_a_recording_is_read_as_it_was_written(path: Path) -> None:
    others = (
        entry(0, conversation=1, with_tools=False),
        entry(1, request={"tools": [{"name": "bash"}]}),
        entry(2, request={"system": "changed"}),
        entry(1, conversation=1, with_tools=False, status=404),
        entry(0),
    )
    write_recording(path, recording(entry(0), *others), Masker(["hunter22"]))
    assert read_recording(path, spec_id="repair") == recording(entry(0), *others)


def test_a_cell_that_asked_nothing_has_a_recording(path: Path) -> None:
    nothing = replace(recording(), entries=())
    write_recording(path, nothing, None)
    assert read_recording(path) == nothing


def test_a_conversation_is_written_once(path: Path) -> None:
    write_recording(path, recording(), None)
    first, *lines = [json.loads(line) for line in path.read_text("utf-8").split("\n")[:-1]]
    assert first["spec"] == "repair"
    assert [line.get("continues") for line in lines] == [None, {"messages": 1}, {"messages": 3}]
    assert [line["request"] for line in lines[1:]] == [{"messages": MESSAGES[1:3]}, {"messages": MESSAGES[3:5]}]


def test_keys_are_made_with_the_patterns_of_the_reader(path: Path) -> None:
    write_recording(path, recording(entry(0)), None)
    (found,) = read_recording(path, ignore=["Repair.*"]).entries
    assert found.whole_key == entry(0).key
    assert found.key == key_of("anthropic", "m", found.request, ["Repair.*"])
    assert found.key != found.whole_key


def written(path: Path, *entries: Entry) -> list[bytes]:
    """The lines of a recording that was written there."""
    write_recording(path, recording(*entries), None)
    return path.read_bytes().splitlines(keepends=True)


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
@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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


@pytest.mark.parametrize("kind", ["file", "folder", "folder above", "dangling"])
def test_nothing_is_read_or_written_through_a_link(tmp_path: Path, kind: str) -> None:
    elsewhere, spec = tmp_path / "elsewhere", tmp_path / "spec"
    path = recording_path(spec / "recordings" / "repair", "repair.r0")
    before = written(recording_path(elsewhere / "repair", "repair.r0"))
    spec.mkdir()
    if kind == "folder above":
        (spec / "recordings").symlink_to(elsewhere)
    else:
        (spec / "recordings").mkdir()
        if kind == "folder":
            path.parent.symlink_to(elsewhere / "repair")
        else:
            path.parent.mkdir()
            path.symlink_to(elsewhere / "repair" / ("none" if kind == "dangling" else path.name))
    with pytest.raises(RecordingError, match="found a link"):
        read_recording(path, below=spec)
    with pytest.raises(RecordingError, match="found a link"):
        write_recording(path, recording(entry(0)), None, below=spec)
    assert sorted(one.name for one in (elsewhere / "repair").iterdir()) == ["repair.r0.jsonl"]
    assert (elsewhere / "repair" / "repair.r0.jsonl").read_bytes() == b"".join(before)


def test_the_folder_itself_is_no_link_where_nobody_says_below_what(tmp_path: Path) -> None:
    written(tmp_path / "real" / "c.jsonl")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(RecordingError, match="found a link"):
        read_recording(tmp_path / "link" / "c.jsonl")
    with pytest.raises(RecordingError, match="found a link"):
        write_recording(tmp_path / "link" / "c.jsonl", recording(), None)
    (tmp_path / "home").symlink_to(tmp_path)
    assert read_recording(tmp_path / "home" / "real" / "c.jsonl") == recording()  # the way to a checkout may be one


@pytest.mark.parametrize("kind", ["folder", "FIFO"])
def test_only_regular_files_are_read_and_replaced(path: Path, kind: str) -> None:
    path.parent.mkdir(parents=True)
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    with pytest.raises(RecordingError, match="expected a regular file"):
        read_recording(path)
    with pytest.raises(RecordingError, match="expected a regular file"):
        write_recording(path, recording(), None)
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_what_was_there_is_replaced(path: Path) -> None:
    written(path)
    path.chmod(0o600)
    write_recording(path, recording(entry(0)), None, below=path.parents[2])
    assert len(read_recording(path).entries) == 1
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_and_folders_belong_to_the_owner_of_the_checkout(tmp_path: Path) -> None:
    os.chown(tmp_path, 4711, 4712)
    for path in (tmp_path / "a" / "b" / "c.jsonl", tmp_path / "x" / "y" / "c.jsonl"):
        write_recording(path, recording(), None, below=tmp_path if "a" in path.parts else None)
        for one in (path, path.parent, path.parent.parent):
            assert (one.stat().st_uid, one.stat().st_gid) == (4711, 4712)


def test_two_cells_that_write_one_file_never_mix(path: Path) -> None:
    both = [recording(entry(0)), recording(*(entry(turn, answer={"text": "x" * 100_000}) for turn in range(3)))]
    failed: list[Exception] = []

    def write(one: Recording) -> None:
        try:
            for _ in range(20):
                write_recording(path, one, None)
                assert read_recording(path) in both
        except Exception as error:  # noqa: BLE001 - the thread's; the test shows it
            failed.append(error)

    threads = [threading.Thread(target=write, args=(one,)) for one in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_on_a_full_disk_the_old_file_stays(path: Path) -> None:
    """The limit of a process on the size of its files stands for the disk: what is written after it fails."""
    before = b"".join(written(path))
    code = f"""
import resource, signal, sys
from pathlib import Path
sys.path.append({str(Path(__file__).parent)!r})
from {Path(__file__).stem} import entry, recording
from keystone_action.errors import HarnessError
from keystone_action.gateway.recordings.writing import write_recording
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    write_recording(Path({str(path)!r}), recording(entry(0, answer={{"text": "x" * 100_000}})), None)
except HarnessError as error:
    print(error.message)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    assert run.stdout == f"{path} can't be written, and what was there before is unchanged: File too large\n"
    assert path.read_bytes() == before
    assert [one.name for one in path.parent.iterdir()] == [path.name]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_on_a_small_disk_that_is_full_the_old_file_stays(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", disk], check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        path = disk / "c.jsonl"
        before = b"".join(written(path))
        with pytest.raises(RecordingError, match="unchanged: No space left on device"):
            write_recording(path, recording(entry(0, answer={"text": "x" * 100_000})), None)
        assert path.read_bytes() == before
        assert [one.name for one in disk.iterdir()] == [path.name]
    finally:
        subprocess.run(["umount", disk], check=True)


SECRET = 'p@ss/word "7"'
SHAPES = {
    "as it is": SECRET,
    "in JSON": json.dumps({"a": SECRET}),
    "in JSON in JSON": json.dumps(json.dumps(SECRET)),
    "in a URL": quote(SECRET, safe=""),
    "in base64": base64.b64encode(f"user:{SECRET}".encode()).decode(),
    "in HTML": html.escape(SECRET),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("place", ["answer", "request", "a name"])
def test_a_secret_is_never_written(path: Path, shape: str, place: str) -> None:
    before = b"".join(written(path))
    text = f"it is {SHAPES[shape]}!"
    bad, where = {
        "answer": (entry(0, answer={"content": [{"text": text}]}), r"answer\.content\[0\]\.text"),
        "request": (entry(0, request={"messages": [{"content": text}]}), r"request\.messages\[0\]\.content"),
        "a name": (entry(0, answer={"args": {text: 1}}), r"a name in answer\.args"),
    }[place]
    with pytest.raises(
        RecordingError, match=rf"^request 2, {where}: expected no secrets, found the value of"
    ) as caught:
        write_recording(path, recording(entry(0), bad), Masker({"TOKEN": SECRET}))
    assert SECRET not in caught.value.sentences
    assert SHAPES[shape] not in caught.value.sentences
    assert path.read_bytes() == before


def test_a_secret_by_its_name_is_written(path: Path) -> None:
    names = Names({"secret.TOKEN": SECRET})
    answer = {shape: names.named(f"it is {text}!") for shape, text in SHAPES.items() if "base64" not in shape}
    del answer["in HTML"], answer["in JSON in JSON"]
    write_recording(path, recording(entry(0, answer=answer)), Masker({"TOKEN": SECRET}))
    assert path.read_text().count("{secret.TOKEN") == 3


@pytest.mark.parametrize(
    "key",
    [
        f"sk-ant-api03-{'Ab3_' * 20}AA",
        f"sk-proj-{'Ab3-' * 12}",
        f"sk-{'Ab3xY' * 4}T3BlbkFJ{'Ab3xY' * 4}",
        f"AIza{'x1_-Y' * 7}",
        f"org-{'Ab3xYz' * 4}",
    ],
)
def test_a_key_that_nobody_told_us_is_not_written(path: Path, key: str) -> None:
    with pytest.raises(RecordingError, match=r"request 1, answer\.text: expected no secrets") as caught:
        write_recording(path, recording(entry(0, answer={"text": f"({key})"})), None)
    assert key not in caught.value.sentences
    assert not path.exists()


def test_who_asked_is_not_written(path: Path) -> None:
    answer = {"id": "x", "metadata": {"account": "a-1"}, "user": "u-1", "organization": "o-1", "safety_identifier": "s"}
    write_recording(path, recording(entry(0, answer=answer)), None)
    (found,) = read_recording(path).entries
    assert found.answer == {"id": "x", "metadata": {}, "user": None, "organization": None, "safety_identifier": None}


def test_what_could_not_be_read_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert writing.SIZE_LIMIT == SIZE_LIMIT == 67_108_864
    monkeypatch.setattr(writing, "SIZE_LIMIT", 100_000)
    big = entry(0, answer={"text": "x" * 50_000})
    with pytest.raises(RecordingError, match=r"request 2 of repair\.r0: a recording may have 100,000 bytes"):
        write_recording(path, recording(big, replace(big, turn=1)), None)
    with pytest.raises(RecordingError, match=r"request 1 of repair\.r0 is not JSON"):
        write_recording(path, recording(entry(0, answer={"x": float("nan")})), None)
    assert not path.exists()
