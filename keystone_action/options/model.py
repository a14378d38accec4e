"""`Options`: what a run, a plan, a validation or a merge is asked, and what its front door found out for it.

A new option is one field here. `python -m tools.option_pages` then writes it into action.yml, docs/action.md and
docs/command-line.md; parsers and help know it by themselves.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from keystone_action.options.option import Fillable, Group, option
from keystone_action.options.values import (
    read_duration,
    read_line,
    read_mirror,
    read_network,
    read_parameter,
    read_shard,
    read_status_name,
    read_variable,
)

if TYPE_CHECKING:
    from keystone_action.scoring.soundness import Baseline
    from keystone_action.spec.loading.spec_source import Dialects
    from keystone_action.spec.plan import FailedCells, Selection
else:  # our own code hands these over: nothing to check, and their modules cost start-up
    FailedCells = Baseline = Dialects = Any

FailOn = Literal["threshold", "regression", "error", "never"]
SELECTING = ("run", "plan")
LOADING = ("run", "validate", "plan")
DECIDING = ("run", "merge")
MAX_JOBS = 256
"""Jobs that GitHub makes of one matrix."""
MAX_ANNOTATIONS = 50
"""Annotations that GitHub shows of one job."""


class CellOptions(Group):
    """Which specs, and which of their cells."""

    specs: tuple[str, ...] = option(
        "Spec files, directories (searched for keystone.yaml and *.keystone.yaml) or globs.",
        (".",),
        commands=LOADING,
        metavar="SPEC",
        default_note="the directory .",
        input="spec",
        input_default="keystone.yaml, keystone.yml, evals/**",
    )
    replicas: int | None = option(
        "How often each scenario runs; replaces the specs' own number.",
        ge=1,
        le=1_000_000,
        flag="--replicas",
        commands=SELECTING,
        metavar="N",
        input="replicas",
    )
    params: Mapping[str, str] = option(
        "name=value, a parameter of the specs; the name of a matrix keeps that one value.",
        {},
        parse=read_parameter,
        flag="--param",
        commands=LOADING,
        metavar="K=V",
        input="params",
        input_note="One a line; on one line a comma separates where another name= follows.",
    )
    tags: tuple[str, ...] = option(
        "Only specs or scenarios with one of these tags.",
        (),
        flag="--tag",
        commands=SELECTING,
        metavar="T",
        input="tags",
    )
    filter: str | None = option(
        "Only specs, scenarios or cells whose id matches.", flag="--filter", commands=SELECTING, metavar="GLOB"
    )
    failed: Path | None = option(
        "Only the cells that did not pass in an earlier run: its folder, or its results.json.",
        flag="--failed",
        commands=SELECTING,
        metavar="DIR",
    )
    shard: tuple[int, int] | None = option(
        "i/N, the part of the cells that is run here, for example 1/3; auto reads it from the variables of the job.",
        parse=read_shard,
        flag="--shard",
        commands=SELECTING,
        metavar="I/N",
        input="shard",
    )
    agent: str | None = option(
        "The adapter of AgenticAssure suites.", flag="--agent", commands=LOADING, metavar="MODULE:CLASS"
    )
    spec_from: Literal["head", "base"] = option(
        "Whose specs run - head (the commit that is tested) or base (those of the base commit, with the files that they"
        " name, so that a change can't weaken its own gate).",
        "head",
        flag="--spec-from",
        input="spec-from",
    )


class RunningOptions(Group):
    """How cells are run, and what that may cost."""

    sandbox: Literal["auto", "process", "docker"] = option(
        "Where agents run - auto (in a container of the spec's base, else as processes, in a workflow of the action's"
        " container), process or docker (always in a container).",
        "auto",
        flag="--sandbox",
        input="sandbox",
    )
    max_concurrency: int | None = option(
        "How many cells run at once.",
        ge=1,
        le=1024,
        flag="--max-concurrency",
        metavar="N",
        default_note="the number of cores",
        input="max-concurrency",
    )
    resume: Path | None = option("Go on with an interrupted run, in its folder.", flag="--resume", metavar="DIR")
    retry_errors: int | None = option(
        "How often a cell that ended in error is tried again; replaces the specs' own number.",
        ge=0,
        le=100,
        flag="--retry-errors",
        metavar="N",
    )
    gateway: Literal["live", "record", "replay"] | None = option(
        "live sends what agents say to models through Keystone, for specs that don't ask for it themselves; record also"
        " writes down the answers; replay gives those again, without keys and costs. It replaces gateway.mode of all"
        " specs.",
        flag="--gateway",
        input="gateway",
    )
    judge_fast: str | None = option("The model behind judge-fast, as provider:model.", input="judge-fast")
    judge_strong: str | None = option("The model behind judge-strong, as provider:model.", input="judge-strong")
    cache_dir: Path | None = option(
        "Folder in the workspace or the runner's temporary folder that keeps answers of judges; not from the commit.",
        inside="workspace or temporary",
        input="cache-dir",
    )
    max_cost_usd: float | None = option(
        "Stop once agents and judges have cost this many US dollars; cells that did not run are errors. Each shard"
        " counts its own.",
        ge=0,
        le=1_000_000_000,
        flag="--max-cost-usd",
        metavar="X",
        input="max-cost-usd",
    )
    timeout: float | None = option(
        "No further cell starts after this long (90s, 10m, 1h30m); those that did not run are errors.",
        parse=read_duration,
        flag="--timeout",
        metavar="D",
        input="timeout",
    )
    keep: bool = option("Keep the workspaces, and say where.", False, flag="--keep")


class VerdictOptions(Group):
    """What passes, and what ends with exit code 1."""

    threshold: float | None = option(
        "A number from 0 to 1 that replaces the pass_threshold of every spec.",
        ge=0,
        le=1,
        flag="--threshold",
        metavar="X",
        input="threshold",
    )
    fail_on: FailOn = option(
        "What fails - threshold (a failed verdict), regression (what got worse than in the baseline; without one as"
        " threshold), error (only bad specs, errors, and checks that broke beside a failure) or never (errors still"
        " fail).",
        "threshold",
        flag="--fail-on",
        commands=DECIDING,
        metavar="RULE",
        input="fail-on",
    )
    fail_on_skipped: bool = option(
        "A skipped check fails its cell.", False, flag="--fail-on-skipped", input="fail-on-skipped"
    )
    fail_on_stale: bool = option(
        "A cell fails when its replay is stale (a request is not the one that was recorded), or when the change itself"
        " touched its recording.",
        False,
        flag="--fail-on-stale",
        input="fail-on-stale",
    )
    baseline: Path | Literal["auto"] | None = option(
        "Earlier results to compare with: results.json, or its folder.",
        flag="--baseline",
        commands=DECIDING,
        metavar="PATH",
        inside="workspace or temporary",
        input="baseline",
        input_note="auto takes the latest of the base branch, from the artifact keystone-results-<comment-key> (needs"
        " actions read).",
    )


class ReportOptions(Group):
    """Where results go, and what is made of them."""

    output: Path | None = option(
        "Folder for the results.",
        flag="--output",
        commands=DECIDING,
        metavar="DIR",
        default_note=".keystone/runs/<time>-<id>",
        input="output-dir",
        input_default="keystone-results",
        input_note="It is below the workspace, and holds neither results nor links already.",
    )
    summary_copy: Path | None = option(
        "Write summary.md there too.", flag="--summary", commands=DECIDING, metavar="PATH"
    )
    format: Literal["rich", "plain", "json"] | None = option(
        "The form of the report on stdout.",
        flag="--format",
        commands=DECIDING,
        default_note="rich on a terminal, else plain",
    )
    job_summary: bool = option("Whether the job has a summary.", True, input="summary")
    summary_template: Path | None = option(
        "Path of a Jinja template that replaces blocks of the summary's; the page on templates names them.",
        input="summary-template",
    )
    annotations: int = option(
        "At most so many annotations in all, 0 to 50, worst first; GitHub keeps ten of a kind for a step.",
        9,
        ge=0,
        le=MAX_ANNOTATIONS,
        input="annotations",
    )

    @property
    def folder(self) -> Path:
        """`output` in a workflow, where there always is one."""
        assert self.output is not None
        return self.output


class JobOptions(Group):
    """What a step of a workflow does, and how a run is split into jobs."""

    mode: Literal["run", "plan", "merge", "comment"] = option(
        "run, plan (runs nothing; makes the matrix of shards for the output matrix), merge (joins the results of shards"
        " into one verdict) or comment (runs nothing; in a workflow on workflow_run, posts what a fork's run found).",
        "run",
        input="mode",
    )
    shards: int | None = option(
        "How many jobs at most; there are never more than cells, nor than 256 in one matrix.",
        ge=1,
        le=1_000_000,
        flag="--shards",
        commands=("plan",),
        metavar="N",
        input="shards",
        input_note="For mode plan, which needs it.",
    )
    matrix: bool = option(
        "Print the matrix of these shards as GitHub takes it.", False, flag="--github", commands=("plan",)
    )
    results: tuple[Path, ...] = option(
        "The results of shards, or a folder with all of them.",
        (),
        commands=("merge",),
        metavar="DIR",
        inside="workspace or temporary",
        input="results",
        input_note="For mode merge, the folder that the artifacts of all shards were downloaded to; for mode comment,"
        " the folder that the other run's artifact was downloaded to.",
    )
    allow_pull_request_target: bool = option(
        "true runs code of forks on pull_request_target, workflow_run and issue_comment, beside secrets and a token"
        " that may write.",
        False,
        input="allow-pull-request-target",
    )


class PullRequestOptions(Group):
    """What a pull request is told, and how GitHub is reached."""

    github_token: str = option(
        "The token that comments and statuses are written with; the job needs pull-requests: write and statuses:"
        " write.",
        "",
        input="github-token",
        input_default="${{ github.token }}",
        secret=True,
    )
    comment: Literal["auto", "always", "on-failure", "never"] = option(
        "auto (on pull requests, when the token may write), always (elsewhere too, on the open pull requests of the"
        " commit), on-failure (on pull requests; an older comment then says when it passes again) or never.",
        "auto",
        input="comment",
    )
    comment_key: str = option(
        "What tells this step's comment from those of other steps and jobs; of jobs of one run that share a key it"
        " shows the worst.",
        "",
        input="comment-key",
        input_default="${{ github.workflow_ref }}-${{ github.job }}-${{ github.action }}-${{ strategy.job-index }}",
    )
    status_context: str = option(
        "Name of the commit status; none if empty. The jobs of a matrix have their index in it. Of jobs of one run that"
        " share a name it says the worst.",
        "",
        parse=read_status_name,
        input="status-context",
        input_default="keystone/${{ github.job }}${{ strategy.job-total > 1"
        " && format('/{0}', strategy.job-index) || '' }}",
    )
    ca_bundle: str | None = option(
        "A PEM file, or its text, with certificates to trust besides the usual ones when talking to GitHub (an"
        " Enterprise Server, a proxy).",
        input="ca-bundle",
    )


class ImageOptions(Group):
    """How images are had, and how a step reaches what is on its engine."""

    registry_mirror: str | None = option(
        "A registry that images of Docker Hub are pulled from instead, for example mirror.example:5000/hub.",
        parse=read_mirror,
        variable="KEYSTONE_REGISTRY_MIRROR",
        commands=("run",),
        input="registry-mirror",
    )
    registry_username: str | None = option(
        "User of the mirror, or of Docker Hub where there is no mirror; needs registry-password.",
        parse=read_line,
        secret=True,
        input="registry-username",
    )
    registry_password: str | None = option(
        "Password or token of that user; masked in the log. No other registry gets it.",
        parse=read_line,
        secret=True,
        input="registry-password",
    )
    docker_network: str | None = option(
        "A network of the Docker engine that this step joins, to reach external services in it. The job's own, if it"
        " has services or a container, is joined already.",
        parse=read_network,
        input="docker-network",
    )
    user_logins: bool = False
    """Whether `docker login` of our own user counts."""


class CallerOptions(Group):
    """Whoever asks: where, in which environment, and what may be handed on."""

    directory: Path = option(
        "Folder that the other paths are relative to; the workspace if empty.", Path(), input="working-directory"
    )
    env: tuple[str, ...] = option(
        "Names of environment variables of this step that secrets and agent.env of the specs may read. Never the"
        " runner's own.",
        (),
        parse=read_variable,
        input="env",
    )
    workspace: Path = Path()
    """Of a step: the checkout."""
    environ: Mapping[str, str] = Field({}, repr=False)
    """The only place that keys and secrets are read from."""
    run_id: str | None = None
    """Marks all that is made on a container engine; None = a new one."""
    scratch: Path | None = None
    """A folder for workspaces that the engine's machine sees too; None = the system's temporary one."""
    withheld: tuple[Path, ...] = ()
    """Files that no agent may see, beside those that specs name."""
    tolerate_missing: bool = False
    """The specs are defaults: a missing one is not an error while another one exists."""
    dialects: Dialects | None = None
    """The formats of other tools that specs may be in; None = none."""
    no_secrets_reason: str = ""
    """Why this run gets no secrets (a fork), said when one is missing; empty otherwise."""
    not_enforced: tuple[str, ...] = ()
    """Sentences on what this process can't do, whatever sandbox its cells have."""
    shard_variables: str = ""
    """Which variables `shard: auto` was read from; empty where it was not."""
    verbose: bool = False
    """Progress is told of each command and service."""


class EarlierResults(Group):
    """Earlier runs that options name, read."""

    failed_cells: FailedCells | None = None
    """Those that `failed` chooses."""
    baseline_run: Baseline | None = None
    """What this run is compared with."""
    baseline_problem: str = ""
    """Why there is no `baseline_run` although one was asked for; empty otherwise."""


class Options(Fillable):
    """One call of `keystone`, or one step of a workflow."""

    cells: CellOptions = Field(default_factory=CellOptions)
    running: RunningOptions = Field(default_factory=RunningOptions)
    verdict: VerdictOptions = Field(default_factory=VerdictOptions)
    reports: ReportOptions = Field(default_factory=ReportOptions)
    jobs: JobOptions = Field(default_factory=JobOptions)
    pull_request: PullRequestOptions = Field(default_factory=PullRequestOptions)
    images: ImageOptions = Field(default_factory=ImageOptions)
    caller: CallerOptions = Field(default_factory=CallerOptions)
    earlier: EarlierResults = Field(default_factory=EarlierResults)

    @property
    def needs_gateway(self) -> str:
        """The option that switches the gateway on; empty when none does."""
        if self.running.gateway is not None:
            return "--gateway"
        return "" if self.running.max_cost_usd is None else "--max-cost-usd"

    @property
    def selection(self) -> Selection:
        """Which cells of the specs are wanted."""
        from keystone_action.spec.plan import Selection

        cells = self.cells
        return Selection(
            params=cells.params,
            tags=cells.tags,
            filter=cells.filter,
            shard=cells.shard,
            replicas=cells.replicas,
            failed=self.earlier.failed_cells,
        )
