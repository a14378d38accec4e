"""Which file systems are believed to stamp every change of a file: tried on real ones, mounted for the test."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from keystone_action.files import snapshot as stamps
from keystone_action.files.snapshot import stamps_every_change

Mount = Callable[..., Path]


@pytest.fixture
def mount(tmp_path: Path) -> Iterator[Mount]:
    """Mounts a file system on a directory of its own; skips where this machine can't."""
    mounted: list[Path] = []

    def made(kind: str, *words: str, source: str = "none") -> Path:
        place = tmp_path / f"mounted-{len(mounted)}"
        place.mkdir()
        done = subprocess.run(
            ["mount", "-t", kind, *words, source, str(place)], capture_output=True, text=True, check=False
        )
        if done.returncode:
            pytest.skip(f"{kind} can't be mounted here: {done.stderr.strip()}")
        mounted.append(place)
        return place

    yield made
    for place in reversed(mounted):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def of_image(mount: Mount, tmp_path: Path, *words: str) -> Path:
    if shutil.which("mkfs.ext4", path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin") is None:
        pytest.skip("there is no mkfs.ext4")
    image = tmp_path / f"image{len(list(tmp_path.iterdir()))}"
    with image.open("wb") as file:
        file.truncate(64 << 20)
    search = {"PATH": "/usr/sbin:/sbin:/usr/bin:/bin"}
    subprocess.run(["mkfs.ext4", "-q", *words, str(image)], check=True, capture_output=True, env=search)
    return mount("ext4", "-o", "loop", source=str(image))


def is_believed(directory: Path) -> bool:
    opened = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        stamps._tried.clear()
        return stamps_every_change(opened)
    finally:
        os.close(opened)


def fill(file: Path, size: int) -> None:
    """Write until nothing is left of the disk."""
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as opened:
        while True:
            opened.write(bytes(size))


def overlay_on(mount: Mount, place: Path) -> Path:
    for name in ("lower", "upper", "work"):
        (place / name).mkdir()
    options = f"lowerdir={place}/lower,upperdir={place}/upper,workdir={place}/work"
    return mount("overlay", "-o", options, source="overlay")


def test_ext4_is_believed(mount: Mount, tmp_path: Path) -> None:
    place = of_image(mount, tmp_path)
    assert is_believed(place)
    assert list(place.iterdir()) == [place / "lost+found"]


def test_ext4_with_stamps_of_whole_seconds_is_not(mount: Mount, tmp_path: Path) -> None:
    assert not is_believed(of_image(mount, tmp_path, "-I", "128"))


def test_tmpfs_is_not(mount: Mount) -> None:
    assert not is_believed(mount("tmpfs"))


def test_an_overlay_is_believed_as_what_it_lies_on(mount: Mount, tmp_path: Path) -> None:
    assert is_believed(overlay_on(mount, of_image(mount, tmp_path)))
    assert not is_believed(overlay_on(mount, mount("tmpfs")))


def test_a_full_disk_proves_nothing_and_ends_nobody(mount: Mount, tmp_path: Path) -> None:
    place = of_image(mount, tmp_path)
    fill(place / "filler", 1 << 20)
    fill(place / "rest", 512)
    assert not is_believed(place)


def test_the_trial_is_made_once_a_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(stamps, "_tried", {})
    monkeypatch.setattr(stamps, "_kind", lambda _: 0xEF53)
    monkeypatch.setattr(stamps, "_trial", lambda directory: tried.append(directory) or True)
    opened = os.open(tmp_path, os.O_RDONLY)
    try:
        assert stamps_every_change(opened)
        assert stamps_every_change(opened)
    finally:
        os.close(opened)
    assert len(tried) == 1


@pytest.mark.parametrize("kind", [0x6969, 0x65735546, 0xFF534D42, 0x01021994, 0, None], ids=str)
def test_one_that_is_not_known_is_not_believed_whatever_it_shows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: int | None
) -> None:
    """NFS, FUSE and CIFS among them: another machine, or a program, makes their stamps as it likes."""
    monkeypatch.setattr(stamps, "_kind", lambda _: kind)
    monkeypatch.setattr(stamps, "_trial", lambda _: True)
    assert not is_believed(tmp_path)
    monkeypatch.setattr(stamps, "_kind", lambda _: 0xEF53)
    assert is_believed(tmp_path)
