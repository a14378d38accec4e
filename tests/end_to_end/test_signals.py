"""SIGINT and SIGTERM at any moment of the program: it ends with 130 and a word, and loses nothing that was finished.

The command is started by a driver, which makes one place of it wait or hang (see support/driver.py).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, ROOT, keystone, spec
from support.docker_engine import Engine
from support.driver import write_driver
from support.images import PYTHON
from support.process_world import eventually, runs

from keystone_action.engine.sweep import find_leftovers
from keystone_action.system import signals

TWO = "parallelism: {replicas: 2, max_concurrency: 1}"
WATCHED = "{file_changes: true}"
"""So that what the agent left is looked at in a thread, as it is wherever that may take a while."""
SOON = "within('system.signals', RUN_SECONDS=1.0)\n"
FIRST = "only=lambda before, after: not os.path.exists('compare_entries.reached')"
INT, TERM = signal.SIGINT, signal.SIGTERM
"""One handler takes both: each place meets one of them, each of them several places."""


class Driven:
    """A call that comes to a place and stays there."""

    def __init__(self, directory: Path, place: str, text: str, *words: str) -> None:
        write_driver(directory, place)
        (directory / "keystone.yaml").write_text(text)
        self.directory = directory
        self.process = subprocess.Popen(
            [sys.executable, "driver.py", *(words or ("run", "keystone.yaml", "--output", "out"))],
            cwd=directory,
            env={**ENVIRONMENT, "PYTHONUNBUFFERED": "1"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def until(self, name: str) -> None:
        deadline = time.monotonic() + 60
        while not (self.directory / f"{name}.reached").exists():
            assert self.process.poll() is None, self.process.stderr.read()
            assert time.monotonic() < deadline, f"{name} was not reached"
            time.sleep(0.02)

    def go_on(self, name: str) -> None:
        (self.directory / f"{name}.go").touch()

    def end(self) -> tuple[int, str]:
        """Its exit code and stderr. What is under way hangs for ever, or for a day: an end within a minute is one that
        the program made."""
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err

    @property
    def document(self) -> dict[str, Any]:
        return json.loads((self.directory / "out" / "results.json").read_text("utf-8"))

    @property
    def verdicts(self) -> list[str]:
        return [cell["verdict"] for one in self.document["specs"] for cell in one["cells"]]


@pytest.fixture
def driven(tmp_path: Path) -> Iterator[Any]:
    made: list[Driven] = []

    def start(place: str, text: str = "", *words: str) -> Driven:
        made.append(Driven(tmp_path, place, text or spec(), *words))
        return made[-1]

    yield start
    for one in made:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def test_each_limit_leaves_time_for_the_one_before_it() -> None:
    """Tests below shorten single ones, which says nothing of their order."""
    assert 0 < signals.RUN_SECONDS < signals._EXIT_SECONDS < signals._KILL_SECONDS < signals.END_SECONDS
    assert signals.END_SECONDS <= 7.0, "a runner gives 7.5 s"


@pytest.mark.parametrize(
    ("module", "number"), [("cli.main", INT), ("cli.main", TERM), ("cli.arguments", INT), ("runner.run", TERM)]
)
def test_before_anything_has_begun_it_ends_with_a_word(driven: Any, module: str, number: int) -> None:
    run = driven(f"at_import({module!r}, wait)")
    run.until("import")
    run.process.send_signal(number)
    assert run.end() == (130, "keystone: cancelled\n")
    assert not (run.directory / "out").exists()


@pytest.mark.parametrize(("place", "number"), [("html_pieces", INT), ("results_pieces", TERM)])
def test_while_reports_are_written_none_is_lost(driven: Any, place: str, number: int) -> None:
    run = driven(f"at('report.write', {place!r}, wait)")
    run.until(place)
    run.process.send_signal(number)
    run.process.send_signal(number)
    time.sleep(0.2)  # not for the outcome: a signal that ends the process has ended it by then
    run.go_on(place)
    code, err = run.end()
    assert code == 130, err
    assert "the work was done: all of it is kept" in err
    assert (run.document["verdict"], run.verdicts) == ("pass", ["pass"])
    assert {path.name for path in (run.directory / "out").iterdir()} >= {"summary.md", "report.html", "junit.xml"}


def test_a_second_signal_loses_no_result_of_the_first(driven: Any) -> None:
    second_hangs = "{type: command, command: 'if [ $NUMBER = 1 ]; then sleep 86400; fi', env: %s}"
    number_of_it = "{NUMBER: '{{ cell.replica }}'}"
    run = driven("at('report.write', 'results_pieces', wait)", spec(agent=second_hangs % number_of_it) + TWO)
    deadline = time.monotonic() + 60
    journal = run.directory / "out" / "journal.jsonl"
    while not (journal.exists() and journal.read_text().count("\n")):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    run.process.send_signal(INT)
    run.until("results_pieces")
    run.process.send_signal(INT)
    time.sleep(0.2)
    run.go_on("results_pieces")
    code, err = run.end()
    assert code == 130, err
    assert run.verdicts == ["pass"]
    assert "Cancelled" in err


def test_a_thread_that_hangs_keeps_neither_the_process_nor_the_results(driven: Any) -> None:
    second = "only=lambda *_: not once.append(1) and len(once) > 1"
    run = driven(
        f"{SOON}once = []\nat('runner.cell.seal', 'compare_entries', hang, {second})", spec(audit=WATCHED) + TWO
    )
    run.until("compare_entries")
    run.process.send_signal(INT)
    code, err = run.end()
    assert code == 130, err
    assert run.verdicts == ["pass"]
    assert "1 of 2 cells were finished" in json.dumps(run.document)


def test_a_loop_that_hangs_keeps_neither_the_process_nor_the_results(driven: Any) -> None:
    second = "only=lambda *_: not once.append(1) and len(once) > 1"
    run = driven(f"{SOON}once = []\nat('runner.scheduler', '_attempts', hang, {second})", spec() + TWO)
    run.until("_attempts")
    run.process.send_signal(signal.SIGTERM)
    code, err = run.end()
    assert code == 130, err
    assert run.verdicts == ["pass"]


@pytest.mark.docker
def test_a_run_that_hangs_says_how_to_remove_what_it_left_on_the_engine(
    driven: Any, image: Callable[[str], str], engine: Engine
) -> None:
    text = spec() + f"base: {image(PYTHON)}\nservices: [{{name: db, image: {PYTHON}, command: sleep 900}}]\n"
    run = driven(f"{SOON}at('runner.cell.seal', 'compare_entries', hang)", text)
    run.until("compare_entries")
    run.process.send_signal(signal.SIGTERM)
    code, err = run.end()
    run_id = run.document["run_id"]
    assert find_leftovers(engine, run_id), "else there is nothing to say"
    said = f"`keystone clean --run {run_id}` removes what it may have left on the Docker engine"
    assert (code, said in err, said in json.dumps(run.document["notices"])) == (130, True, True), err
    cleaned = keystone("clean", "--run", run_id, directory=run.directory)
    assert (cleaned.code, find_leftovers(engine, run_id)) == (0, []), cleaned.err


def test_reports_that_hang_keep_the_process_no_longer_than_it_has(driven: Any) -> None:
    run = driven("within('system.signals', _EXIT_SECONDS=2.0)\nat('report.write', 'html_pieces', hang)")
    run.until("html_pieces")
    run.process.send_signal(signal.SIGTERM)
    code, err = run.end()
    assert (code, "did not end in time" in err) == (130, True)
    assert run.verdicts == ["pass"]


@hostile("signals", "code in C keeps the interpreter's lock for ever", held_by="a watchdog process", sandbox="none")
@pytest.mark.parametrize(
    "place", ["at('runner.cell.seal', 'compare_entries', seize)", "at('report.write', 'html_pieces', seize)"]
)
def test_code_that_keeps_the_interpreters_lock_is_killed(driven: Any, place: str) -> None:
    run = driven(f"within('system.signals', _KILL_SECONDS=2.0)\n{place}")
    run.until(place.split("'")[3])
    run.process.send_signal(signal.SIGTERM)
    assert run.end()[0] == -signal.SIGKILL
    assert (run.directory / "out" / "journal.jsonl").exists()


@honest("signals", "code in C keeps the interpreter's lock for ever", sandbox="none")
def test_without_a_signal_nobody_is_killed(driven: Any) -> None:
    # Longer than the watchdog would give it: only the wait of the program under test, not of an outcome.
    wait = "lambda name: time.sleep(3)"
    run = driven(f"within('system.signals', _KILL_SECONDS=2.0)\nat('report.write', 'html_pieces', {wait})")
    assert run.end()[0] == 0
    assert run.verdicts == ["pass"]


def test_the_watchdog_ends_with_the_program(driven: Any) -> None:
    run = driven("at('report.write', 'html_pieces', wait)")
    run.until("html_pieces")
    children = Path(f"/proc/{run.process.pid}/task/{run.process.pid}/children").read_text().split()
    assert children, "there is a watchdog"
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.wait()
    assert eventually(lambda: not any(map(runs, children))), "the watchdog runs on"


@hostile("signals", "a thread of ours hangs in a cell", held_by="the cell is left to itself", sandbox="none")
def test_the_limit_of_a_cell_ends_it_though_a_thread_of_ours_hangs(driven: Any) -> None:
    place = f"at('runner.cell.seal', 'compare_entries', hang, {FIRST})"
    given_up = "within('runner.cell.cell', _CLEANUP_SECONDS=1.0, _UNWIND_SECONDS=1.0)\n"
    run = driven(given_up + place, spec(resources="{timeout: 6s}", audit=WATCHED) + TWO)
    code, err = run.end()
    assert code == 3, err
    assert run.verdicts == ["error", "pass"]
    assert "the cell took longer than resources.timeout (6 s); it was in: checks" in json.dumps(run.document)


@honest("signals", "a thread of ours hangs in a cell", sandbox="none")
def test_a_cell_that_takes_its_time_within_its_limit_passes(driven: Any) -> None:
    wait = "lambda name: (open(name + '.reached', 'w'), time.sleep(1))"
    place = f"at('runner.cell.seal', 'compare_entries', {wait}, {FIRST})"
    run = driven(place, spec(resources="{timeout: 60s}", audit=WATCHED) + TWO)
    assert run.end()[0] == 0
    assert run.verdicts == ["pass", "pass"]


def test_merging_and_other_commands_end_by_it_too(driven: Any) -> None:
    run = driven("at('cli.scaffold', 'write_first_spec', wait)", "", "init", "there")
    run.until("write_first_spec")
    run.process.send_signal(TERM)
    assert run.end() == (130, "keystone: cancelled\n")
    assert not (run.directory / "there").exists()


def test_a_signal_that_was_blocked_when_we_were_started_is_not_lost(tmp_path: Path) -> None:
    """As the image does it: blocked by `env`, so that not even the start of the interpreter loses one."""
    write_driver(tmp_path, "at_import('cli.main', wait)")
    (tmp_path / "keystone.yaml").write_text(spec())
    blocked = "import os, signal, sys; signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM]);"
    sent = "os.kill(os.getpid(), signal.SIGTERM); os.execv(sys.executable, [sys.executable, 'driver.py', 'run'])"
    done = subprocess.run(
        [sys.executable, "-c", f"{blocked} {sent}"],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (130, b"keystone: cancelled\n")
    assert not (tmp_path / "import.reached").exists()


SENDS = """
import os, signal, sys
wanted = os.environ.get("SIGNAL_AT", "")
sent = []
def look(event, arguments):
    if wanted and not sent and wanted in f"{event}: {arguments[0] if arguments else ''}":
        sent.append(event)
        os.kill(os.getpid(), signal.SIGTERM)
sys.addaudithook(look)
"""
"""Sends ourselves a signal at one moment, as sitecustomize.py."""


def started_with_signal(tmp_path: Path, moment: str, *argv: str) -> tuple[int, str, list[str]]:
    """Exit code, stderr, and what is left in the directory for temporary files. The signal comes at this moment: the
    name of an event of Python's, with its first argument, or a part of these."""
    for name, text in (("site/sitecustomize.py", SENDS), ("keystone.yaml", spec())):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o711)
        moment = moment.replace("PLACE", place)
        environ = {"SIGNAL_AT": moment, "PYTHONPATH": f"{ROOT}:{tmp_path / 'site'}", "TMPDIR": place}
        done = subprocess.run(
            [sys.executable, *argv], cwd=tmp_path, env={**ENVIRONMENT, **environ}, capture_output=True, check=False
        )
        return done.returncode, done.stderr.decode(), [path.name for path in Path(place).iterdir()]


RUN = ("-m", "keystone_action", "run", "keystone.yaml", "--output", "out")
MOMENTS = [
    "import: keystone_action.system.signals",  # before there is a handler of ours
    "import: _datetime",  # asked for by pydantic_core, which takes an exception for a broken interpreter
    "import: keystone_action.runner.run",
    "open: PLACE/.keystone-",  # the lock of the run, before it has its name
]


@pytest.mark.parametrize("moment", MOMENTS)
def test_while_it_imports_it_ends_with_a_word_and_leaves_nothing(tmp_path: Path, moment: str) -> None:
    code, err, left = started_with_signal(tmp_path, moment, *RUN)
    assert (code, left) == (130, []), err
    assert "Traceback" not in err
    assert "panicked" not in err


def test_the_same_call_without_a_signal_passes(tmp_path: Path) -> None:
    code, err, left = started_with_signal(tmp_path, "", *RUN)
    assert (code, left) == (0, []), err


@pytest.mark.parametrize("moment", MOMENTS[1:3])
def test_while_the_step_of_a_workflow_imports_it_ends_by_it(tmp_path: Path, moment: str) -> None:
    code, err, left = started_with_signal(tmp_path, moment, str(ROOT / "entrypoint.py"), *RUN[2:])
    assert (code, left) == (130, []), err
    assert "Traceback" not in err


def test_while_the_post_step_imports_it_ends_by_it(tmp_path: Path) -> None:
    """The verdict stands; what it would have removed, `keystone clean` does."""
    code, err, left = started_with_signal(tmp_path, "import: _datetime", str(ROOT / "post_entrypoint.py"))
    assert (code, left) == (0, []), err
    assert "Traceback" not in err


def test_what_breaks_before_the_command_line_is_no_failed_agent(tmp_path: Path) -> None:
    """Not exit code 1; a panic of a library in Rust is not an Exception of Python's either."""
    (tmp_path / "driver.py").write_text(
        "import sys\nclass Finder:\n    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'keystone_action.cli.main':\n            raise RuntimeError('broken')\n"
        "sys.meta_path.insert(0, Finder())\nfrom keystone_action.__main__ import main\nsys.exit(main())\n"
    )
    done = subprocess.run(
        [sys.executable, "driver.py", "doctor"],
        cwd=tmp_path,
        env={**ENVIRONMENT, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (3, "keystone: internal error: RuntimeError: broken\n")
