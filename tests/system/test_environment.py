"""The front doors leave no secret where `/proc` shows it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from support.attacks import honest, hostile
from support.command_line import ENVIRONMENT, NO_ENGINE

from keystone_action.errors import EXIT_ERROR

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="nothing of the kind outside of Linux")

PROGRAM = """
import json, os, signal, sys
from pathlib import Path
with open("starts", "a") as file:
    file.write("x")
{before}
from keystone_action.system.environment import let_signals_in, take
environ = take(sys.argv[1:])
let_signals_in()
shown = Path("/proc/self/environ").read_bytes().decode("utf-8", "surrogateescape")
Path("told").write_text(json.dumps([environ, shown, dict(os.environ), sys.argv, sys.stdin is None]))
from keystone_action.system.environment import not_enforced
Path("not_enforced").write_text(json.dumps(not_enforced))
"""

CLOSED_MEMORY = """
import builtins
opened = builtins.open
def closed(path, *arguments, **options):
    if path == "/proc/self/mem":
        raise PermissionError(path)
    return opened(path, *arguments, **options)
builtins.open = closed
"""
"""Then the program has to start itself anew."""

CLOSED_PROC = """
import builtins, os
def refuse(path, *arguments, opened=None, **options):
    if str(path).startswith("/proc/"):
        raise FileNotFoundError(path)
    return opened(path, *arguments, **options)
from functools import partial
builtins.open, os.readlink = partial(refuse, opened=builtins.open), partial(refuse, opened=os.readlink)
"""

PROCESS_1 = """
import os
import keystone_action.system.environment
keystone_action.system.environment._INIT = {init!r}
os.getpid = lambda: 1
"""

SPEC = """
version: 1
id: trivial
task: {prompt: nothing}
agent: {type: command, command: "true"}
invariants:
  there: {description: It is there, check: {type: file_absent, path: x}}
"""

LOSES_WHAT_IS_HANDED_ON = """
if "KEYSTONE_HANDED_ON" in os.environ:
    os.close(int(os.environ["KEYSTONE_HANDED_ON"].split()[0]))
"""

ONE_SEAL_MORE = """
import fcntl
if "KEYSTONE_HANDED_ON" not in os.environ:
    call = fcntl.fcntl
    fcntl.fcntl = lambda file, number, argument=0: call(
        file, number, argument | fcntl.F_SEAL_SEAL if number == fcntl.F_ADD_SEALS else argument
    )
"""

OLD_KERNEL = """
import errno
created = os.memfd_create
def create(name, flags):
    if flags & ~3:
        raise OSError(errno.EINVAL, "Invalid argument")
    return created(name, flags)
os.memfd_create = create
"""

NO_NEW_START = """
import os
def refuse(*arguments):
    raise OSError("refused")
os.{function} = refuse
"""


def start(
    directory: Path, *words: str, before: str = "", how: str = "file", environ: dict[str, str] | None = None
) -> list:
    """What the program tells of itself; `starts` then counts how often it was started."""
    done = call(directory, *words, before=before, how=how, environ=environ)
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "told").read_text())


def call(
    directory: Path,
    *words: str,
    before: str = "",
    how: str = "file",
    environ: dict[str, str] | None = None,
    below: tuple[str, ...] = (),
) -> subprocess.CompletedProcess[bytes]:
    """below: a command that starts the program."""
    program = directory / "program.py"
    program.write_text(PROGRAM.format(before=before))
    called = {"file": [str(program)], "module": ["-m", "program"], "text": ["-c", program.read_text()]}[how]
    return subprocess.run(
        [*below, sys.executable, *called, *words],
        cwd=directory,
        env={**ENVIRONMENT, **(environ or {})},
        capture_output=True,
        check=False,
        timeout=60,
    )


def starts(directory: Path) -> int:
    return len((directory / "starts").read_text())


def not_enforced(directory: Path) -> list[str]:
    return json.loads((directory / "not_enforced").read_text())


@hostile("host scripts", "a token of the job is read in /proc/<pid>/environ", held_by="erasure", sandbox="none")
@pytest.mark.parametrize(
    ("how", "before", "count"),
    [("file", "", 1), ("module", "", 1), ("text", "", 1), ("file", CLOSED_MEMORY, 2), ("module", CLOSED_MEMORY, 2)],
)
def test_no_secret_stays_where_proc_shows_it(tmp_path: Path, how: str, before: str, count: int) -> None:
    secrets = {"GITHUB_TOKEN": "ghs_1", "EMPTY_": "", "LONG_KEY": "k" * 100_000, "ODD": "\udcff=\n"}
    environ, shown, kept, argv, _ = start(tmp_path, "run", "a b", how=how, before=before, environ=secrets)
    assert environ.items() >= secrets.items()
    assert not [name for name in secrets if f"{name}=" in shown or name in kept]
    assert argv[1:] == ["run", "a b"]
    assert (starts(tmp_path), not_enforced(tmp_path)) == (count, [])


@pytest.mark.parametrize(("before", "count"), [("", 1), (CLOSED_MEMORY, 2)])
def test_a_variable_without_a_name_is_erased_and_breaks_nothing(tmp_path: Path, before: str, count: int) -> None:
    environ, shown, *_ = start(tmp_path, before=before, environ={"": "a token", "A_TOKEN": "x"})
    assert (environ[""], environ["A_TOKEN"]) == ("a token", "x")
    assert "a token" not in shown
    assert starts(tmp_path) == count


@hostile("host scripts", "a token of the job is read in /proc/1/environ", held_by="erasure", sandbox="none")
@pytest.mark.parametrize(
    ("how", "fault"),
    [
        ("file", ""),  # the init is not a program
        ("file", NO_NEW_START.format(function="memfd_create")),
        ("file", NO_NEW_START.format(function="execve")),
        ("text", ""),
    ],
)
def test_process_1_that_cannot_start_anew_shows_no_secret(tmp_path: Path, how: str, fault: str) -> None:
    (tmp_path / "init").touch(mode=0o755)
    before = PROCESS_1.format(init=str(tmp_path / "init")) + fault
    environ, shown, kept, *_ = start(tmp_path, how=how, before=before, environ={"A_TOKEN": "secret"})
    assert environ["A_TOKEN"] == "secret"
    assert "secret" not in shown
    assert "A_TOKEN" not in kept
    assert (starts(tmp_path), not_enforced(tmp_path)) == (1, [])


@pytest.mark.parametrize("before", [CLOSED_MEMORY, CLOSED_PROC])
def test_a_secret_that_stays_readable_is_told(tmp_path: Path, before: str) -> None:
    before += NO_NEW_START.format(function="execve")
    environ, *_ = start(tmp_path, before=before, environ={"A_TOKEN": "secret"})
    assert environ["A_TOKEN"] == "secret"
    (sentence,) = not_enforced(tmp_path)
    assert "stay readable in /proc/<pid>/environ" in sentence


def test_the_report_and_doctor_tell_of_a_secret_that_stays_readable(tmp_path: Path) -> None:
    refuse = NO_NEW_START.format(function="execve")
    program = f"{CLOSED_MEMORY}{refuse}\nfrom keystone_action.__main__ import main\nsys.exit(main())"
    (tmp_path / "program.py").write_text(f"import sys\n{program}")
    (tmp_path / "keystone.yaml").write_text(SPEC)

    def call(*words: str) -> str:
        command = [sys.executable, "program.py", *words]
        environ = {**ENVIRONMENT, **NO_ENGINE, "A_TOKEN": "x"}
        return subprocess.check_output(command, cwd=tmp_path, env=environ, timeout=120, text=True)

    call("run", "keystone.yaml", "--output", "out")
    told = json.loads((tmp_path / "out" / "results.json").read_text())["sandbox"]["not_enforced"]
    assert "stay readable in /proc/<pid>/environ" in told[-1]
    assert "stay readable in /proc" in (tmp_path / "out" / "summary.md").read_text()
    assert "!! not enforced: secrets in Keystone's own environment" in call("doctor")
    done = subprocess.run(
        [sys.executable, "-m", "keystone_action", "run", "keystone.yaml", "--resume", "out"],
        cwd=tmp_path, env={**ENVIRONMENT, **NO_ENGINE}, capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    resumed = json.loads((tmp_path / "out" / "results.json").read_text())["sandbox"]["not_enforced"]
    assert resumed == told, "the cells ran in a process that could not erase its secrets"


def test_without_proc_the_program_starts_itself_anew_once(tmp_path: Path) -> None:
    environ, shown, *_ = start(tmp_path, before=CLOSED_PROC, environ={"A_TOKEN": "secret"})
    assert environ["A_TOKEN"] == "secret"
    assert "secret" not in shown
    assert (starts(tmp_path), not_enforced(tmp_path)) == (2, [])


@pytest.mark.parametrize("before", [CLOSED_MEMORY, CLOSED_PROC])
def test_a_program_that_was_started_anew_does_not_start_again(tmp_path: Path, before: str) -> None:
    done = call(tmp_path, before=before, environ={"KEYSTONE_HANDED_ON": "99", "A_TOKEN": "x"})
    assert (done.returncode, starts(tmp_path)) == (EXIT_ERROR, 1)


def test_a_program_that_cannot_receive_its_environment_ends(tmp_path: Path) -> None:
    """It would take its call for another one: for one of nobody's workflow."""
    done = call(tmp_path, before=f"{CLOSED_MEMORY}\n{LOSES_WHAT_IS_HANDED_ON}", environ={"A_TOKEN": "x"})
    assert (done.returncode, starts(tmp_path)) == (EXIT_ERROR, 2)
    assert b"what Keystone handed over when it started itself anew can't be read: [Errno 9]" in done.stderr
    assert not (tmp_path / "told").exists()


def test_a_seal_more_is_no_obstacle(tmp_path: Path) -> None:
    """A kernel may add one of its own."""
    environ, *_ = start(tmp_path, before=CLOSED_MEMORY + ONE_SEAL_MORE, environ={"A_TOKEN": "x"})
    assert environ["A_TOKEN"] == "x"
    assert starts(tmp_path) == 2


def test_a_kernel_that_does_not_know_of_programs_in_memory(tmp_path: Path) -> None:
    environ, *_ = start(tmp_path, before=CLOSED_MEMORY + OLD_KERNEL, environ={"A_TOKEN": "x"})
    assert environ["A_TOKEN"] == "x"
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("demand", ["1", "2"])
def test_a_kernel_that_forbids_programs_in_memory(tmp_path: Path, demand: str) -> None:
    setting = f'echo {demand} > /proc/sys/vm/memfd_noexec || exit 77; exec "$@"'
    below = ("unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", setting, "sh")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*below, "true"], capture_output=True, check=False, timeout=60).returncode != 0
    ):
        pytest.skip("no process numbers of one's own here, or a kernel without vm.memfd_noexec")
    done = call(tmp_path, before=CLOSED_MEMORY, environ={"A_TOKEN": "x"}, below=below)
    assert done.returncode == 0, done.stderr
    assert json.loads((tmp_path / "told").read_text())[0]["A_TOKEN"] == "x"
    assert (starts(tmp_path), not_enforced(tmp_path)) == (2, [])


@honest("host scripts", "a token of the job is read in /proc/1/environ", sandbox="none")
@honest("host scripts", "a token of the job is read in /proc/<pid>/environ", sandbox="none")
def test_what_is_no_secret_stays_and_starts_nothing_anew(tmp_path: Path) -> None:
    harmless = {"PYTHONDONTWRITEBYTECODE": "1", "VIRTUAL_ENV": "/x", "LC_ALL": "C.UTF-8", "TMPDIR": str(tmp_path)}
    environ, shown, kept, _, _ = start(tmp_path, "run", environ=harmless)
    assert environ.items() >= harmless.items() <= kept.items()
    assert "VIRTUAL_ENV=/x" in shown
    assert starts(tmp_path) == 1


def test_what_we_start_gets_what_is_harmless(tmp_path: Path) -> None:
    """libc and the loader keep addresses of the memory that is overwritten."""
    after = "import subprocess\nsubprocess.run(['sh', '-c', 'env > environ.txt; pwd > pwd.txt'], check=True)"
    (tmp_path / "program.py").write_text(PROGRAM.format(before="") + after)
    secrets = {f"KEY_{number}": "secret" for number in range(50)}
    subprocess.run(
        [sys.executable, "program.py"],
        cwd=tmp_path,
        env={**secrets, "TZ": "UTC", "SAID": "a=b", **ENVIRONMENT},
        check=True,
        timeout=60,
    )
    lines = (tmp_path / "environ.txt").read_text().splitlines()
    assert not [line for line in lines if line.startswith(("KEY_", "SAID"))]
    assert {f"PATH={ENVIRONMENT['PATH']}", "TZ=UTC"} <= set(lines)
    assert (tmp_path / "pwd.txt").read_text().strip() == str(tmp_path)


def test_variables_of_the_interpreter_go_on_working(tmp_path: Path) -> None:
    environ = {"A_TOKEN": "x", "HTTPS_PROXY": "http://u:p@proxy", "VIRTUAL_ENV": "/x"}
    _, shown, kept, _, _ = start(tmp_path, environ=environ)
    assert (kept["PYTHONPATH"], kept["VIRTUAL_ENV"]) == (ENVIRONMENT["PYTHONPATH"], "/x")
    assert kept["HTTPS_PROXY"] == "http://u:p@proxy"  # for libraries that look it up
    assert "u:p" not in shown


def test_a_signal_between_the_two_starts_is_delivered(tmp_path: Path) -> None:
    before = f"""{CLOSED_MEMORY}
signal.signal(signal.SIGTERM, lambda *_: Path("came").write_text(""))
execve = os.execve
def kill_first(*arguments):
    os.kill(os.getpid(), signal.SIGTERM)
    execve(*arguments)
os.execve = kill_first
"""
    start(tmp_path, before=before, environ={"A_TOKEN": "x"})
    assert (tmp_path / "came").exists()


@hostile("host scripts", "a token stays in the memory it was handed on in", held_by="a clean start", sandbox="none")
def test_what_was_handed_on_is_emptied(tmp_path: Path) -> None:
    before = f"""{CLOSED_MEMORY}
execve = os.execve
def keep(program, words, environ):
    os.dup2(int(environ["KEYSTONE_HANDED_ON"].split()[0]), 50)
    Path("held").write_bytes(os.pread(50, 1 << 20, 0))
    execve(program, words, environ)
os.execve = keep
if "KEYSTONE_HANDED_ON" in os.environ:
    import atexit
    atexit.register(lambda: Path("left").write_bytes(os.pread(50, 1 << 20, 0)))
"""
    environ, *_ = start(tmp_path, before=before, environ={"A_TOKEN": "x"})
    assert environ["A_TOKEN"] == "x"
    assert b"A_TOKEN=x" in (tmp_path / "held").read_bytes()
    assert (tmp_path / "left").read_bytes() == b""


@honest("host scripts", "a token stays in the memory it was handed on in", sandbox="none")
def test_as_process_1_we_start_below_an_init_with_a_clean_environment(tmp_path: Path) -> None:
    init = tmp_path / "init"
    init.write_text(f'#!/bin/sh\nenv > {tmp_path}/init.env\nshift\nexec "$@"\n')
    init.chmod(0o755)
    before = PROCESS_1.format(init=str(init))
    environ, shown, _, argv, _ = start(tmp_path, "a b", before=before, environ={"A_TOKEN": "secret"})
    assert (environ["A_TOKEN"], argv[1:]) == ("secret", ["a b"])
    assert "secret" not in shown + (tmp_path / "init.env").read_text()
    (tmp_path / "starts").unlink()
    (tmp_path / "init.env").unlink()
    start(tmp_path, before=before)
    assert (starts(tmp_path), (tmp_path / "init.env").exists()) == (2, True), "an init is needed without secrets, too"


def test_a_closed_stream_stays_closed(tmp_path: Path) -> None:
    before = f"{CLOSED_MEMORY}\nif 'A_TOKEN' in os.environ: os.close(0)"
    assert start(tmp_path, before=before, environ={"A_TOKEN": "x"})[-1]
    assert starts(tmp_path) == 2


@pytest.mark.parametrize("told", ["0", "10 2", "99", "-1", "9" * 20, "x", ""])
@pytest.mark.parametrize("place", ["/dev/shm", None])
def test_what_only_looks_handed_on_is_left_alone(tmp_path: Path, told: str, place: str | None) -> None:
    with tempfile.NamedTemporaryFile(dir=place) as file:
        file.write(b"not ours")
        file.flush()
        before = f"os.dup2(os.open({file.name!r}, os.O_RDWR), 10)"
        done = call(tmp_path, before=before, environ={"KEYSTONE_HANDED_ON": told, "A_TOKEN": "x"})
        assert (done.returncode, starts(tmp_path)) == (EXIT_ERROR, 1)
        assert b"KEYSTONE_HANDED_ON is a variable of Keystone's own" in done.stderr
        assert Path(file.name).read_bytes() == b"not ours"


def test_another_program_is_not_started_again(tmp_path: Path) -> None:
    environ, *_ = start(tmp_path, how="text", before=CLOSED_MEMORY, environ={"A_TOKEN": "x"})
    assert environ["A_TOKEN"] == "x"
    assert starts(tmp_path) == 1
