"""The action's front door through the fake runner, with an engine that answers at once: what it is asked, and what
becomes of its answer. `test_action_engine.py` has the real engine behind it."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from support.fake_runner import ID_TOKEN, RUNTIME_TOKEN, TOKEN, FakeRunner
from support.runner_rules import MAX_SUMMARY

from keystone_action.action.main import engine_environ, main
from keystone_action.errors import HarnessError, UsageError
from keystone_action.options.model import Options
from keystone_action.runner.progress import Progress
from keystone_action.scoring.results import CellResult, InvariantResult, PassRate, RunResult, SpecResult
from keystone_action.spec.loading.discovery import discover

SECRET = "correct-horse-battery"


@dataclass
class Answer:
    run: RunResult
    directory: Path
    exit_code: int


class Engine:
    """Remembers what it was asked; answers with the result it was made with."""

    def __init__(self, run: RunResult, exit_code: int = 0, say: Callable[[Progress], None] | None = None) -> None:
        self.run = run
        self.exit_code = exit_code
        self.say = say
        self.options: list[Options] = []

    def __call__(self, options: Options, _: object, progress: Progress) -> Answer:
        self.options.append(options)
        assert options.reports.output is not None
        (options.reports.output / "cells").mkdir(parents=True)
        for name in ("results.json", "summary.md", "report.html", "junit.xml", "cells/log"):
            (options.reports.output / name).write_text("x")
        if self.say:
            self.say(progress)
        return Answer(self.run, options.reports.output, self.exit_code)


def result(message: str = "customers.csv does not exist", *, cells: int = 1) -> RunResult:
    check = InvariantResult("written", "file_exists", "fail", 0.0, 1.0, False, message)
    failed = tuple(
        CellResult(f"demo-{n}", "demo", {}, n, "fail", 0.0, 1.5, None, None, (check,), reason=message)
        for n in range(cells)
    )
    spec = SpecResult(
        "demo",
        "keystone.yaml",
        "0" * 64,
        "spec",
        "fail",
        0.0,
        1.0,
        PassRate(0.0, 0.0, 0.8, 1),
        failed,
        positions={"written": 7},
    )
    counts = {"scenarios": 1, "cells": cells, "passed": 0, "failed": cells, "errors": 0, "skipped_checks": 0}
    return RunResult(
        run_id="run-1",
        keystone_version="0.1.0",
        git_sha=None,
        verdict="fail",
        composite=0.0,
        started_at="2026-01-01T00:00:00Z",
        duration_s=12.3456,
        specs=(spec,),
        counts=counts,
        usage={"cost_usd": 3.0, "spent_usd": 0.25},
        judge_usage={"cost_usd": 0.5},
    )


def test_a_failed_run_is_reported_everywhere(tmp_path: Path) -> None:
    step = FakeRunner(tmp_path).step(evaluate=Engine(result(), exit_code=1))
    assert step.exit_code == 1
    assert step.rejected == []
    assert step.outputs == {
        "verdict": "fail",
        "composite": "0",
        "passed": "0",
        "failed": "1",
        "errors": "0",
        "total": "1",
        "cost-usd": "0.75",
        "duration-seconds": "12.346",
        "results-path": "keystone-results/results.json",
        "summary-path": "keystone-results/summary.md",
        "html-path": "keystone-results/report.html",
        "junit-path": "keystone-results/junit.xml",
        "matrix": "",
        "comment-id": "",
        "comment-written": "",
    }
    assert "customers.csv" in step.summary
    (issue,) = step.issues
    assert (issue.level, issue.file, issue.line) == ("error", "keystone.yaml", 7)


def test_the_engine_is_asked_what_the_inputs_say(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path, event="pull_request_fork")
    (runner.workspace / "sub").mkdir()
    engine = Engine(result())
    runner.step(
        {
            "spec": "a.yaml",
            "threshold": "0.5",
            "replicas": "2",
            "params": "model=x",
            "tags": "fast",
            "max-concurrency": "3",
            "shard": "1/2",
            "fail-on": "never",
            "fail-on-skipped": "true",
            "fail-on-stale": "true",
            "gateway": "replay",
            "judge-fast": "anthropic:a",
            "timeout": "10m",
            "working-directory": "sub",
            "cache-dir": "cache",
        },
        evaluate=engine,
    )
    (options,) = engine.options
    sub = runner.workspace.resolve() / "sub"
    assert options.cells.specs == ("a.yaml",)
    assert (options.caller.directory, options.reports.output) == (sub, sub / "keystone-results")
    assert options.running.cache_dir == sub / "cache"
    assert (options.verdict.threshold, options.cells.replicas, options.running.max_concurrency) == (0.5, 2, 3)
    assert (options.cells.params, options.cells.tags, options.cells.shard) == ({"model": "x"}, ("fast",), (1, 2))
    assert (options.verdict.fail_on, options.verdict.fail_on_skipped, options.running.timeout) == ("never", True, 600.0)
    assert (options.verdict.fail_on_stale, options.running.gateway) == (True, "replay")
    assert options.running.judge_fast == "anthropic:a"
    assert "fork" in options.caller.no_secrets_reason


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["keystone.yaml"], ["keystone.yaml"]),
        (["keystone.yml"], ["keystone.yml"]),
        (["evals/a/keystone.yaml"], ["evals/a/keystone.yaml"]),
        (["keystone.yaml", "evals/b.keystone.yaml"], ["keystone.yaml", "evals/b.keystone.yaml"]),
    ],
)
def test_of_the_default_places_one_may_be_missing(tmp_path: Path, files: list[str], found: list[str]) -> None:
    runner = FakeRunner(tmp_path)
    for name in files:
        (runner.workspace / name).parent.mkdir(parents=True, exist_ok=True)
        (runner.workspace / name).touch()
    engine = Engine(result())
    runner.step(evaluate=engine)
    options = engine.options[0]
    specs = discover(options.cells.specs, options.caller.directory, tolerate_missing=options.caller.tolerate_missing)
    assert [str(path.relative_to(runner.workspace)) for path in specs] == found


def test_a_place_that_was_named_must_be_there(tmp_path: Path) -> None:
    engine = Engine(result())
    FakeRunner(tmp_path).step({"spec": "keystone.yaml"}, evaluate=engine)
    assert not engine.options[0].caller.tolerate_missing


def test_the_engine_sees_no_variable_of_the_runner(tmp_path: Path) -> None:
    engine = Engine(result())
    env = {
        "DB_PASSWORD": SECRET,
        "OTHER": "x",
        "ANTHROPIC_API_KEY": "sk-test-key",
        "OPENAI_BASE_URL": "http://127.0.0.1:9",
        "KEYSTONE_JUDGE_FAST": "a:b",
        "GITHUB_TOKEN": TOKEN,
        "https_proxy": "http://127.0.0.1:9",
    }
    FakeRunner(tmp_path).step({"env": "DB_PASSWORD\nMISSING"}, env=env, evaluate=engine)
    seen = engine.options[0].caller.environ
    wanted = ("DB_PASSWORD", "ANTHROPIC_API_KEY", "OPENAI_BASE_URL", "KEYSTONE_JUDGE_FAST", "PATH", "https_proxy")
    assert all(name in seen for name in wanted)
    assert not any(name.startswith(("GITHUB_", "ACTIONS_", "INPUT_", "RUNNER_")) for name in seen)
    assert not {TOKEN, RUNTIME_TOKEN, ID_TOKEN} & set(seen.values())
    assert "OTHER" not in seen
    assert SECRET not in repr(engine.options[0])


def test_names_of_the_runner_cannot_be_passed_on() -> None:
    seen = engine_environ({"GITHUB_TOKEN": "t", "ACTIONS_RUNTIME_TOKEN": "t", "INPUT_ENV": "x", "MINE": "1"}, ("MINE",))
    assert seen == {"MINE": "1"}


def test_secrets_are_masked_before_anything_is_said(tmp_path: Path) -> None:
    def say(progress: Progress) -> None:
        progress.secrets((SECRET, "abc", "", "line one\nline two"))
        progress.started(cells=2, finished=1, output=Path("/x"), notices=(f"a notice with {SECRET}",))
        progress.note(f"the agent said {SECRET}")
        progress.phase("demo-0", "agent")
        progress.cell("demo", result(f"{SECRET} and line two").specs[0].cells[0])

    step = FakeRunner(tmp_path).step(evaluate=Engine(result(SECRET), 1, say))
    assert SECRET in step.log.masks
    said = re.sub(r"^::add-mask::.*$", "", step.raw_log, flags=re.MULTILINE)
    assert SECRET not in said
    assert "line two" not in said
    assert SECRET not in step.summary
    assert "fewer than 4 characters" in step.text
    assert "1 of them finished before" in step.text


def test_keys_of_judges_are_masked(tmp_path: Path) -> None:
    env = {"ANTHROPIC_API_KEY": "sk-ant-0001", "OPENAI_API_KEY": "sk-0002", "ANTHROPIC_BASE_URL": "http://gateway"}
    step = FakeRunner(tmp_path).step(env=env, evaluate=Engine(result()))
    assert {"sk-ant-0001", "sk-0002", TOKEN} <= set(step.log.masks)
    assert "http://gateway" not in step.log.masks


def test_what_an_agent_says_is_never_a_command(tmp_path: Path) -> None:
    hostile = "x\n::set-output name=verdict::pass\n##[add-path]/evil\n::stop-commands::t\n\x1b[2J\u202e ```\n</details>"

    def say(progress: Progress) -> None:
        progress.started(cells=1, finished=0, output=Path("/x"), notices=(hostile,))
        progress.note(hostile)
        progress.cell("demo", result(hostile).specs[0].cells[0])

    step = FakeRunner(tmp_path).step(evaluate=Engine(result(hostile), 1, say))
    assert step.rejected == []
    allowed = {"group", "endgroup", "error", "add-mask", "notice", "warning"}
    assert {command.name for command in step.log.commands} <= allowed
    assert step.outputs["verdict"] == "fail"
    assert "\x1b" not in step.raw_log + step.summary


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("keystone.yaml:3:1: unknown key", help="remove it"), 2),
        (HarnessError("no room left on the disk"), 3),
        (KeyboardInterrupt(), 130),
        (RuntimeError("a bug of ours"), 3),
    ],
)
def test_what_keeps_a_run_from_finishing_is_reported(tmp_path: Path, error: BaseException, code: int) -> None:
    def engine(options: Options, _: object, progress: Progress) -> Answer:
        progress.started(cells=1, finished=0, output=Path("/x"), notices=())
        raise error

    step = FakeRunner(tmp_path).step(evaluate=engine)
    assert step.exit_code == code
    assert step.rejected == []
    assert step.outputs["verdict"] == "error"
    assert step.outputs["total"] == "0"
    assert step.outputs["results-path"] == ""
    said = {"the run was cancelled"} if code == 130 else set(str(error).split(": "))
    assert all(word in step.issues[0].message for word in said)
    assert step.summary
    assert "Traceback" not in step.raw_log + step.summary


def test_step_debugging_shows_phases_and_tracebacks(tmp_path: Path) -> None:
    def engine(options: Options, _: object, progress: Progress) -> Answer:
        progress.phase("demo-0", "setup")
        raise RuntimeError("a bug of ours")

    step = FakeRunner(tmp_path).step(env={"RUNNER_DEBUG": "1"}, evaluate=engine)
    assert "demo-0: setup" in step.text
    assert "Traceback" in step.text


def test_a_wrong_input_is_exit_2_with_outputs_and_a_summary(tmp_path: Path) -> None:
    engine = Engine(result())
    step = FakeRunner(tmp_path).step({"threshold": "85%", "mode": "plan"}, evaluate=engine)
    assert (step.exit_code, step.outputs["verdict"], engine.options) == (2, "error", [])
    assert "threshold" in step.issues[0].message
    assert "threshold" in step.summary
    assert step.rejected == []


@pytest.mark.parametrize("event", ["pull_request_target_fork", "workflow_run_fork"])
def test_foreign_code_beside_secrets_is_refused(tmp_path: Path, event: str) -> None:
    engine = Engine(result())
    step = FakeRunner(tmp_path, event=event).step(evaluate=engine)
    assert (step.exit_code, step.outputs["verdict"], engine.options) == (2, "error", [])
    assert "allow-pull-request-target" in step.issues[0].message


def test_a_malformed_event_is_a_warning(tmp_path: Path) -> None:
    step = FakeRunner(tmp_path, event="push", payload="{").step(evaluate=Engine(result()))
    assert step.exit_code == 0
    assert any(issue.level == "warning" and "event file" in issue.message for issue in step.issues)


def test_reporting_never_changes_the_verdict(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    missing = {"GITHUB_OUTPUT": Path("/does/not/exist/a"), "GITHUB_STEP_SUMMARY": Path("/does/not/exist/b")}
    environ = runner.environment({}, env={}, files=missing)
    stream = io.StringIO()
    assert main(environ, stdout=stream, evaluate=Engine(result(), 1)) == 1
    assert stream.getvalue().count("::warning") == 2
    environ = runner.environment({"output-dir": "other"}, env={}, files={})
    assert main(environ, stdout=stream, evaluate=Engine(result(), 0)) == 0


def test_no_summary_where_none_is_wanted(tmp_path: Path) -> None:
    assert FakeRunner(tmp_path).step({"summary": "false"}, evaluate=Engine(result())).summary == ""


def test_a_large_run_keeps_to_the_size_of_a_summary(tmp_path: Path) -> None:
    found = result("é" * 3000, cells=2000)
    # No two fail alike, since what does is told once.
    cells = tuple(replace(one, reason=f"{n} {one.reason}") for n, one in enumerate(found.specs[0].cells))
    large = replace(found, specs=(replace(found.specs[0], cells=cells),))
    step = FakeRunner(tmp_path).step(evaluate=Engine(large, 1))
    assert step.rejected == []
    assert MAX_SUMMARY // 2 < len(step.summary.encode()) <= MAX_SUMMARY
    assert step.log.dropped == 0


def test_the_workspace_belongs_to_its_owner_afterwards(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    outside = tmp_path / "outside"
    outside.touch()

    def say(progress: Progress) -> None:
        (runner.workspace / "deep" / "out" / "link").symlink_to(outside)

    is_root = os.geteuid() == 0
    owner = 4321 if is_root else os.geteuid()
    if is_root:
        os.chown(runner.workspace, owner, owner)
    runner.step({"output-dir": "deep/out"}, evaluate=Engine(result(), 0, say))
    made = list(runner.workspace.rglob("*"))
    assert {path.lstat().st_uid for path in made} == {owner}
    assert len(made) == 9
    assert outside.stat().st_uid == os.geteuid()


def test_the_engine_is_told_of_registries_and_where_docker_is(tmp_path: Path) -> None:
    engine = Engine(result())
    inputs = {
        "sandbox": "docker",
        "registry-mirror": "https://mirror.example/hub",
        "registry-username": "ada",
        "registry-password": "hunter22",
        "docker-network": "github_network_1",
    }
    where = {"DOCKER_HOST": "tcp://engine:2376", "DOCKER_TLS_VERIFY": "1", "DOCKER_CERT_PATH": "/certificates"}
    step = FakeRunner(tmp_path).step(inputs, env=where, evaluate=engine)
    (options,) = engine.options
    assert (options.running.sandbox, options.images.registry_mirror, options.images.docker_network) == (
        "docker",
        "mirror.example/hub",
        "github_network_1",
    )
    assert (options.images.registry_username, options.images.registry_password) == ("ada", "hunter22")
    assert options.images.user_logins is False
    assert where.items() <= options.caller.environ.items()
    assert "hunter22" in step.log.masks
    assert "hunter22" not in repr(options)
    assert step.raw_log.index("::add-mask::hunter22") < step.raw_log.index("verdict")


def test_two_steps_of_one_attempt_have_runs_of_their_own(tmp_path: Path) -> None:
    engine = Engine(result())
    runner = FakeRunner(tmp_path)
    first = runner.step(evaluate=engine)
    second = runner.step({"output-dir": "other"}, evaluate=engine)
    assert first.state["run"] == engine.options[0].caller.run_id
    assert second.state["run"] == engine.options[1].caller.run_id != first.state["run"]


def test_a_state_that_cannot_be_saved_is_a_warning(tmp_path: Path) -> None:
    runner = FakeRunner(tmp_path)
    environ = runner.environment({}, env={}, files={"GITHUB_STATE": Path("/does/not/exist/state")})
    stream = io.StringIO()
    assert main(environ, stdout=stream, evaluate=Engine(result())) == 0
    assert "containers may be left" in stream.getvalue()
