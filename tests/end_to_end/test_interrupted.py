"""Runs that are cut short: what is finished is kept, nothing is left running, and `--resume` goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, keystone

# The third replica waits for a file that only the test makes; it says by another file that it has come so far.
SPEC = """\
version: 1
id: slow
task: {{prompt: "do it"}}
agent:
  type: command
  command: |
    case "$NUMBER" in
      2) if [ "{mark}" = wait ]; then setsid sh -c 'sleep 1234567' & sleep 1234567; fi;;
    esac
    echo "$NUMBER" > done.txt
  env: {{NUMBER: "{{{{ cell.replica }}}}"}}
parallelism: {{replicas: 4, max_concurrency: 1}}
invariants:
  it: {{check: {{type: file_exists, path: done.txt}}}}
"""


def start(directory: Path, temporary: Path) -> subprocess.Popen[bytes]:
    (directory / "keystone.yaml").write_text(SPEC.format(mark="wait"))
    return subprocess.Popen(
        [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--output", "out"],
        cwd=directory,
        env={**ENVIRONMENT, "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def sleepers() -> set[str]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_bytes() == b"sleep\x001234567\x00":
                found.add(path.parent.name)
        except OSError:
            continue
    return found


def until(condition, what: str) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"{what} did not happen"
        time.sleep(0.05)


@pytest.fixture
def temporary():
    """A directory for temporary files that users of sandboxes can pass through, as /tmp is."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o711)
        yield Path(name)


@pytest.fixture
def running(tmp_path, temporary):
    before = sleepers()
    process = start(tmp_path, temporary)
    try:
        until(lambda: len(sleepers() - before) >= 2 or process.poll() is not None, "the third cell")
        assert process.poll() is None, process.stderr.read()
        yield process, before
    finally:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_keeps_what_is_finished(running, tmp_path, temporary, number):
    process, before = running
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, (out, err)
    assert b"Traceback" not in err
    assert sleepers() <= before
    document = json.loads((tmp_path / "out" / "results.json").read_text())
    cells = document["specs"][0]["cells"]
    assert [cell["verdict"] for cell in cells] == ["pass", "pass"]
    assert document["verdict"] == "error"
    assert "cancelled" in (tmp_path / "out" / "summary.md").read_text().lower()
    assert list(temporary.iterdir()) == []


def test_resume_runs_what_is_missing_and_nothing_twice(running, tmp_path):
    process, _ = running
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    path = tmp_path / "keystone.yaml"
    path.write_text(SPEC.format(mark="go"))
    changed = keystone("run", "keystone.yaml", "--resume", "out", directory=tmp_path)
    assert changed.code == 2
    assert "has changed" in changed.err
    path.write_text(SPEC.format(mark="wait"))
    rest = keystone("run", "keystone.yaml", "--resume", "out", "--filter", "slow.r[013]", directory=tmp_path)
    assert rest.code == 0, rest.err
    lines = [json.loads(line) for line in (tmp_path / "out" / "journal.jsonl").read_text().splitlines()]
    assert sorted(line["id"] for line in lines if "id" in line) == ["slow.r0", "slow.r1", "slow.r3"]
    assert [cell["id"] for cell in rest.cells] == ["slow.r0", "slow.r1", "slow.r3"]


def test_sigkill_leaves_no_process_and_a_readable_journal(running, tmp_path):
    process, before = running
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=60)
    until(lambda: sleepers() <= before, "the end of the agent's processes")
    first, *lines = (tmp_path / "out" / "journal.jsonl").read_text().splitlines()
    assert "identity" in json.loads(first)
    assert [json.loads(line)["id"] for line in lines] == ["slow.r0", "slow.r1"]


def test_timeout_starts_no_further_cell(tmp_path):
    text = SPEC.format(mark="go").replace("command: |", "command: |\n    sleep 0.4")
    (tmp_path / "keystone.yaml").write_text(text)
    called = keystone("run", "keystone.yaml", "--output", "out", "--timeout", "200ms", directory=tmp_path)
    assert called.code == 3
    verdicts = [cell["verdict"] for cell in called.cells]
    assert len(verdicts) == 4
    assert verdicts[-1] == "error"
    assert "not run" in called.cells[-1]["error"]
