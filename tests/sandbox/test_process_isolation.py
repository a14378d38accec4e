"""What code in the process sandbox can't do: read ours, read its neighbours', write outside, reach out locally."""

# ruff: noqa: ASYNC240 - the loop has nothing else to do meanwhile

from __future__ import annotations

import asyncio
import os
import socket
import stat
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.process_world import ROOT, another, run, shell, world

from keystone_action.errors import SandboxError
from keystone_action.files.removal import remove_tree
from keystone_action.sandbox.processes import policy
from keystone_action.sandbox.processes.sandboxes import explain_unenforced, start
from keystone_action.system.command import Command, CommandLimits


@pytest.fixture
def checkout() -> Iterator[Path]:
    """A directory with a file that everybody may read by its modes, as checkouts are."""
    with tempfile.TemporaryDirectory(prefix="checkout-") as name:
        place = Path(name)
        place.chmod(0o755)
        (place / "hidden_test.py").write_text("SECRET")
        (place / "hidden_test.py").chmod(0o644)
        yield place


def test_what_isolates_is_said() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            assert sandboxes.kind == "process"
            assert sandboxes.limits == "watched"
            assert ("user" in sandboxes.isolation) == ROOT == (sandbox.uid is not None)
        async with world(uid_isolation=False, landlock=False) as (sandboxes, sandbox):
            assert sandboxes.isolation == ("none",)
            assert any("nothing isolates the agent" in sentence for sentence in sandboxes.not_enforced)
            assert (await sandbox.run(shell("id -u"))).stdout.text() == f"{os.geteuid()}\n"

    run(main)


def test_what_can_not_be_had_is_refused_when_insisted_on() -> None:
    async def main() -> None:
        if ROOT:
            sandboxes = await start(uid_isolation=True)
            assert "user" in sandboxes.isolation
            await sandboxes.close()
        else:
            with pytest.raises(SandboxError, match="needs root"):
                await start(uid_isolation=True)

    run(main)


def test_processor_time_is_said_not_to_be_limited() -> None:
    assert explain_unenforced(CommandLimits(memory=1, disk=1, pids=1)) == ()
    assert "2.5 is not enforced" in explain_unenforced(CommandLimits(cpu=2.5))[0]


def test_files_of_ours_can_not_be_read(checkout: Path) -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if "landlock" in sandboxes.isolation:
                for path in (checkout / "hidden_test.py", checkout, Path(__file__), Path.home(), Path("/tmp")):
                    result = await sandbox.run(shell(f"ls {path} > /dev/null && cat {path}"))
                    assert "SECRET" not in result.stdout.text()
                    # Landlock refuses; where there are mounts, too, the place is empty.
                    refused = ("ermission denied", "No such file")
                    assert any(words in result.stderr.text() for words in refused), path
            for path in ("/root", f"/proc/{os.getpid()}/environ", f"/proc/{sandboxes.launcher.pid}/environ"):
                result = await sandbox.run(shell(f"cat {path}/* {path}"))
                assert (result.exit_code, result.stdout.total) == (1, 0), path
            assert (await sandbox.run(shell("cat /etc/passwd && ls /usr/bin /proc/self"))).exit_code == 0

    run(main)


def test_links_lead_nowhere(checkout: Path) -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if "landlock" not in sandboxes.isolation:
                return
            result = await sandbox.run(
                shell(f"ln -s {checkout} l; cat l/hidden_test.py; ln {checkout}/hidden_test.py h")
            )
            assert result.exit_code != 0
            assert result.stdout.total == 0
            assert not (sandbox.workspace / "h").exists()

    run(main)


def test_a_hard_link_is_not_given_to_the_sandbox(checkout: Path) -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            if not ROOT:
                return  # files are given to nobody then
            workspace = sandboxes.root / "linked"
            workspace.mkdir()
            os.link(checkout / "hidden_test.py", workspace / "outside")
            (workspace / "one").write_text("x")
            os.link(workspace / "one", workspace / "two")
            (workspace / "link").symlink_to(checkout)
            sandbox = await sandboxes.open(workspace, limits=CommandLimits())
            owners = {path.name: path.lstat().st_uid for path in (workspace, *workspace.iterdir())}
            user = sandbox.uid
            assert owners == {"linked": user, "outside": 0, "one": user, "two": user, "link": user}
            assert checkout.stat().st_uid == 0
            assert stat.S_IMODE(workspace.stat().st_mode) == 0o700
            await sandbox.close()
            assert workspace.stat().st_uid == 0

    run(main)


def test_neighbours_can_not_see_each_other() -> None:
    async def main() -> None:
        async with world() as (sandboxes, one):
            if sandboxes.isolation == ("none",):
                return
            two = await another(sandboxes)
            assert one.uid is None or one.uid != two.uid
            await one.run(
                shell("echo mine > file; echo mine > $HOME/file; echo mine > $TMPDIR/file; chmod -R 777 . $HOME")
            )
            places = [one.workspace, *one._private.folders]
            for place in places:
                result = await two.run(
                    shell(f"ls {place}; cat {place}/file; echo x > {place}/file; echo x > {place}/new")
                )
                assert (result.exit_code != 0, result.stdout.total) == (True, 0)
                assert (place / "file").read_text() == "mine\n"
                assert not (place / "new").exists()
            listing = await two.run(shell(f"ls {sandboxes.root}"))
            assert (listing.exit_code != 0, listing.stdout.total) == (True, 0)

    run(main)


def test_a_later_user_gets_nothing_of_an_earlier_one() -> None:
    async def main() -> None:
        async with world() as (sandboxes, one):
            await one.run(shell("echo mine > file; chmod 777 . file"))
            await one.close()
            two = await another(sandboxes)
            if two.uid is not None:
                assert two.uid != one.uid
                assert (await two.run(shell(f"cat {one.workspace}/file"))).exit_code != 0

    run(main)


def test_nothing_can_be_written_outside() -> None:
    name = f"planted-{uuid.uuid4().hex}"

    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if "landlock" not in sandboxes.isolation:
                return
            for place in ("/tmp", "/var/tmp", "/usr/local", "/etc", str(sandboxes.root), "/proc/sys/kernel"):
                assert (await sandbox.run(shell(f"echo x > {place}/{name}"))).exit_code != 0
                assert not Path(place, name).exists()

    run(main)


def test_shared_memory_only_where_it_is_private() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if "landlock" not in sandboxes.isolation:
                return
            result = await sandbox.run(shell("f=/dev/shm/keystone-$$; echo x > $f && cat $f && rm $f; ls /dev/shm"))
            assert result.stdout.text() == ("x\n" if sandbox.uid is not None else "")
            assert result.exit_code != 0  # listing is never allowed

    run(main)


def test_abstract_sockets_and_our_processes_are_out_of_reach() -> None:
    name = f"keystone-{uuid.uuid4().hex}"
    connect = f"import socket; socket.socket(socket.AF_UNIX).connect('\\0{name}'); print('connected')"

    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            python = sandbox.which("python3")
            assert python, "these tests need a python3 that every user can run"
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(f"\0{name}")
                listener.listen()
                result = await sandbox.run(Command((python, "-c", connect)))
                reachable = (
                    "the agent can connect to abstract Unix sockets of other processes" in sandboxes.not_enforced
                )
                if "landlock" in sandboxes.isolation and not reachable:
                    assert "PermissionError" in result.stderr.text()
                    assert result.exit_code == 1
            if sandboxes.isolation != ("none",):
                killed = await sandbox.run(shell(f"kill -0 {os.getpid()} || kill -0 {sandboxes.launcher.pid}"))
                assert killed.exit_code != 0

    run(main)


def test_no_way_to_more_privileges() -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if sandboxes.isolation == ("none",):
                return
            lines = (
                await sandbox.run(shell("grep -E 'NoNewPrivs|Groups|Cap(Prm|Eff|Inh|Amb)' /proc/self/status"))
            ).stdout
            values = dict(line.split(":") for line in lines.text().splitlines())
            assert values["NoNewPrivs"].strip() == "1"
            if ROOT:
                assert values.pop("NoNewPrivs")
                assert values.pop("Groups").strip() == ""
                assert {value.strip() for value in values.values()} == {"0" * 16}

    run(main)


def test_no_descriptor_of_ours_gets_inside() -> None:
    async def main() -> None:
        async with world() as (_, sandbox):
            with tempfile.TemporaryFile() as file:
                os.set_inheritable(file.fileno(), True)
                result = await sandbox.run(shell("ls /proc/$$/fd | sort -n | tr '\\n' ' '; ls -l /proc/$$/fd >&2"))
                assert result.stdout.text().split()[:3] == ["0", "1", "2"]
                assert "socket:" not in result.stderr.text()
                assert "lock" not in result.stderr.text()

    run(main)


def test_what_is_given_to_read_can_be_read_and_not_written(checkout: Path) -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            sandbox = await another(sandboxes, readable=[checkout])
            text = f"cat {checkout}/hidden_test.py; echo x > {checkout}/hidden_test.py"
            result = await sandbox.run(shell(text))
            if sandboxes.isolation != ("none",):
                assert (result.stdout.text(), result.exit_code != 0) == ("SECRET", True)

    run(main)


def test_a_place_that_the_user_can_not_reach_is_said(checkout: Path) -> None:
    async def main() -> None:
        async with world() as (sandboxes, _):
            if not ROOT:
                return  # then it is our own user
            closed = checkout / "closed"
            (closed / "workspace").mkdir(parents=True)
            closed.chmod(0o700)
            with pytest.raises(SandboxError, match=r"can't reach .*/closed has mode 0700"):
                await sandboxes.open(closed / "workspace", limits=CommandLimits())
            with pytest.raises(SandboxError, match=r"can't reach .*/closed has mode 0700"):
                await another(sandboxes, readable=[closed])
            with pytest.raises(SandboxError, match="can't prepare"):
                await sandboxes.open(checkout / "missing", limits=CommandLimits())

    run(main)


def test_two_runs_never_share_a_user() -> None:
    async def main() -> None:
        if not ROOT:
            return
        runs = await asyncio.gather(*(start() for _ in range(3)))
        cells = [await another(sandboxes) for sandboxes in runs for _ in range(4)]
        users = [cell.uid for cell in cells]
        assert len(set(users)) == len(users)
        for sandboxes in runs:
            await sandboxes.close()

    run(main)


def test_hidden_directories_are_left_out_of_the_system_s(tmp_path: Path) -> None:
    opt = Path("/opt").resolve()
    rules = dict(policy.system_rules([opt / "runner" / "_work" / "repo"]))
    assert not any(str(opt / "runner" / "_work" / "repo").startswith(path + "/") for path in rules if path != "/dev")
    assert policy.may_execute(list(rules.items()), Path("/usr/bin/env").resolve())
    # What holds the system itself can't be hidden, and is not.
    assert policy.may_execute(policy.system_rules([Path("/")]), Path("/usr/bin/env").resolve())


def test_neighbours_of_a_hidden_directory_stay_readable(tmp_path: Path) -> None:
    for name in ("a/secret/x", "a/public", "b"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "a" / "secret")
    found = policy.around(tmp_path, [tmp_path / "a" / "secret"])
    assert found == [tmp_path / "a" / "public", tmp_path / "b"]


def test_removing_does_not_follow_links(tmp_path: Path) -> None:
    (tmp_path / "keep").mkdir()
    (tmp_path / "keep" / "file").write_text("x")
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "link").symlink_to(tmp_path / "keep")
    remove_tree(tmp_path / "tree")
    remove_tree(tmp_path / "absent")
    assert (tmp_path / "keep" / "file").read_text() == "x"
    assert not (tmp_path / "tree").exists()


LISTINGS = {
    "ls": "ls /",
    "find": "find / -maxdepth 1",
    "python": "python3 -c 'import os; os.listdir(\"/\")'",
    "shell": "cd / && ls .",
}


@pytest.mark.parametrize("listing", LISTINGS)
def test_who_may_not_list_the_root_is_told_why(listing: str) -> None:
    async def main() -> None:
        async with world() as (sandboxes, sandbox):
            if "landlock" not in sandboxes.isolation:
                return
            result = await sandbox.run(shell(LISTINGS[listing]))
            assert result.exit_code != 0
            told = result.advice.startswith("`/` can't be listed in the process sandbox")
            assert told == (listing != "shell")  # `ls .` names no folder
            assert (await sandbox.run(shell("ls /usr && ls /no-such-folder"))).advice == ""

    run(main)
