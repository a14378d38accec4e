"""What `determinism.clock` does not reach: programs without a C library to load, and those of another one."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from support.command_line import Called, keystone
from support.images import NO_SHELL

if TYPE_CHECKING:
    from docker import DockerClient

TELLS = '#include <stdio.h>\n#include <time.h>\nint main(void) { printf("%ld\\n", (long)time(0)); return 0; }\n'
SHELL = """
#include <unistd.h>
int main(int count, char **words) { words[0] = "sh"; return execv("/bin/busybox", words); }
"""
IMAGE = """
FROM {no_shell}
LABEL {label}=1
RUN ["/bin/busybox", "--install", "-s", "/bin"]
{more}
"""
WITH_MUSL = """
RUN rm /bin/sh
COPY {loader} /lib/
COPY shell /bin/sh
"""
YEAR_2031 = 1_924_992_000
LOADER = next(Path("/lib").glob("ld-musl-*.so.1"), Path("/lib/ld-musl.so.1"))


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `static` and `musl`, which print the time, and `shell`, two of which have musl as their library."""
    folder = tmp_path_factory.mktemp("programs")
    for name, text, flags in (("static", TELLS, ["-static"]), ("musl", TELLS, []), ("shell", SHELL, [])):
        (folder / f"{name}.c").write_text(text)
        subprocess.run(["musl-gcc", *flags, "-o", name, f"{name}.c"], cwd=folder, check=True, timeout=120)
        (folder / name).chmod(0o755)
    return folder


def clocked(directory: Path, command: str, **more: Any) -> Called:
    spec = {
        "version": 1,
        "id": "clock",
        "task": {"prompt": "x"},
        "agent": {"type": "command", "command": command},
        "determinism": {"clock": "2031-05-06T07:08:09Z"},
        "invariants": {"any": {"check": {"type": "file_absent", "path": "nothing"}}},
        **more,
    }
    (directory / "keystone.yaml").write_text(json.dumps(spec))
    return keystone("run", "--output", "out", directory=directory)


def test_a_static_program_sees_the_machines_time_and_one_of_musl_does_not_start(tmp_path: Path, programs: Path) -> None:
    """As the page says of both: the cell itself has the given time."""
    (tmp_path / "work").mkdir()
    for name in ("static", "musl"):
        (tmp_path / "work" / name).write_bytes((programs / name).read_bytes())
        (tmp_path / "work" / name).chmod(0o755)
    called = clocked(tmp_path, "date +%s; ./static; ./musl; echo $?", workspace="work")
    assert called.code == 0, called.err
    cell = tmp_path / "out" / "cells" / "clock.r0"
    given, machine, code = map(int, (cell / "agent.stdout").read_text().split())
    assert given > YEAR_2031 > machine
    assert abs(machine - time.time()) < 600
    assert code == 127
    assert "Error relocating" in (cell / "agent.stderr").read_text()


def packed(files: dict[str, bytes]) -> io.BytesIO:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.mode, entry.size = 0o755, len(content)
            archive.addfile(entry, io.BytesIO(content))
    data.seek(0)
    return data


@pytest.mark.docker
@pytest.mark.parametrize(
    ("more", "words"),
    [
        (WITH_MUSL, "its C library is musl, which libfaketime here was not built for; take an image with glibc"),
        ("", "`date` still prints the machine's time; its programs may be static ones"),
    ],
    ids=["musl", "static"],
)
def test_an_image_of_programs_that_the_clock_does_not_reach_is_an_error(
    tmp_path: Path, programs: Path, engine: DockerClient, image: Callable[[str], str], more: str, words: str
) -> None:
    # Names and layers of its own: other workers have the same engine.
    own = f"keystone-test-clock-{uuid.uuid4().hex}"
    text = IMAGE.format(no_shell=image(NO_SHELL), label=own, more=more.format(loader=LOADER.name))
    files = {"Dockerfile": text.encode(), "shell": (programs / "shell").read_bytes(), LOADER.name: LOADER.read_bytes()}
    made, _ = engine.images.build(fileobj=packed(files), custom_context=True, tag=f"{own}:1", rm=True)
    try:
        called = clocked(tmp_path, "touch made", base=f"{own}:1")
    finally:
        engine.images.remove(made.id, force=True)
    assert called.code == 3, called.out + called.err
    (cell,) = called.cells
    assert cell["verdict"] == "error"
    assert "determinism.clock has no effect in the image" in called.out + called.err
    assert words in called.out + called.err
