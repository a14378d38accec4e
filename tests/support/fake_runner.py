"""A runner of GitHub Actions without GitHub: the same folders, the same variables, the same `docker run`, and the
runner's own rules for what a step leaves behind."""

from __future__ import annotations

import functools
import io
import json
import os
import re
import secrets
import uuid
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import yaml
from support.runner_rules import Issue, ReadLog, RunnerRejects, parse_env_file, read_log, read_summary
from support.workflow_expressions import interpolate

from keystone_action.action import main as action

if TYPE_CHECKING:
    from support.container_step import ContainerStep
    from support.fake_github import FakeGitHub

ROOT = Path(__file__).parents[2]
EVENTS = ROOT / "tests" / "data" / "events"
REPOSITORY = "octo/agents"
TOKEN = "ghs_0123456789abcdefghijklmnopqrstuvwxyz"
RUNTIME_TOKEN = "runtime-token-that-nobody-may-see"
ID_TOKEN = "oidc-request-token-that-nobody-may-see"
MERGE_SHA = "3" * 40

ValueT = TypeVar("ValueT")

_FILE_COMMANDS = {
    "GITHUB_OUTPUT": "set_output_",
    "GITHUB_ENV": "set_env_",
    "GITHUB_PATH": "add_path_",
    "GITHUB_STATE": "save_state_",
    "GITHUB_STEP_SUMMARY": "step_summary_",
}


@functools.cache
def action_definition() -> Mapping[str, Any]:
    """action.yml, read once: every step asks for it."""
    return cast(Mapping[str, Any], yaml.safe_load((ROOT / "action.yml").read_text("utf-8")))


@dataclass
class StepResult:
    """What is left of a step, by the runner's rules. failed: exit code, or something that the runner rejected. state:
    what it keeps for its post step."""

    exit_code: int
    log: ReadLog
    raw_log: str
    outputs: dict[str, str] = field(default_factory=dict)
    summary: str = ""
    state: dict[str, str] = field(default_factory=dict)
    rejected: list[str] = field(default_factory=list)

    @property
    def failed(self) -> bool:
        return self.exit_code != 0 or bool(self.rejected)

    @property
    def issues(self) -> list[Issue]:
        return self.log.issues

    @property
    def text(self) -> str:
        """What people see of the log."""
        return "\n".join(self.log.shown)


class FakeRunner:
    """One job: a workspace, and steps that use the action in it.

    event: a fixture of tests/data/events without `.json`; its name starts with the event's own. owner: the user that
    the runner runs as, who owns the tree; None = ours. github: what the job's token and addresses are of; without one
    the steps post nothing, unless their inputs ask for it. token: its kind. server: where its repositories are.
    """

    def __init__(
        self,
        root: Path,
        *,
        event: str = "push",
        payload: Any = None,
        repository: str = REPOSITORY,
        actor: str = "ada",
        owner: int | None = None,
        github: FakeGitHub | None = None,
        token: str = "write",
    ) -> None:
        self.github = github
        self.token = token
        self.sha = MERGE_SHA
        """The commit that GitHub runs the workflow for."""
        self.server = "http://127.0.0.1:9"
        self.repository = repository
        self.actor = actor
        self.run_number = str(secrets.randbelow(10**10))
        self.attempt = 1
        self.job = "evaluate"
        self.job_index, self.job_total = 0, 1
        """Of the jobs of a matrix."""
        self.owner = os.geteuid() if owner is None else owner
        name = repository.split("/")[1]
        self.work = root / "_work"
        self.temp = self.work / "_temp"
        self.workspace = self.work / name / name
        self.home = self.temp / "_github_home"
        self.workflow = self.temp / "_github_workflow"
        self.file_commands = self.temp / "_runner_file_commands"
        for folder in (self.workspace, self.home, self.workflow, self.file_commands):
            folder.mkdir(parents=True)
        self.event_file = self.workflow / "event.json"
        self.happened(event, payload)

    def happened(self, event: str, payload: Any = None) -> None:
        """The steps from here on are of another event."""
        fixture = EVENTS / f"{event}.json"
        self.event_name = _event_name(event)
        text = fixture.read_text() if payload is None else payload if isinstance(payload, str) else json.dumps(payload)
        self.event_file.write_text(text)
        self.own()

    def own(self) -> None:
        """Gives everything that is there to the tree's owner, as whatever a checkout puts there belongs to it."""
        for path in (self.work, *self._tree()):
            with suppress(FileNotFoundError):
                os.chown(path, self.owner, self.owner, follow_symlinks=False)

    def _tree(self) -> list[Path]:
        """All that is in the tree, while a step may be running there."""
        walked = ((Path(folder), (*folders, *files)) for folder, folders, files in os.walk(self.work))
        return [folder / name for folder, names in walked for name in names]

    def foreign(self) -> list[str]:
        """What in the tree does not belong to its owner, and so breaks the next checkout on a runner that stays."""
        entries = (path for path in self._tree() if path.lstat().st_uid != self.owner)
        return sorted(str(path.relative_to(self.work)) for path in entries)

    def entries(self) -> set[str]:
        """Everything in the tree but the file commands."""
        return {
            str(path.relative_to(self.work)) for path in self._tree() if not path.is_relative_to(self.file_commands)
        }

    @property
    def mounts(self) -> list[tuple[Path, str]]:
        """Host folder → container folder, in the runner's order."""
        return [
            (self.temp, "/github/runner_temp"),
            (self.home, "/github/home"),
            (self.workflow, "/github/workflow"),
            (self.file_commands, "/github/file_commands"),
            (self.workspace, "/github/workspace"),
        ]

    def step(
        self,
        inputs: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        masked: tuple[str, ...] = (),
        evaluate: action.Evaluate | None = None,
    ) -> StepResult:
        """Runs the action in this process. masked: values that came from the workflow's secrets."""
        files = self._new_files()
        environ = self.environment(inputs, env=env, files=files)
        stream = io.StringIO()
        exit_code = action.main(environ, stdout=stream, evaluate=evaluate)
        return self._result(exit_code, stream.getvalue(), files, masked)

    def container_step(
        self,
        image: str,
        inputs: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        masked: tuple[str, ...] = (),
        socket: bool = False,
        network: str = "",
        timeout: float = 300,
    ) -> StepResult:
        """Runs the image with the runner's own command line. socket: whether the job has a Docker socket to mount.
        network: that of the job's services (`github_network_…`)."""
        step = self.start_container(image, inputs, env=env, masked=masked, socket=socket, network=network)
        return step.wait(timeout)

    def post_step(
        self,
        image: str,
        state: Mapping[str, str],
        inputs: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        network: str = "",
        timeout: float = 120,
    ) -> StepResult:
        """What runs at the end of the job, whatever became of the step: a new container of the same image with another
        entrypoint, the step's inputs, and what the step has kept (`state`) as STATE_…"""
        runs = action_definition()["runs"]
        kept = {f"STATE_{name}": value for name, value in state.items()}
        environ = {**(env or {}), **kept}
        entrypoint = runs["post-entrypoint"]
        step = self.start_container(image, inputs, env=environ, socket=True, network=network, entrypoint=entrypoint)
        return step.wait(timeout)

    def start_container(
        self,
        image: str,
        inputs: Mapping[str, str] | None = None,
        *,
        env: Mapping[str, str] | None = None,
        masked: tuple[str, ...] = (),
        socket: bool = False,
        network: str = "",
        entrypoint: str = "",
    ) -> ContainerStep:
        """The same, still running."""
        from support.container_step import ContainerStep

        files = self._new_files()
        environ = self._translated(self.environment(inputs, env=env, files=files))
        if "PATH" not in (env or {}):
            del environ["PATH"]
        name = f"{re.sub('[^a-zA-Z0-9]', '', image)}_{secrets.token_hex(3)}"
        command = self.docker_command(image, environ, name, socket=socket, network=network, entrypoint=entrypoint)
        environ.pop("PATH", None)
        return ContainerStep(command, environ, name, lambda code, log: self._result(code, log, files, masked))

    def docker_command(
        self, image: str, environ: Mapping[str, str], name: str, *, socket: bool, network: str, entrypoint: str
    ) -> list[str]:
        """`docker run` as the runner writes it: variables by name only, no user, no terminal, no init."""
        command = ["docker", "run", "--name", name, "--label", "5588e4", "--workdir", "/github/workspace", "--rm"]
        for key in sorted(environ.keys() - {"GITHUB_ACTIONS", "CI"}):
            # Our own client needs the machine's PATH; a step that sets one gets it by value.
            command += ["-e", f"PATH={environ['PATH']}" if key == "PATH" else key]
        command += ["-e", "GITHUB_ACTIONS=true", "-e", "CI=true"]
        if entrypoint:
            command += ["--entrypoint", entrypoint]
        if network:
            command += ["--network", network]
        if socket:
            command += ["-v", "/var/run/docker.sock:/var/run/docker.sock"]
        for host, container in self.mounts:
            command += ["-v", f"{host}:{container}"]
        return [*command, image]

    def environment(
        self, inputs: Mapping[str, str] | None, *, env: Mapping[str, str] | None, files: Mapping[str, Path]
    ) -> dict[str, str]:
        """The step's variables on the host: its own, the inputs with their defaults, and the runner's."""
        own = {"PATH": os.environ.get("PATH", ""), "HOME": str(self.home), **(env or {})}
        return {
            **own,
            **self._inputs(inputs or {}),
            **self._github(),
            **{key: str(path) for key, path in files.items()},
        }

    def _inputs(self, given: Mapping[str, str]) -> dict[str, str]:
        declared = action_definition()["inputs"]
        values = {name: self._expand(str(entry.get("default", ""))) for name, entry in declared.items()}
        if self.github is None:
            values |= {"comment": "never", "status-context": ""}
        else:
            values["github-token"] = self.github.token(self.token)
        values.update(given)
        return {f"INPUT_{name.replace(' ', '_').upper()}": value for name, value in values.items()}

    def _expand(self, text: str) -> str:
        workflow = f"{self.repository}/.github/workflows/evaluate.yml@refs/heads/main"
        github = {"token": TOKEN, "workflow_ref": workflow, "action": "__self", "job": self.job}
        strategy = {"job-index": self.job_index, "job-total": self.job_total}
        return interpolate(text, {"github": github, "strategy": strategy})

    def _github(self) -> dict[str, str]:
        return {
            "CI": "true",
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION": "__self",
            "GITHUB_ACTOR": self.actor,
            "GITHUB_API_URL": self.github.url if self.github else "http://127.0.0.1:9",
            "GITHUB_EVENT_NAME": self.event_name,
            "GITHUB_EVENT_PATH": str(self.event_file),
            "GITHUB_JOB": self.job,
            "GITHUB_REPOSITORY": self.repository,
            "GITHUB_REPOSITORY_OWNER": self.repository.split("/")[0],
            "GITHUB_RUN_ATTEMPT": str(self.attempt),
            "GITHUB_RUN_ID": self.run_number,
            "GITHUB_SHA": self.sha,
            "GITHUB_SERVER_URL": self.server,
            "GITHUB_WORKFLOW": "Evaluate",
            "GITHUB_WORKFLOW_REF": f"{self.repository}/.github/workflows/evaluate.yml@refs/heads/main",
            "GITHUB_WORKSPACE": str(self.workspace),
            "RUNNER_ARCH": "X64",
            "RUNNER_NAME": "fake",
            "RUNNER_OS": "Linux",
            "RUNNER_TEMP": str(self.temp),
            "RUNNER_WORKSPACE": str(self.workspace.parent),
            "ACTIONS_RUNTIME_URL": "http://127.0.0.1:9/runtime/",
            "ACTIONS_RUNTIME_TOKEN": RUNTIME_TOKEN,
            "ACTIONS_RESULTS_URL": "http://127.0.0.1:9/results/",
            "ACTIONS_CACHE_URL": "http://127.0.0.1:9/cache/",
            "ACTIONS_ID_TOKEN_REQUEST_URL": "http://127.0.0.1:9/oidc/",
            "ACTIONS_ID_TOKEN_REQUEST_TOKEN": ID_TOKEN,
        }

    def _new_files(self) -> dict[str, Path]:
        suffix = str(uuid.uuid4())
        files = {key: self.file_commands / f"{prefix}{suffix}" for key, prefix in _FILE_COMMANDS.items()}
        for path in files.values():
            path.touch()
            os.chown(path, self.owner, self.owner)
        return files

    def saved_states(self) -> list[dict[str, str]]:
        """What each step has kept so far for its post step, the latest last; of a step that still runs, or was killed,
        too."""
        files = sorted(self.file_commands.glob("save_state_*"), key=lambda path: path.stat().st_mtime_ns)
        return [parse_env_file(path.read_bytes().decode()) for path in files]

    def saved_state(self) -> dict[str, str]:
        """What the only step has kept; of several, the last word of any of them."""
        return {name: value for state in self.saved_states() for name, value in state.items()}

    def _translated(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Values that are, or start with, a mounted folder become the container's path; the deepest folder wins."""
        ordered = sorted(self.mounts, key=lambda mount: len(str(mount[0])), reverse=True)
        return {key: _translate(value, ordered) for key, value in environ.items()}

    def _result(self, exit_code: int, raw_log: str, files: Mapping[str, Path], masked: tuple[str, ...]) -> StepResult:
        log = read_log(raw_log, secrets=(TOKEN, *masked))
        result = StepResult(exit_code, log, raw_log, rejected=list(log.errors))
        if log.open_groups:
            result.rejected.append(f"{log.open_groups} groups were left open")
        result.outputs = _read(
            result, files["GITHUB_OUTPUT"], lambda path: parse_env_file(path.read_bytes().decode()), {}
        )
        result.summary = _read(
            result, files["GITHUB_STEP_SUMMARY"], lambda path: read_summary(path.read_bytes(), secrets=log.masks), ""
        )
        result.state = _read(result, files["GITHUB_STATE"], lambda path: parse_env_file(path.read_bytes().decode()), {})
        for key in ("GITHUB_ENV", "GITHUB_PATH"):
            if files[key].stat().st_size:
                result.rejected.append(f"something was written to {key}")
        return result


def _read(result: StepResult, path: Path, read: Callable[[Path], ValueT], default: ValueT) -> ValueT:
    try:
        return read(path)
    except (RunnerRejects, UnicodeDecodeError) as error:
        result.rejected.append(str(error))
        return default


def _translate(value: str, mounts: list[tuple[Path, str]]) -> str:
    for host, container in mounts:
        if value == str(host):
            return container
        if value.startswith(f"{host}/"):
            return container + value[len(str(host)) :]
    return value


def _event_name(fixture: str) -> str:
    known = (
        "pull_request_target",
        "pull_request",
        "merge_group",
        "workflow_run",
        "workflow_dispatch",
        "issue_comment",
        "push",
    )
    return next((name for name in known if fixture.startswith(name)), fixture)
