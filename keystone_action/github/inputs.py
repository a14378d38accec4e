"""The inputs of the action: `INPUT_*` variables → one frozen `Settings`, or every mistake at once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from keystone_action.errors import UsageError
from keystone_action.github.api.errors import BadSetting
from keystone_action.github.api.transport import read_ca_bundle
from keystone_action.github.reader import InputReader, variable
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.registry_names import parse_mirror
from keystone_action.spec.walking import walk

DEFAULT_SPECS = ("keystone.yaml", "keystone.yml", "evals/**")
DEFAULT_OUTPUT = "keystone-results"
RESULTS = ("results.json", "journal.jsonl")
"""What tells a folder of results."""
DEFAULT_ANNOTATIONS = 9
MAX_ANNOTATIONS = 50
"""What GitHub shows of one job."""
DENIED_PREFIXES = (*HIDDEN_VARIABLES, "RUNNER_", "STATE_")
"""Variables of the runner itself, its tokens among them: no input can pass them on."""

Mode = Literal["run", "plan", "merge", "comment"]
CommentPolicy = Literal["auto", "always", "on-failure", "never"]

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PARAM_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
MAX_CONTEXT = 255
"""Characters of a status' name."""
MAX_SHARDS = 256
"""Jobs that GitHub makes of one matrix."""
_LEFT = {
    True: "remove from the repository what the commit holds there",
    False: "none are in the commit, so an earlier step or run has left these; remove them before this step, "
    "or give each step a folder of its own",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What one step was asked to do.

    workspace: the checkout, absolute. directory: `working-directory`, which other paths are relative to.
    registry_mirror: stands for Docker Hub; registry_username, registry_password: for it, else for Docker Hub.
    shards: jobs at most, of mode plan. results: folders with the results of other jobs, absolute, of modes merge and
    comment. status_context: empty for no status. ca_bundle: certificates as PEM. comment_key: tells our comments apart.
    baseline: results to compare with, absolute; `auto` = the latest of the base branch. spec_from: whose specs run.
    output_dir, cache_dir: absolute. env: names of variables that secrets may read. annotations: at most so many
    in all. summary_template: absolute. timeout: seconds. verbose: step debugging is on.
    warnings: sentences about inputs that were read but look wrong.
    """

    workspace: Path
    directory: Path
    output_dir: Path
    mode: Mode = "run"
    shards: int | None = None
    results: tuple[Path, ...] = ()
    specs: tuple[str, ...] = DEFAULT_SPECS
    threshold: float | None = None
    replicas: int | None = None
    params: Mapping[str, str] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    sandbox: Literal["auto", "process", "docker"] = "auto"
    max_concurrency: int | None = None
    shard: tuple[int, int] | None = None
    fail_on: Literal["threshold", "regression", "error", "never"] = "threshold"
    baseline: Path | Literal["auto"] | None = None
    spec_from: Literal["head", "base"] = "head"
    fail_on_skipped: bool = False
    fail_on_stale: bool = False
    comment: CommentPolicy = "auto"
    comment_key: str = ""
    status_context: str = ""
    ca_bundle: str | None = None
    allow_pull_request_target: bool = False
    annotations: int = DEFAULT_ANNOTATIONS
    summary: bool = True
    summary_template: Path | None = None
    gateway: Literal["live", "record", "replay"] | None = None
    max_cost_usd: float | None = None
    judge_fast: str | None = None
    judge_strong: str | None = None
    env: tuple[str, ...] = ()
    timeout: float | None = None
    cache_dir: Path | None = None
    registry_mirror: str | None = None
    registry_username: str | None = None
    registry_password: str | None = field(default=None, repr=False)
    docker_network: str | None = None
    github_token: str = field(default="", repr=False)
    verbose: bool = False
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        """Reads all inputs. Raises UsageError that names each wrong input, its value and what was expected."""
        reader = InputReader(environ)
        settings = read_settings(reader)
        reader.raise_problems()
        return settings


IsCommitted = Callable[[Path, Path], bool]
"""Whether the commit that is checked out in a folder holds something at a path."""


def read_settings(reader: InputReader, *, is_committed: IsCommitted = lambda *_: False) -> Settings:
    """Asks the reader for every input there is. What is wrong is in `reader.problems`, with a default in its place.
    is_committed: asked of results that are there already, only to say who has left them."""
    workspace = reader.workspace()
    directory = reader.directory("working-directory", workspace)
    mode: Mode = reader.choice("mode", ("run", "plan", "merge", "comment"))
    return Settings(
        workspace=workspace,
        directory=directory,
        output_dir=_output_dir(reader, mode, workspace, directory, is_committed),
        mode=mode,
        shards=_shards(reader, mode),
        results=_results(reader, mode, directory, inside=(workspace, *reader.runner_temp())),
        specs=reader.words("spec") or DEFAULT_SPECS,
        threshold=reader.number("threshold", 0.0, 1.0),
        replicas=reader.integer("replicas", 1, 10_000),
        params=_params(reader),
        tags=reader.words("tags"),
        sandbox=reader.choice("sandbox", ("auto", "process", "docker")),
        max_concurrency=reader.integer("max-concurrency", 1, 1024),
        shard=_shard(reader, mode),
        fail_on=reader.choice("fail-on", ("threshold", "regression", "error", "never")),
        baseline=_baseline(reader, mode, directory, inside=(workspace, *reader.runner_temp())),
        spec_from=reader.choice("spec-from", ("head", "base")),
        fail_on_skipped=reader.boolean("fail-on-skipped", default=False),
        fail_on_stale=reader.boolean("fail-on-stale", default=False),
        comment=reader.choice("comment", ("auto", "always", "on-failure", "never")),
        comment_key=_comment_key(reader),
        status_context=_status_context(reader),
        ca_bundle=_ca_bundle(reader, directory),
        allow_pull_request_target=reader.boolean("allow-pull-request-target", default=False),
        annotations=_annotations(reader),
        summary=reader.boolean("summary", default=True),
        summary_template=reader.path("summary-template", directory, inside=(workspace,)),
        gateway=_gateway(reader),
        max_cost_usd=reader.number("max-cost-usd", 0, 1e9),
        judge_fast=reader.text("judge-fast"),
        judge_strong=reader.text("judge-strong"),
        env=_variables(reader),
        timeout=reader.duration("timeout"),
        cache_dir=reader.path("cache-dir", directory, inside=(workspace, *reader.runner_temp())),
        registry_mirror=_mirror(reader),
        registry_username=_login(reader, "registry-username", "registry-password"),
        registry_password=_login(reader, "registry-password", "registry-username"),
        docker_network=_network(reader),
        github_token=reader.text("github-token") or "",
        verbose=reader.environ.get("RUNNER_DEBUG") == "1",
        warnings=reader.unknown(),
    )


def _comment_key(reader: InputReader) -> str:
    """By default what action.yml says, for runners that leave defaults out; of a matrix those know no index."""
    names = ("GITHUB_WORKFLOW_REF", "GITHUB_JOB", "GITHUB_ACTION")
    return reader.text("comment-key") or "-".join([*(reader.environ.get(name, "") for name in names), "0"])


def _status_context(reader: InputReader) -> str:
    """The default when left out; none when empty or when GitHub would not take it."""
    value = reader.text("status-context")
    if value is None:
        left_out = variable("status-context") not in reader.environ
        return f"keystone/{reader.environ.get('GITHUB_JOB') or 'run'}" if left_out else ""
    if not value.isprintable() or len(value) > MAX_CONTEXT:
        reader.problem("status-context", f"one line of at most {MAX_CONTEXT} characters")
        return ""
    return value


def _ca_bundle(reader: InputReader, directory: Path) -> str | None:
    value = reader.text("ca-bundle")
    if value is None:
        return None
    try:
        return read_ca_bundle(value, directory)
    except BadSetting as error:
        reader.problems.append(UsageError(error.message, help=error.help))
        return None


def _annotations(reader: InputReader) -> int:
    count = reader.integer("annotations", 0, MAX_ANNOTATIONS)
    return DEFAULT_ANNOTATIONS if count is None else count


def _output_dir(reader: InputReader, mode: str, workspace: Path, directory: Path, is_committed: IsCommitted) -> Path:
    output = reader.path("output-dir", directory, inside=(workspace,)) or directory / DEFAULT_OUTPUT
    link = _link_on_the_way(directory / (reader.text("output-dir") or DEFAULT_OUTPUT), workspace)
    if link is not None:
        reader.problem("output-dir", "a folder that no link leads to", found=str(link.relative_to(workspace)))
    elif output == workspace or directory.is_relative_to(output):
        reader.problem("output-dir", "a folder of its own, below the workspace")
    elif ".git" in output.parts[len(workspace.parts) :]:
        reader.problem("output-dir", "a folder outside of .git")
    elif any(os.path.lexists(one) and not one.is_dir() for one in (output, *output.parents)):
        reader.problem("output-dir", "a folder; there is a file of that name")
    elif mode in ("run", "merge") and _is_taken(output):
        expected = f"a folder without results or links: {_LEFT[is_committed(workspace, output)]}"
        reader.problem("output-dir", expected, found=str(output.relative_to(workspace)))
    return output


def _link_on_the_way(output: Path, workspace: Path) -> Path | None:
    """The first part of a path below the workspace that is a link: a change can commit one, and have our files written
    wherever it leads, over those of the checkout, too."""
    if not output.is_relative_to(workspace):
        return None
    here = workspace
    for part in output.parts[len(workspace.parts) :]:
        here = here / part
        if os.path.islink(here):  # noqa: PTH114 - which never raises
            return here
    return None


def _is_taken(output: Path) -> bool:
    """Whether it holds results, or a link: uploading the folder would follow a link to files of the machine."""
    if any(os.path.lexists(output / name) for name in RESULTS):
        return True
    entries = (Path(top) / name for top, folders, files in walk(output) for name in (*folders, *files))
    return any(entry.is_symlink() for entry in entries)


def _mirror(reader: InputReader) -> str | None:
    value = reader.text("registry-mirror")
    if value is None:
        return None
    mirror = parse_mirror(value)
    if "@" in value:
        found = f"…@{value.rpartition('@')[2]}"
        reader.problem("registry-mirror", "no user in it: that one goes into registry-username", found=found)
    elif mirror is None:
        reader.problem("registry-mirror", "a registry, for example mirror.example or mirror.example:5000/hub")
    return mirror


def _login(reader: InputReader, name: str, other: str) -> str | None:
    """One half of a login, which is nothing without the other."""
    value = reader.text(name)
    if value is not None and reader.text(other) is None:
        reader.problem(other, f"a value, since {name} is set")
    elif value is not None and not value.isprintable():
        reader.problem(name, "one line without control characters")
    return value


def _gateway(reader: InputReader) -> Literal["live", "record", "replay"] | None:
    modes: tuple[Literal["live", "record", "replay"], ...] = ("live", "record", "replay")
    value = reader.text("gateway")
    if value is not None and value not in modes:
        reader.problem("gateway", "live, record or replay")
    return next((mode for mode in modes if mode == value), None)


def _network(reader: InputReader) -> str | None:
    value = reader.text("docker-network")
    if value is None:
        return None
    if value in ("host", "none", "bridge", "default") or value.startswith("container:"):
        reader.problem("docker-network", "a network of the job's own, for example ${{ job.container.network }}")
    elif not _NETWORK.fullmatch(value):
        reader.problem("docker-network", "the name of a network of the Docker engine")
    return value


def _shards(reader: InputReader, mode: str) -> int | None:
    shards = reader.integer("shards", 1, MAX_SHARDS)
    given = reader.text("shards") is not None
    if mode == "plan" and not given:
        reader.problem("shards", f"how many jobs to plan, from 1 to {MAX_SHARDS}, since mode is plan")
    elif mode != "plan" and given:
        reader.problem("shards", "nothing unless mode is plan; a job that runs cells takes shard")
    return shards


def _results(reader: InputReader, mode: str, directory: Path, *, inside: tuple[Path, ...]) -> tuple[Path, ...]:
    paths = reader.paths("results", directory, inside=inside)
    given = reader.text("results") is not None
    if mode == "merge" and not given:
        reader.problem("results", "the folder with the results of the shards, since mode is merge")
    elif mode == "comment" and len(paths) != 1:
        reader.problem("results", "the one folder with the results of the other run, since mode is comment")
    elif mode not in ("merge", "comment") and given:
        reader.problem("results", "nothing unless mode is merge or comment")
    return paths


def _baseline(
    reader: InputReader, mode: str, directory: Path, *, inside: tuple[Path, ...]
) -> Path | Literal["auto"] | None:
    """A file or folder of the name `auto` is `./auto`."""
    value = reader.text("baseline")
    if value is not None and mode not in ("run", "merge"):
        reader.problem("baseline", f"nothing, since mode is {mode}")
    return "auto" if value == "auto" else reader.path("baseline", directory, inside=inside)


def _shard(reader: InputReader, mode: str) -> tuple[int, int] | None:
    value = reader.text("shard")
    if value is None:
        return None
    if mode != "run":
        reader.problem("shard", f"nothing, since mode is {mode}")
    match = _SHARD.fullmatch(value)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        reader.problem("shard", "i/N with i from 1 to N, for example 1/3")
        return None
    return int(match[1]), int(match[2])


def _params(reader: InputReader) -> dict[str, str]:
    """`name=value`, one a line; on one line a comma separates only where another `name=` follows, since values may
    hold commas."""
    params: dict[str, str] = {}
    for line in (reader.text("params") or "").splitlines():
        for item in re.split(rf",(?=\s*{_PARAM_NAME}\s*=)", line):
            if not item.strip():
                continue
            name, equals, value = (part.strip() for part in item.partition("="))
            if not equals or not re.fullmatch(_PARAM_NAME, name):
                reader.problem("params", "name=value, one a line", found=item.strip())
            elif params.setdefault(name, value) != value:
                reader.problem("params", f"{name} once", found=f"{name}={params[name]} and {name}={value}")
    return params


def _variables(reader: InputReader) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(reader.words("env")))
    for name in names:
        if not _VARIABLE.fullmatch(name):
            reader.problem("env", "names of environment variables, without their values", found=name)
        elif name.upper().startswith(DENIED_PREFIXES):
            reader.problem("env", "variables of your own; the runner's are never passed on", found=name)
    return names
