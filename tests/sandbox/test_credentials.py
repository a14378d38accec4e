"""Acting for a sandbox's user for a moment: only its processes can be signalled, and everything is taken back."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from keystone_action.sandbox.processes.credentials import User, acting_for

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act for other users")

USER = User(1_900_400_000, 1_900_900_000)


def credentials() -> dict[str, str]:
    lines = Path("/proc/thread-self/status").read_text().splitlines()
    fields = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
    return {name: fields[name] for name in ("Uid", "Gid", "Groups", "CapEff", "CapPrm", "CapBnd", "CapAmb")}


def test_for_a_moment_and_back() -> None:
    before = credentials()
    with acting_for(USER):
        meanwhile = credentials()
        with pytest.raises(PermissionError):
            os.kill(os.getppid(), 0)
    assert meanwhile["Uid"].split() == [str(each) for each in (USER.guard, USER.uid, 0, USER.uid)]
    assert (int(meanwhile["CapEff"], 16), meanwhile["CapPrm"]) == (0, before["CapPrm"])
    assert credentials() == before


def test_back_also_when_something_went_wrong() -> None:
    before = credentials()
    with pytest.raises(ValueError, match="odd"), acting_for(USER):
        raise ValueError("odd")
    assert credentials() == before


def test_only_processes_of_this_user_can_be_signalled() -> None:
    def sleeper(uid: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["/bin/sleep", "100"], user=uid, group=uid, extra_groups=[])

    with sleeper(USER.uid) as own, sleeper(USER.uid + 1) as other, sleeper(0) as ours:
        try:
            with acting_for(USER):
                os.kill(-1, 9)
            assert own.wait() == -9
            assert (other.poll(), ours.poll()) == (None, None)
        finally:
            other.kill()
            ours.kill()


SIGNALS_US = """
import os, sys
try:
    os.kill(int(sys.argv[1]), 0)
except PermissionError:
    print("refused")
"""


def test_the_user_can_not_signal_us_meanwhile() -> None:
    argv = ["/usr/bin/env", "python3", "-c", SIGNALS_US, str(os.getpid())]
    process = subprocess.Popen(
        ["/bin/sh", "-c", 'read go; exec "$@"', "sh", *argv],
        user=USER.uid,
        group=USER.uid,
        extra_groups=[],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
    )
    with acting_for(USER):
        out, _ = process.communicate(b"go\n")
    assert out == b"refused\n"


KEEPS_CAPABILITIES = """
import ctypes, os, sys
from pathlib import Path
from keystone_action.sandbox.processes.credentials import User, acting_for
NO_SETUID_FIXUP = 4
assert ctypes.CDLL(None).prctl(28, NO_SETUID_FIXUP, 0, 0, 0) == 0
def effective():
    return [line for line in Path("/proc/thread-self/status").read_text().splitlines() if line.startswith("CapEff")][0]
before = effective()
with acting_for(User(1_900_400_000, 1_900_900_000)):
    meanwhile = effective()
print(int(meanwhile.split()[1], 16), effective() == before)
"""


def test_capabilities_are_out_of_effect_whatever_the_secure_bits_say() -> None:
    done = subprocess.run([sys.executable, "-c", KEEPS_CAPABILITIES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]
