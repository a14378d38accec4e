"""`keystone clean`: what killed runs left goes, what is going or not ours stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.images import BASE

from keystone_action.cli import main as cli
from keystone_action.cli.arguments import CleanArguments
from keystone_action.cli.clean import choose
from keystone_action.engine.sweep import Leftover, find_leftovers, find_setup_images
from keystone_action.files import temporary
from keystone_action.files.temporary import find_temporary
from keystone_action.options.model import Options
from keystone_action.sandbox.processes import system_v
from keystone_action.system.run_lock import RunState, keep_lock, lock_path, new_run_id, run_lock, state_of

NO_ENGINE = "unix:///does/not/exist/docker.sock"
HOUR = 3600.0


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The system's temporary directory, as far as the command knows."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", NO_ENGINE)
    monkeypatch.delenv("RUNNER_TEMP", raising=False)
    monkeypatch.setattr("keystone_action.sandbox.own_programs._PLACES", ())
    return tmp_path


@pytest.fixture
def without_engine(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DOCKER_HOST", "")
    monkeypatch.setattr("keystone_action.engine.connect._DEFAULT", NO_ENGINE)
    return place


def folder(place: Path, run_id: str, *, age: float = 0.0) -> Path:
    made = place / f"keystone-{run_id}-{uuid.uuid4().hex[:8]}"
    (made / "cells").mkdir(parents=True)
    if age:
        os.utime(made, (time.time() - age,) * 2)
    return made


def dead(place: Path, run_id: str) -> None:
    lock_path(run_id, place).touch(mode=0o600)


def test_folders_of_dead_runs_go_and_of_others_stay(without_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed, going, unknown = new_run_id(), new_run_id(), new_run_id()
    gone, kept, young = (folder(without_engine, one) for one in (killed, going, unknown))
    stranger = without_engine / "keystone-of-mine"
    stranger.mkdir()
    dead(without_engine, killed)
    with run_lock(going):
        assert cli.main(["clean", "--dry-run"]) == 0
        assert gone.exists()
        assert capsys.readouterr().out.count("would remove") == 2
        assert cli.main(["clean"]) == 0
    assert [one.exists() for one in (gone, kept, young, stranger)] == [False, True, True, True]
    assert not lock_path(killed).exists()
    said = capsys.readouterr().out
    assert "removed 1 folder" in said
    assert "can't reach a Docker engine" in said


@pytest.mark.parametrize("on_engine", [False, True])
def test_what_is_left_on_an_engine_that_is_not_there_keeps_its_lock(without_engine: Path, *, on_engine: bool) -> None:
    run_id = new_run_id()
    with run_lock(run_id):
        keep_lock(run_id, on_engine=on_engine)
    left = folder(without_engine, run_id)
    assert cli.main(["clean"]) == 0
    assert not left.exists()
    assert lock_path(run_id).exists() is on_engine


def test_what_a_killed_process_had_for_itself_goes(without_engine: Path) -> None:
    """Such as the specs of a base commit; not that of a process that is there."""
    program = "from keystone_action.files.temporary import process_directory as d; print(d(), flush=True); {}"
    words = (program.format("input()"), program.format("import os; os.kill(os.getpid(), 9)"), program.format(""))
    environ = os.environ | {"TMPDIR": str(without_engine)}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": environ}
    started = [subprocess.Popen([sys.executable, "-c", one], **pipes) for one in words]
    kept, killed, ended = (Path(one.stdout.readline().strip()) for one in started)
    for one in started[1:]:
        one.communicate()
    assert (kept.is_dir(), killed.is_dir(), ended.is_dir()) == (True, True, False)
    assert cli.main(["clean"]) == 0
    assert (kept.is_dir(), killed.is_dir()) == (True, False)
    started[0].communicate("\n")
    assert list(without_engine.iterdir()) == []


def test_shared_memory_of_a_database_whose_watchers_were_killed_too_goes(without_engine: Path) -> None:
    """Of one that still runs, and of other programs, nothing."""
    made = "import ctypes, sys; print(ctypes.CDLL(None).shmget(0, 4096, 0o1600), flush=True); sys.stdin.read()"
    makers = [
        subprocess.Popen([sys.executable, "-c", made], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    segments = [int(one.stdout.readline()) for one in makers if one.stdout]
    gone, running, _ = makers
    for maker in (gone, running):
        run_id = new_run_id()
        dead(without_engine, run_id)
        data = folder(without_engine, run_id) / "sandboxes" / "postgres-abc" / "data"
        data.mkdir(parents=True)
        (data / "postmaster.pid").write_text(f"{maker.pid}\n/somewhere\n")
    for ended in (gone, makers[2]):
        ended.communicate("")
    assert cli.main(["clean"]) == 0
    left = {each.identifier for each in system_v.system_v_objects("shm")}
    running.communicate("")
    for one in (running, makers[2]):
        system_v.remove_made_by({one.pid}, None)
    assert [one in left for one in segments] == [False, True, True]
    assert not list(without_engine.glob("*/sandboxes"))


def test_every_name_that_we_give_is_known(tmp_path: Path) -> None:
    sources = Path(temporary.__file__).parents[1].rglob("*.py")
    names = {name for path in sources for name in re.findall(r'prefix="(keystone[^"]*)"', path.read_text())}
    assert "keystone-sandboxes-" in names
    assert len(names) >= 3
    for name in names:
        (tmp_path / f"{name}a0b1_2c3").mkdir()
    assert {one.path.name for one in find_temporary(tmp_path)} == {f"{name}a0b1_2c3" for name in names}


def test_nothing_to_do_is_said(without_engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["clean"]) == 0
    assert f"{without_engine}: nothing to remove" in capsys.readouterr().out


def test_the_runners_own_folder_is_looked_at_too(
    without_engine: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    temp = tmp_path_factory.mktemp("runner")
    monkeypatch.setenv("RUNNER_TEMP", str(temp))
    run_id = new_run_id()
    left = folder(temp, run_id)
    assert cli.main(["clean", "--run", run_id]) == 0
    assert not left.exists()


def test_all_and_one_run(without_engine: Path) -> None:
    one, other = new_run_id(), new_run_id()
    first, second = folder(without_engine, one), folder(without_engine, other)
    with run_lock(one):
        assert cli.main(["clean", "--run", one]) == 0
        assert (first.exists(), second.exists()) == (False, True)
        assert cli.main(["clean", "--all"]) == 0
    assert not second.exists()


def test_an_engine_that_refuses_is_exit_3_after_folders_are_gone(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_id = new_run_id()
    left = folder(place, run_id)
    assert cli.main(["clean", "--run", run_id]) == 3
    assert not left.exists()
    assert "there is no such socket" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [["--older-than", "soon"], ["--older-than", "0"], ["--all", "--run", "1"], ["--run", "a/b"], ["--run", ""], ["x"]],
)
def test_bad_calls(place: Path, words: list[str]) -> None:
    assert cli.main(["clean", *words]) == 2


def leftover(run_id: str, made: float) -> Leftover:
    return Leftover("container", f"{run_id}-{made}", "name", run_id, made)


def test_a_run_goes_as_a_whole_when_it_is_dead_or_its_youngest_thing_is_old() -> None:
    now = 1e9
    fates: dict[str, RunState] = {"going": "going", "dead": "dead"}
    things = [
        leftover("going", now - 9 * HOUR),
        leftover("dead", now - 1),
        leftover("old", now - 9 * HOUR),
        leftover("old", now - 2 * HOUR),
        leftover("long", now - 9 * HOUR),
        leftover("long", now - 60),
    ]

    def chosen(wanted: CleanArguments) -> set[str]:
        found = choose(things, wanted, now=now, fate=lambda run_id: fates.get(run_id, "unknown"))
        return {one.run_id for one in found}

    assert chosen(CleanArguments()) == {"dead", "old"}
    assert chosen(CleanArguments(older_than=30)) == {"dead", "old", "long"}
    assert chosen(CleanArguments(older_than=10 * HOUR)) == {"dead"}
    assert chosen(CleanArguments(everything=True)) == {"going", "dead", "old", "long"}


@pytest.fixture
def litter(engine: Any, image: Any) -> Iterator[tuple[str, str]]:
    """Two runs with a container, a network and a volume each."""
    runs = (new_run_id(), new_run_id())
    base = image(BASE)
    for run_id in runs:
        labels = {"keystone.run": run_id, "keystone.kind": "service"}
        network = engine.networks.create(f"keystone-{run_id}", labels=labels)
        volume = engine.volumes.create(f"keystone-{run_id}", labels=labels)
        engine.containers.run(
            base, ["sleep", "600"], detach=True, labels=labels, network=network.name, volumes=[f"{volume.name}:/v"]
        )
    yield runs
    for run_id in runs:
        cli.main(["clean", "--run", run_id])
        assert find_leftovers(engine, run_id) == []


@pytest.mark.docker
def test_on_the_engine_the_dead_go_and_the_living_stay(
    engine: Any,
    litter: tuple[str, str],
    place: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("DOCKER_HOST")
    killed, going = litter
    dead(place, killed)
    with run_lock(going):
        assert cli.main(["clean", "--dry-run"]) == 0
        said = capsys.readouterr().out
        assert said.count(f"of run {killed}") == 3
        assert f"would remove volume keystone-{killed} of run {killed}" in said
        assert f"of run {going}" not in said
        assert len(find_leftovers(engine, killed)) == 3
        assert cli.main(["clean"]) == 0
        said = capsys.readouterr().out
    assert find_leftovers(engine, killed) == []
    assert len(find_leftovers(engine, going)) == 3
    # Others' dead runs on the same engine may have gone with it.
    assert re.search(r"removed [1-9]\d* containers?, [1-9]\d* networks?, [1-9]\d* volumes?", said)
    assert going in said
    assert cli.main(["clean", "--run", going]) == 0


@pytest.mark.docker
def test_what_others_made_of_our_images_is_theirs(engine: Any, image: Any) -> None:
    """An image's labels go over to containers and images that are made of it."""
    tag = f"keystone-setup:{uuid.uuid4().hex}"
    theirs = f"test-{uuid.uuid4().hex[:10]}/theirs"
    labels = {"keystone.kind": "setup", "keystone.run": "", "keystone.setup": "x"}
    made = engine.containers.create(image(BASE), ["true"])
    own = None
    try:
        engine.api.commit(made.id, repository="keystone-setup", tag=tag.split(":")[1], conf={"Labels": labels})
        engine.images.get(tag).tag(theirs, "1")
        own = engine.containers.create(tag, ["true"])
        assert own.id not in {one.identifier for one in find_leftovers(engine)}
        images = {one.identifier for one in find_setup_images(engine)}
        assert tag in images
        assert f"{theirs}:1" not in images
    finally:
        for container in filter(None, (made, own)):
            container.remove()
        engine.images.remove(tag)
        engine.images.remove(f"{theirs}:1")


def test_while_a_run_goes_on_its_lock_says_so(without_engine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Options, RunState]] = []

    def evaluate(options: Options, *_: object) -> None:
        seen.append((options, state_of(options.caller.run_id or "")))
        raise KeyboardInterrupt

    monkeypatch.setattr("keystone_action.runs.evaluate", evaluate)
    monkeypatch.setenv("KEYSTONE_REGISTRY_MIRROR", "https://mirror.example/")
    assert cli.main(["run", "x"]) == 130
    ((options, state),) = seen
    assert state == "going"
    assert state_of(options.caller.run_id or "") == "unknown"
    assert (options.images.registry_mirror, options.images.user_logins) == ("mirror.example", True)
    assert list(without_engine.iterdir()) == []


def test_a_mirror_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("KEYSTONE_REGISTRY_MIRROR", "mirror")
    assert cli.main(["run", "x"]) == 2
    assert "KEYSTONE_REGISTRY_MIRROR" in capsys.readouterr().err
