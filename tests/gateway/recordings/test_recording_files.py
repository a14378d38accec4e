"""Recordings are read as they were written: whole or not at all, through no link, and without secrets."""

from __future__ import annotations

import base64
import html
import json
import os
import stat
import subprocess
import sys
import tempfile
import threading
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest
from support import recording_files
from support.recording_files import MESSAGES, entry, recording, written

from keystone_action.evidence.masking import Masker
from keystone_action.gateway.recordings import files as writing
from keystone_action.gateway.recordings.files import read_recording, write_recording
from keystone_action.gateway.recordings.names import Names
from keystone_action.gateway.recordings.recording import (
    DEPTH_LIMIT,
    SIZE_LIMIT,
    Recording,
    RecordingError,
    recording_path,
)
from keystone_action.gateway.recordings.request_key import key_of_request


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
    assert found.key == key_of_request("anthropic", "m", found.request, ["Repair.*"])
    assert found.key != found.whole_key


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
sys.path.append({str(Path(recording_files.__file__).parents[1])!r})
from support.recording_files import entry, recording
from keystone_action.errors import HarnessError
from keystone_action.gateway.recordings.recording import DEPTH_LIMIT
from keystone_action.gateway.recordings.files import write_recording
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


def test_a_folder_that_is_closed_to_us_is_found_before_anything_is_recorded() -> None:
    """As another user, where we are root: root may write anywhere."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        target = folder / "recordings" / "repair" / "repair.r0.jsonl"
        writing.require_place(target, folder)
        assert not target.parent.exists()
        ours = os.geteuid()
        folder.chmod(0o555)
        if ours == 0:
            os.seteuid(65534)
        try:
            with pytest.raises(RecordingError, match="is read-only for this user"):
                writing.require_place(target, folder)
        finally:
            os.seteuid(ours)
            folder.chmod(0o755)


@pytest.mark.parametrize("depth", range(190, DEPTH_LIMIT))
def test_what_is_kept_can_be_read_however_deep_it_is(path: Path, depth: int) -> None:
    answer: object = "x"
    for _ in range(depth):
        answer = [answer]
    kept = entry(0, answer={"content": answer})
    refused = ""
    try:
        write_recording(path, recording(kept), None)
    except RecordingError as error:
        refused = str(error)
    if depth < DEPTH_LIMIT - 5:
        assert refused == ""
    assert bool(refused) != path.exists()
    assert "lists and objects in one another" in refused or read_recording(path).entries[0].answer == kept.answer
