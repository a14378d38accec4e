"""A fork of the server that tests start the command by is what an interpreter of its own would be."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, keystone, spec, started
from support.fork_server import ForkServer

PROBE = """
import atexit, gc, json, os, resource, signal, sys, threading, time

def main():
    words = sys.argv[1:]
    if words[:1] == ["wait"]:
        with open(words[1] + ".pid", "w") as file:
            file.write(str(os.getpid()))
        while not os.path.exists(words[1]):
            time.sleep(0.05)
    streams = [sys.stdin, sys.stdout, sys.stderr]
    print(json.dumps({
        "words": words,
        "file": sys.argv[0],
        "directory": os.getcwd(),
        "path": sys.path,
        "environ": dict(os.environ),
        "descriptors": os.listdir("/proc/self/fd"),
        "read": sys.stdin.read(),
        "streams": [[one.encoding, one.errors, one.line_buffering, one.isatty(), one.fileno()] for one in streams],
        "seekable": [one.seekable() for one in streams[1:]],
        "handlers": {one.name: repr(signal.getsignal(one)).split(" at ")[0] for one in signal.Signals},
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
        "limits": [resource.getrlimit(one) for one in (resource.RLIMIT_NOFILE, resource.RLIMIT_NPROC)],
        "umask": os.umask(0o22),
        "collects": gc.isenabled(),
        "threads": threading.active_count(),
        "group": [os.getpgid(0), os.getsid(0)],
    }, sort_keys=True))
    sys.stderr.write("not flushed, and no line")
    atexit.register(print, "at exit")
    if words[:1] == ["signal"]:
        os.kill(os.getpid(), 9)
    if words[:1] == ["raise"]:
        raise SystemExit("a word for stderr")
    return len(words)

if __name__ == "__main__":
    sys.exit(main())
"""
OWN = {"OWN": "ü" * 50_000 + "\udcff", "LINES_OF": "a\nb", "EMPTY": ""}


@pytest.fixture
def probe(tmp_path: Path) -> dict[str, str]:
    """The environment in which the module `probe` is found."""
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules" / "probe.py").write_text(PROBE)
    (tmp_path / "directory").mkdir()
    return {**ENVIRONMENT, "PYTHONPATH": str(tmp_path / "modules"), "PYTHONDONTWRITEBYTECODE": "1"}


def open_files() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def until_nothing_runs(server: ForkServer) -> None:
    """Waits for the server's forks, each of which ends after its command."""

    def runs(stat: Path) -> bool:
        with contextlib.suppress(OSError):
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
            return int(parent) == server._process.pid and state != "Z"
        return False

    deadline = time.monotonic() + 60
    while any(runs(stat) for stat in Path("/proc").glob("[0-9]*/stat")):
        assert time.monotonic() < deadline, "a command that took too long runs on"
        time.sleep(0.05)


@pytest.mark.parametrize("words", [[], ["a b", "ü", ""], ["signal"], ["raise"]], ids=" ".join)
def test_a_fork_is_as_a_process_of_its_own(tmp_path: Path, probe: dict[str, str], words: list[str]) -> None:
    environ, directory = {**probe, **OWN}, tmp_path / "directory"
    own = subprocess.run(
        [sys.executable, "-m", "probe", *words],
        cwd=directory,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    fork = ForkServer(probe, "probe", []).run(words, directory, environ, 60)
    assert (fork.returncode, fork.stderr) == (own.returncode, own.stderr)
    assert fork.stdout.decode().splitlines() == own.stdout.decode().splitlines()
    told = json.loads((fork.stdout or own.stdout or b"{}").splitlines()[0]) if words != ["signal"] else {}
    assert words == ["signal"] or told["environ"].items() >= OWN.items()


def test_forks_run_side_by_side_and_one_that_takes_too_long_is_killed(tmp_path: Path, probe: dict[str, str]) -> None:
    server, sign = ForkServer(probe, "probe", []), tmp_path / "sign"
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(server.run, ["wait", str(sign)], tmp_path, probe, 60)
        done = [pool.submit(server.run, ["a"] * number, tmp_path, probe, 60) for number in range(3)]
        assert [one.result().returncode for one in done] == [0, 1, 2]
        sign.touch()
        assert waiting.result().returncode == 2
    files = open_files()
    never = tmp_path / "never"
    for seconds in (0, 2):  # before it is known which process it is, and after it has started
        with pytest.raises(subprocess.TimeoutExpired):
            server.run(["wait", str(never)], tmp_path, probe, seconds)
        until_nothing_runs(server)
    assert not Path("/proc", never.with_suffix(".pid").read_text()).exists()
    assert open_files() <= files
    assert server.run(["x"], tmp_path, probe, 60).returncode == 1


@pytest.mark.parametrize(
    "words", [["--version"], ["run", "nowhere"], ["runn"], ["validate", "keystone.yaml"], ["schema"]]
)
def test_the_command_says_the_same(tmp_path: Path, words: list[str]) -> None:
    (tmp_path / "keystone.yaml").write_text(spec())
    own, fork = started(words, tmp_path, ENVIRONMENT), keystone(*words, directory=tmp_path)
    assert (fork.code, fork.out, fork.err) == (own.returncode, own.stdout.decode(), own.stderr.decode())
