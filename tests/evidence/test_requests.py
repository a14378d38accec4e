"""The journal of recorded requests and the audit log: what goes in comes out, line by line."""

import errno
import json
import os
import resource
import signal
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keystone_action.errors import OutputError
from keystone_action.evidence.audit import AuditLog, LineFile, now
from keystone_action.evidence.egress import EgressLog, EgressRecord
from keystone_action.evidence.model import RecordedRequest
from keystone_action.evidence.requests import JournalLog, JournalRequests, RequestJournal

TEXT = st.text(max_size=30)
MAPPING = st.dictionaries(TEXT, TEXT | st.lists(TEXT, min_size=2, max_size=3), max_size=4)
REQUESTS = st.builds(
    RecordedRequest,
    service=TEXT,
    method=TEXT,
    path=TEXT,
    url=TEXT,
    query=MAPPING,
    headers=MAPPING,
    body=st.text(st.characters(), max_size=100),  # lone surrogates, line separators and all
    body_bytes=st.integers(0, 2**40),
    cut=st.integers(0, 2**40),
    status=st.integers(0, 599),
    response_body=TEXT,
    ts=TEXT,
)


def request(path: str = "/a", body: str = "") -> RecordedRequest:
    return RecordedRequest("api", "GET", path, f"http://h{path}", {}, {}, body, len(body), 0, 200, "{}", now())


def journal_of(path: Path, *requests: RecordedRequest) -> Path:
    path.unlink(missing_ok=True)
    journal = RequestJournal(path)
    for one in requests:
        journal.append(one)
    journal.close()
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("journal") / "api.requests.jsonl"


@given(requests=st.lists(REQUESTS, max_size=5))
def test_what_is_written_is_read(path, requests):
    found = JournalRequests(journal_of(path, *requests))
    assert list(found) == requests
    assert [found[index] for index in range(len(found))] == requests
    assert found[1:] == requests[1:]


@given(one=REQUESTS)
def test_every_line_is_one_line_to_every_reader(path, one):
    text = journal_of(path, one).read_bytes().decode("ascii")
    assert len(text.splitlines()) == 1


def test_indices_are_those_of_a_sequence(path):
    found = JournalRequests(journal_of(path, request("/1"), request("/2")))
    assert found[-1].path == "/2"
    with pytest.raises(IndexError):
        found[2]


def test_a_journal_that_grows_is_seen_as_it_was(path):
    journal_of(path, request("/1"))
    found = JournalRequests(path)
    journal = RequestJournal(path)
    journal.append(request("/2"))
    journal.close()
    assert [one.path for one in found] == ["/1"]
    assert [one.path for one in JournalRequests(path)] == ["/1", "/2"]


def test_an_unfinished_line_was_never_answered(path):
    journal_of(path, request("/1"))
    path.write_bytes(path.read_bytes() + b'{"service": "api", "meth')
    assert [one.path for one in JournalRequests(path)] == ["/1"]


def test_no_journal_is_no_request(tmp_path):
    assert list(JournalRequests(tmp_path / "none")) == []


def test_an_unreadable_journal_is_an_error_of_ours(tmp_path):
    with pytest.raises(OutputError, match="can't be read"):
        JournalRequests(tmp_path)
    (tmp_path / "journal").write_text("nonsense\n")
    with pytest.raises(OutputError, match="can't be read"):
        list(JournalRequests(tmp_path / "journal"))
    with pytest.raises(OutputError, match="can't be read"):
        JournalRequests(tmp_path / "journal")[0]


def test_a_log_asks_first_whether_the_record_is_complete(path):
    asked = []
    log = JournalLog(journal_of(path, request()), lambda: asked.append(1))
    assert (len(log.requests()), asked) == (1, [1])
    assert len(JournalLog(path).requests()) == 1


@given(one=REQUESTS)
def test_a_call_in_the_audit_log(path, one):
    path.unlink(missing_ok=True)
    log = AuditLog(path)
    log.http_call(one)
    log.close()
    log.close()
    (event,) = [json.loads(line) for line in path.read_text().splitlines()]
    assert (event["ts"], event["type"]) == (one.ts, "http_call")
    assert event["details"] == {
        "service": one.service,
        "method": one.method,
        "url": one.url,
        "request_body": one.body,
        "status": one.status,
        "response_body": one.response_body,
        **({"request_body_cut": one.cut} if one.cut else {}),
    }


def test_a_writer_appends_to_what_is_there(tmp_path):
    path = tmp_path / "new" / "audit.jsonl"
    size = 0
    for number in range(2):
        lines = LineFile(path)
        size += sum(lines.append({"writer": number, "line": line}) for line in range(3))
        lines.close()
    assert path.read_text().count("\n") == 6
    assert path.stat().st_size == size
    assert path.stat().st_mode & 0o077 == 0


def test_a_line_for_which_there_is_no_room_takes_no_other_with_it(tmp_path, monkeypatch):
    """A mock and the egress proxy serve in threads of their own; the disk is full for the one, not for the other."""
    audit = AuditLog(tmp_path / "audit.jsonl")
    egress = EgressLog(audit)
    half_is_there, other_is_done, write = threading.Event(), threading.Event(), os.write

    def full_disk(descriptor: int, data: bytes) -> int:
        if half_is_there.is_set() and data.startswith(b"LARGE"):
            raise OSError(errno.ENOSPC, "No space left on device")
        if b"LARGE" not in data:
            return write(descriptor, data)
        written = write(descriptor, data[: data.index(b"LARGE")])
        half_is_there.set()
        other_is_done.wait(0.5)  # as long as the other may write in between, if it may
        return written

    def decide() -> None:
        half_is_there.wait()
        egress.write(EgressRecord("a.example", 443, "CONNECT", "deny", "because"))
        other_is_done.set()

    monkeypatch.setattr("os.write", full_disk)
    other = threading.Thread(target=decide)
    other.start()
    with pytest.raises(OSError, match="No space left"):
        audit.write("http_call", {"body": "LARGE"}, ts=now())
    other.join()
    [event] = [json.loads(line) for line in audit.path.read_text().splitlines()]
    assert event["details"]["host"] == "a.example"


def test_half_a_line_is_taken_back_when_there_is_no_room(tmp_path):

    lines = LineFile(tmp_path / "log")
    lines.append({"a": 1})
    size = lines.path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)

    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size + 10, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            lines.append({"b": "x" * 100})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    lines.append({"c": 3})
    assert [json.loads(line) for line in lines.path.read_text().splitlines()] == [{"a": 1}, {"c": 3}]
    lines.close()
