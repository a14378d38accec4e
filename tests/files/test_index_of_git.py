"""What an index of git says, whoever wrote it: what `git status` changes in it says nothing new."""

from __future__ import annotations

import hashlib
import os
import random
import shutil
from pathlib import Path

import pytest
from support.repositories import git, write

from keystone_action.files.git.commands import meaning_of_index


@pytest.mark.parametrize("form", ["sha1", "sha256"])
@pytest.mark.parametrize("version", [2, 3, 4])
@pytest.mark.parametrize("setting", ["core.bare=false", "core.untrackedCache=true", "index.threads=4"])
def test_status_changes_its_bytes_and_nothing_that_it_says(
    tmp_path: Path, form: str, version: int, setting: str
) -> None:
    place = tmp_path / "one"
    place.mkdir()
    git(place, "init", "-q", f"--object-format={form}")
    git(place, "config", *setting.split("="))
    git(place, "config", "index.version", str(version))
    write(place, {f"src/{'long' * number}": "x" * number for number in range(1, 30)})
    git(place, "add", "-A")
    git(place, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "one")
    write(place, {"new": "new"})
    git(place, "add", "--intent-to-add", "new")
    git(place, "status")
    copy = tmp_path / "two"
    shutil.copytree(place, copy)
    os.utime(copy / "src" / "long", (1, 1))
    before = (copy / ".git/index").read_bytes()
    git(copy, "status")
    after = (copy / ".git/index").read_bytes()
    assert before != after
    assert meaning_of_index(before) == meaning_of_index(after) != ""
    for command in (["add", "new"], ["update-index", "--assume-unchanged", "src/long"], ["rm", "-q", "src/longlong"]):
        said = meaning_of_index((copy / ".git/index").read_bytes())
        git(copy, *command)
        assert meaning_of_index((copy / ".git/index").read_bytes()) not in ("", said)


def signed(body: bytes) -> bytes:
    return body + hashlib.sha1(body, usedforsecurity=False).digest()


def test_what_stands_beside_it_is_a_part_of_it(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, {"a": "a"})
    git(tmp_path, "add", "a")
    whole = (tmp_path / ".git/index").read_bytes()
    body = whole[:-20]
    assert meaning_of_index(signed(body)) == meaning_of_index(whole)
    hidden = signed(body + b"HIDE\0\0\0\4data")
    assert meaning_of_index(hidden) not in ("", meaning_of_index(whole))
    cut = (signed(body + b"more"), signed(body[:-3]), signed(b"DIRC" + body[:4]))
    for spoilt in (b"", b"x" * 100, whole + b"x", *cut):
        assert meaning_of_index(spoilt) == ""


def test_no_bytes_break_the_reader(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    write(tmp_path, {"a": "a", "b/c": "c"})
    git(tmp_path, "add", "-A")
    body = (tmp_path / ".git/index").read_bytes()[:-20]
    chance = random.Random(3)
    for _ in range(2000):
        spoilt = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            spoilt[chance.randrange(len(spoilt))] = chance.randrange(256)
        meaning_of_index(signed(bytes(spoilt[: chance.randint(1, len(spoilt))])))


def test_a_name_that_no_path_can_have_makes_it_none(tmp_path: Path) -> None:
    """Each entry of version 4 can repeat all of the one before it, for two bytes."""
    entry = bytes(40) + bytes(20) + b"\0\0"
    longest, longer = b"n" * 4096, b"n" * 4097
    for name, is_index in ((longest, True), (longer, False)):
        body = b"DIRC" + (4).to_bytes(4, "big") + (1).to_bytes(4, "big") + entry + b"\0" + name + b"\0"
        assert bool(meaning_of_index(signed(body))) is is_index
