"""Plays a workflow file without GitHub: jobs in the order of `needs`, each on a fake runner; our action where it is
used, GitHub's own actions as far as they move files, `run` steps by bash. Expressions are the file's own."""

from __future__ import annotations

import functools
import json
import os
import subprocess
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

import yaml
from support.artifacts import ArtifactError, Artifacts
from support.fake_runner import EVENTS, TOKEN, FakeRunner, StepResult, action_definition
from support.runner_rules import parse_env_file
from support.workflow_expressions import Function, Open, as_text, condition, interpolate, value_of

if TYPE_CHECKING:
    from support.fake_github import FakeGitHub

SUITE = """\
version: 1
id: suite
task: {prompt: "do it"}
agent: {type: command, command: 'test "$REPLICA" = 1 || touch done.txt', env: {REPLICA: "{{ cell.replica }}"}}
parallelism: {replicas: 3}
scenarios: [{id: add, prompt: a}, {id: edit, prompt: b}]
invariants:
  done: {check: {type: file_exists, path: done.txt}}
scoring: {replica_aggregation: RULE}
"""
"""Six cells, of which the second replica of each scenario fails."""
OURS = ("keystone-action/keystone-action@", "./")
"""How a step names our action: from elsewhere, and within its own repository."""
_DEFAULTS: dict[str, Any] = {"string": "", "boolean": False, "number": 0}

_READ_ONLY = ("pull_request_fork", "pull_request_deleted_fork")
"""Where the token may only read, whatever a workflow says, and there are no secrets."""
_EVENTS = (
    "pull_request_target",
    "pull_request",
    "merge_group",
    "workflow_run",
    "workflow_dispatch",
    "push",
    "schedule",
)
_SHELLS = {"": ["bash", "-e"], "bash": ["bash", "--noprofile", "--norc", "-eo", "pipefail"]}
"""How the runner starts a script; without `shell`, a pipe's failure goes unseen."""

Result = Literal["success", "failure", "cancelled", "skipped"]


Action = Callable[[str, FakeRunner, dict[str, str], dict[str, str], tuple[str, ...]], StepResult]
"""A step with our action: the job's id, its runner, inputs, env, and what the workflow's secrets are."""


def in_this_process(
    job: str, runner: FakeRunner, inputs: dict[str, str], env: dict[str, str], masked: tuple[str, ...]
) -> StepResult:
    """Without a container; the same code."""
    return runner.step(inputs, env=env, masked=masked)


@dataclass
class PlayedStep:
    """name: what tells it from others in a message. of_ours: what our action left, when it was that."""

    name: str
    outcome: Result
    conclusion: Result
    outputs: dict[str, str] = field(default_factory=dict)
    of_ours: StepResult | None = None
    log: str = ""


@dataclass
class PlayedJob:
    """One job, or one leg of its matrix."""

    result: Result
    steps: list[PlayedStep]
    outputs: dict[str, str]
    runner: FakeRunner | None = None

    @property
    def ours(self) -> StepResult:
        """What the only step with our action left."""
        (found,) = [step.of_ours for step in self.steps if step.of_ours is not None]
        return found


@dataclass
class Played:
    """jobs: legs by the job's id. outputs: of a workflow that was called."""

    jobs: dict[str, list[PlayedJob]]
    outputs: dict[str, str]
    artifacts: Artifacts

    def result(self, job: str) -> Result:
        return _joined([leg.result for leg in self.jobs[job]])


class Player:
    """One run of a workflow.

    checkout: puts the repository into a workspace. inputs, secrets: what the caller gives, by the rules of
    `workflow_call`. payload: what the event says, if not what its fixture does. github: where jobs comment that
    may. token: the kind that the caller gives the jobs without permissions of their own; the others have what they
    say. between: called with the id of each job before it starts, to break things. artifacts: those of an earlier
    run. action: runs our action for the job with this id. cancelled: legs (`run-1`: a job and its index) that are
    stopped after their first step, as by their `timeout-minutes` or by hand; entirely: and the whole workflow with
    the first of them, so that a job that was not started runs only if it says so.
    """

    def __init__(
        self,
        root: Path,
        workflow: str,
        checkout: Callable[[Path], None],
        *,
        inputs: Mapping[str, Any] | None = None,
        secrets: Mapping[str, str] | None = None,
        event: str = "push",
        payload: Mapping[str, Any] | None = None,
        github: FakeGitHub | None = None,
        token: str = "write",
        between: Callable[[str, Artifacts], None] | None = None,
        artifacts: Artifacts | None = None,
        action: Action = in_this_process,
        cancelled: Collection[str] = (),
        entirely: bool = False,
    ) -> None:
        self._root = root
        self._document = _document(workflow)
        self._checkout = checkout
        self._event = event
        self._payload = payload or json.loads((EVENTS / f"{event}.json").read_text())
        self._github_server = github
        self._token = token
        self._between = between
        self._secrets = Open({} if event in _READ_ONLY else secrets or {})
        self._artifacts = artifacts or Artifacts(root / "artifacts")
        self._action = action
        self._to_cancel, self._entirely, self._cancelled = frozenset(cancelled), entirely, False
        self._inputs = self._called_with(inputs or {})

    def play(self) -> Played:
        jobs: dict[str, list[PlayedJob]] = {}
        waiting: dict[str, Any] = dict(self._document["jobs"])
        while waiting:
            ready = next(name for name, job in waiting.items() if set(_needs(job)) <= set(jobs))
            if self._between is not None:
                self._between(ready, self._artifacts)
            jobs[ready] = self._job(ready, waiting.pop(ready), jobs)
        ends = {name: {"outputs": Open(_outputs(legs))} for name, legs in jobs.items()}
        declared = self._call.get("outputs", {})
        outputs = {name: interpolate(entry["value"], {"jobs": ends}) for name, entry in declared.items()}
        return Played(jobs, outputs, self._artifacts)

    @property
    def _call(self) -> dict[str, Any]:
        # PyYAML reads the key `on` as true.
        triggers = self._document[True]
        return (triggers.get("workflow_call") or {}) if isinstance(triggers, dict) else {}

    def _called_with(self, given: Mapping[str, Any]) -> dict[str, Any]:
        declared = self._call.get("inputs", {})
        unknown = set(given) - set(declared)
        assert not unknown, f"the workflow has no inputs {unknown}"
        assert set(self._secrets) <= set(self._call.get("secrets", self._secrets))
        return {
            name: given.get(name, entry.get("default", _DEFAULTS[entry["type"]])) for name, entry in declared.items()
        }

    def _job(self, name: str, job: dict[str, Any], done: Mapping[str, list[PlayedJob]]) -> list[PlayedJob]:
        ends = {need: _joined([leg.result for leg in done[need]]) for need in _needs(job)}
        needs = {need: {"result": ends[need], "outputs": Open(_outputs(done[need]))} for need in ends}
        contexts = {"needs": needs, "inputs": self._inputs, "secrets": self._secrets, "github": self._github()}
        status = _status(
            succeeded=all(result == "success" for result in ends.values()),
            failed="failure" in ends.values(),
            cancelled=self._cancelled,
        )
        if not condition(str(job.get("if", "true")), contexts, status):
            return [PlayedJob("cancelled" if self._cancelled else "skipped", [], {})]
        strategy = value_of(job.get("strategy", {}), contexts)
        legs = _legs(strategy.get("matrix", {}))
        return [self._leg(name, job, leg, index, len(legs), contexts) for index, leg in enumerate(legs)]

    def _leg(
        self, name: str, job: dict[str, Any], matrix: dict[str, Any], index: int, total: int, contexts: dict[str, Any]
    ) -> PlayedJob:
        root = self._root / f"{name}-{index}"
        root.mkdir()
        server, token = self._github_server, self._token_of(job)
        runner = FakeRunner(root, event=self._event, payload=self._payload, github=server, token=token)
        runner.job, runner.job_index, runner.job_total = name, index, total
        steps: dict[str, Any] = {}
        value_of(job["runs-on"], {**contexts, "matrix": matrix})
        strategy = {"job-index": index, "job-total": total}
        contexts = {
            **contexts,
            "github": Open(contexts["github"], job=name),
            "matrix": matrix,
            "strategy": strategy,
            "steps": steps,
            "job": {"container": Open(), "services": Open()},
        }
        contexts["env"] = Open(value_of({**self._document.get("env", {}), **job.get("env", {})}, contexts))
        played: list[PlayedStep] = []
        stopped = False
        for number, step in enumerate(job["steps"]):
            stopped = stopped or (number > 0 and f"{name}-{index}" in self._to_cancel)
            failed = any(one.conclusion == "failure" for one in played)
            status = _status(succeeded=not failed and not stopped, failed=failed, cancelled=stopped)
            played.append(self._step(step, runner, contexts, status))
            if "id" in step:
                last = played[-1]
                steps[step["id"]] = {
                    "outputs": Open(last.outputs),
                    "outcome": last.outcome,
                    "conclusion": last.conclusion,
                }
        outputs = {key: interpolate(text, contexts) for key, text in job.get("outputs", {}).items()}
        self._cancelled = self._cancelled or (stopped and self._entirely)
        failed = any(one.conclusion == "failure" for one in played)
        result: Result = "cancelled" if stopped else "failure" if failed else "success"
        return PlayedJob(result, played, outputs, runner)

    def _token_of(self, job: dict[str, Any]) -> str:
        if self._event in _READ_ONLY:
            return "read-only"
        rights = job.get("permissions", self._document.get("permissions"))
        if rights is None and self._event == "pull_request_dependabot":
            return "read-only"
        return self._token if rights is None else "write" if "write" in rights.values() else "read-only"

    def _step(
        self, step: dict[str, Any], runner: FakeRunner, contexts: dict[str, Any], status: Mapping[str, Function]
    ) -> PlayedStep:
        name = str(step.get("name") or step.get("id") or step.get("uses") or step.get("run"))
        if not condition(str(step.get("if", "true")), contexts, status):
            return PlayedStep(name, "skipped", "skipped")
        env = {key: interpolate(as_text(text), contexts) for key, text in step.get("env", {}).items()}
        env = {**{key: as_text(one) for key, one in contexts["env"].items()}, **env}
        inputs = {key: interpolate(as_text(text), contexts) for key, text in step.get("with", {}).items()}
        played = self._do(step, runner, inputs, env, contexts, name)
        if played.outcome == "failure" and value_of(step.get("continue-on-error", False), contexts):
            played.conclusion = "success"
        return played

    def _do(
        self,
        step: dict[str, Any],
        runner: FakeRunner,
        inputs: dict[str, str],
        env: dict[str, str],
        contexts: dict[str, Any],
        name: str,
    ) -> PlayedStep:
        uses = step.get("uses", "")
        try:
            if uses.startswith("actions/checkout@"):
                self._checkout(runner.workspace)
                runner.own()
            elif uses.startswith("actions/upload-artifact@"):
                self._artifacts.upload(inputs, runner.workspace)
            elif uses.startswith("actions/download-artifact@"):
                self._artifacts.download(inputs, runner.workspace)
            elif uses.startswith(OURS):
                _refuse_unknown(inputs)
                left = self._action(contexts["github"]["job"], runner, inputs, env, tuple(self._secrets.values()))
                outcome: Result = "failure" if left.failed else "success"
                return PlayedStep(name, outcome, outcome, left.outputs, left, left.raw_log)
            else:
                assert not uses, f"nobody here plays {uses}"
                shell = step.get("shell") or self._document.get("defaults", {}).get("run", {}).get("shell", "")
                return _script(runner, interpolate(step["run"], contexts), env, name, _SHELLS[shell])
        except ArtifactError as error:
            return PlayedStep(name, "failure", "failure", log=str(error))
        return PlayedStep(name, "success", "success")

    def _github(self) -> Open:
        return Open(
            event=_opened(self._payload),
            event_name=next(name for name in _EVENTS if self._event.startswith(name)),
            token=TOKEN,
            ref="refs/heads/main",
            repository="octo/agents",
            workflow="evaluate",
            workflow_ref="octo/agents/.github/workflows/evaluate.yml@refs/heads/main",
            run_id="1",
        )


@functools.cache
def _document(workflow: str) -> dict[Any, Any]:
    """Read once: some files are played again and again, and nobody writes into what they say."""
    return cast(dict[Any, Any], yaml.safe_load(workflow))


def _refuse_unknown(inputs: Mapping[str, str]) -> None:
    unknown = set(inputs) - set(action_definition()["inputs"])
    assert not unknown, f"the action has no inputs {unknown}"


def _script(runner: FakeRunner, text: str, env: dict[str, str], name: str, shell: list[str]) -> PlayedStep:
    """As the runner starts it: ends at the first command that fails."""
    output = runner.file_commands / f"set_output_{os.urandom(4).hex()}"
    output.touch()
    environ = {"PATH": os.environ["PATH"], "HOME": str(runner.home), **env, "GITHUB_OUTPUT": str(output)}
    done = subprocess.run(
        [*shell, "-c", text],
        cwd=runner.workspace,
        env=environ,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    outcome: Result = "failure" if done.returncode else "success"
    outputs = parse_env_file(output.read_text("utf-8"))
    return PlayedStep(name, outcome, outcome, outputs, log=done.stdout + done.stderr)


def _needs(job: dict[str, Any]) -> list[str]:
    needs = job.get("needs", [])
    return [needs] if isinstance(needs, str) else list(needs)


def _legs(matrix: dict[str, Any]) -> list[dict[str, Any]]:
    """The combinations of the lists, then those of `include` that only add."""
    lists = {name: values for name, values in matrix.items() if name not in {"include", "exclude"}}
    assert "exclude" not in matrix, "nobody here plays exclude"
    product_of = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())] if lists else []
    return [*product_of, *matrix.get("include", [])] or [{}]


def _joined(results: list[Result]) -> Result:
    worst: tuple[Result, ...] = ("failure", "cancelled")
    return next((one for one in worst if one in results), "skipped" if set(results) == {"skipped"} else "success")


def _outputs(legs: list[PlayedJob]) -> dict[str, str]:
    """Of a matrix, the last leg that says something decides."""
    return {name: text for leg in legs for name, text in leg.outputs.items() if text}


def _status(*, succeeded: bool, failed: bool, cancelled: bool) -> dict[str, Function]:
    """A job that its own limit stopped is not a cancelled workflow: what needs it is asked for success() in vain, but
    not told of a failure."""
    return {
        "success": lambda: succeeded and not cancelled,
        "failure": lambda: failed and not cancelled,
        "always": lambda: True,
        "cancelled": lambda: cancelled,
    }


def _opened(value: Any) -> Any:
    """An event's payload has what its kind has; anything else is null."""
    if isinstance(value, dict):
        return Open({name: _opened(one) for name, one in value.items()})
    return [_opened(one) for one in value] if isinstance(value, list) else value
