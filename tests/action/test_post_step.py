"""The post step: what the step saved for it, and what it does with that, without the image (tests/images has that)."""

from __future__ import annotations

import io
import json
import os
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from support.fake_runner import ROOT, FakeRunner
from support.images import BASE
from support.runner_rules import parse_env_file, read_log

from keystone_action.action import post as after
from keystone_action.action.main import main
from keystone_action.errors import HarnessError
from keystone_action.files.temporary import find_temporary
from keystone_action.github.outputs import StepState, run_id_of_step
from keystone_action.options.model import Options
from keystone_action.runner.progress import Progress

NO_ENGINE = "unix:///does/not/exist/docker.sock"
Saved = dict[str, str]


@pytest.fixture(autouse=True)
def _no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keystone_action.engine.connect._DEFAULT", NO_ENGINE)


def interrupted(runner: FakeRunner, during: Callable[[Options], None], **inputs: str) -> tuple[Options, Saved]:
    """A step whose engine ends in the middle: what it was asked, and what the step had saved by then."""
    seen: list[tuple[Options, Saved]] = []
    state = runner.file_commands / "state"

    def engine(options: Options, _: object, progress: Progress) -> Any:
        seen.append((options, parse_env_file(state.read_text())))
        during(options)
        raise HarnessError("killed")

    environ = runner.environment(inputs, env=None, files={"GITHUB_STATE": state})
    assert main(environ, stdout=io.StringIO(), evaluate=engine) == 3
    return seen[0]


def post(runner: FakeRunner, saved: Mapping[str, str], **env: str) -> tuple[str, list[str]]:
    """The post step: its log, and the annotations in it."""
    stream = io.StringIO()
    state = {f"STATE_{name}": value for name, value in saved.items()}
    environ = runner.environment({}, env={"RUNNER_DEBUG": "1", **env, **state}, files={})
    assert after.main(environ, stdout=stream) == 0
    log = read_log(stream.getvalue())
    assert log.errors == []
    return "\n".join(log.shown), [issue.message for issue in log.issues]


def test_before_anything_starts_the_run_and_its_paths_are_saved(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    inputs = {"output-dir": "a/b", "cache-dir": "cache"}
    options, saved = interrupted(runner, lambda _: None, **inputs)
    assert saved["run"] == options.caller.run_id
    assert options.caller.run_id is not None
    assert options.caller.run_id.rsplit("-", 1)[0].endswith("-1")
    workspace = runner.workspace.resolve()
    assert set(json.loads(saved["left"])) == {str(workspace / name) for name in ("a", "a/b", "cache")}
    assert options.caller.scratch == runner.temp


def test_what_it_left_is_removed_and_what_others_left_is_not(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)

    def litter(options: Options) -> None:
        for run_id in (options.caller.run_id, "1-1-00000000"):
            (runner.temp / f"keystone-{run_id}-abcd1234" / "cells").mkdir(parents=True)
        (runner.temp / "keystone-of-mine").mkdir()

    _, saved = interrupted(runner, litter)
    log, issues = post(runner, saved)
    assert [one.path.name for one in find_temporary(runner.temp)] == ["keystone-1-1-00000000-abcd1234"]
    assert (runner.temp / "keystone-of-mine").exists()
    assert "1 folder" in log
    assert issues == []


def test_after_a_normal_end_there_is_nothing_to_do(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    _, saved = interrupted(runner, lambda _: None)
    log, issues = post(runner, saved)
    assert "left nothing behind" in log
    assert issues == []
    assert post(runner, saved, RUNNER_DEBUG="")[0] == ""


@pytest.mark.parametrize(
    "saved",
    [{}, {"run": ""}, {"run": "x; rm -rf /"}, {"run": "../.."}, {"run": "1-1-0000000"}, {"left": "[]"}],
)
def test_without_a_state_nothing_is_touched(tmp_path: Path, saved: dict[str, str]) -> None:
    runner = FakeRunner(tmp_path)
    (runner.temp / "keystone--abcd1234").mkdir()
    log, issues = post(runner, saved)
    assert "started nothing" in log
    assert issues == []
    assert (runner.temp / "keystone--abcd1234").exists()


def test_what_a_killed_step_wrote_goes_to_the_workspaces_owner(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    outside = tmp_path / "outside"
    outside.mkdir()
    is_root = os.geteuid() == 0
    owner = 4321 if is_root else os.geteuid()
    if is_root:
        os.chown(runner.workspace, owner, owner)
    _, saved = interrupted(runner, lambda _: None, **{"output-dir": "a/b"})
    (runner.workspace / "a" / "b" / "cells").mkdir(parents=True)
    (runner.workspace / "a" / "b" / "link").symlink_to(outside)
    saved["left"] = json.dumps([*json.loads(saved["left"]), str(outside), str(runner.workspace / "a/b/link"), "/"])
    _, issues = post(runner, saved)
    assert issues == []
    assert {path.lstat().st_uid for path in (runner.workspace / "a").rglob("*")} == {owner}
    assert outside.stat().st_uid == os.geteuid()
    assert Path("/").stat().st_uid == 0


@pytest.mark.parametrize("left", ["", "{", "null", "[1]", '[["a"]]', "[" * 5000, '["a\\u0000b"]'])
def test_a_broken_state_breaks_nothing(tmp_path: Path, left: str) -> None:
    log, issues = post(FakeRunner(tmp_path), {"run": "1-1-00000000", "left": left})
    assert "left nothing behind" in log
    assert issues == []


def test_an_engine_that_refuses_is_a_warning(tmp_path: Path) -> None:
    log, issues = post(FakeRunner(tmp_path), {"run": "1-1-00000000"}, DOCKER_HOST="tcp://127.0.0.1:1")
    assert len(issues) == 1
    assert "connection refused" in issues[0]
    assert "Traceback" not in log


@pytest.mark.docker
def test_containers_networks_and_volumes_go(
    tmp_path: Path, engine: Any, image: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    run_id = f"1-1-{uuid.uuid4().hex[:8]}"
    labels = {"keystone.run": run_id, "keystone.kind": "service"}
    network = engine.networks.create(f"keystone-{run_id}", labels=labels)
    volume = engine.volumes.create(f"keystone-{run_id}", labels=labels)
    base = image(BASE)
    engine.containers.run(
        base, ["sleep", "600"], detach=True, labels=labels, network=network.name, volumes=[f"{volume.name}:/v"]
    )
    host = {"DOCKER_HOST": os.environ["DOCKER_HOST"]} if "DOCKER_HOST" in os.environ else {}
    log, issues = post(FakeRunner(tmp_path), {"run": run_id}, **host)
    assert "1 container, 1 network, 1 volume" in log
    assert issues == []
    assert engine.containers.list(all=True, filters={"label": f"keystone.run={run_id}"}) == []


@pytest.mark.parametrize("environ", [{}, {"GITHUB_RUN_ID": "../x", "GITHUB_RUN_ATTEMPT": "1 2"}])
def test_an_id_is_safe_whatever_the_runner_says(environ: dict[str, str]) -> None:
    assert run_id_of_step(environ).startswith("0-0-")


@given(st.text(max_size=40), st.text(max_size=40))
def test_no_state_breaks_the_reader(run: str, left: str) -> None:
    found = StepState.load({"STATE_run": run, "STATE_left": left})
    assert found is None or found.run_id == run
    assert StepState.load({"STATE_run": "1-1-00000000", "STATE_left": left}) is not None


def test_the_image_has_what_the_action_names() -> None:
    entry = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["post-entrypoint"]
    copied = [line.split()[1:] for line in (ROOT / "Dockerfile").read_text().splitlines() if line.startswith("COPY ")]
    assert entry in {target + source for *sources, target in copied for source in sources}
    script = ROOT / Path(entry).name
    assert os.access(script, os.X_OK)
    # The post step is started as the step is; of a script the kernel passes on one argument, which `env` splits.
    env, split, *interpreter = script.read_text().splitlines()[0].removeprefix("#!").split()
    assert (env, split) == ("/usr/bin/env", "-S")
    words = ", ".join(f'"{word}"' for word in interpreter)
    assert words in (ROOT / "Dockerfile").read_text().replace(" \\\n   ", "")
