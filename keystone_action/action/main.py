"""The action's front door: inputs → options → engine → annotations, outputs, summary → exit code."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TextIO

from keystone_action.action.bases import find_baseline, find_change_base
from keystone_action.dialects.known import DIALECTS
from keystone_action.engine.connect import VARIABLES as ENGINE_VARIABLES
from keystone_action.errors import (
    EXIT_CANCELLED,
    EXIT_ERROR,
    EXIT_PASS,
    Cancelled,
    HarnessError,
    KeystoneError,
    OutputError,
    UsageError,
)
from keystone_action.files.copies import hand_over, missing_folders
from keystone_action.files.descent import is_empty
from keystone_action.gate.base_commit import refuse_committed_answers
from keystone_action.gate.change_base import ChangeBase
from keystone_action.github.event import Event, read_event
from keystone_action.github.inputs import InputReader, read_options
from keystone_action.github.links import run_url
from keystone_action.github.log_commands import LogCommands, annotations_of, annotations_of_spec_error
from keystone_action.github.outputs import (
    StepState,
    commented_values,
    failed_run,
    in_workflow,
    output_values,
    planned_values,
    run_id_of_step,
    write_outputs,
)
from keystone_action.github.progress import LogProgress
from keystone_action.github.pulls import spec_links, whose_code
from keystone_action.github.reporting import Reporting
from keystone_action.github.summary import Summaries, SummaryTemplate, append_text
from keystone_action.options.model import Options
from keystone_action.report.sentences.compared import baseline_lines, gate_lines
from keystone_action.report.words import count
from keystone_action.runner.progress import Progress
from keystone_action.scoring.results import RunResult
from keystone_action.spec.loading.diagnostics import SpecError
from keystone_action.system import signals
from keystone_action.system.shortage import machine_shortage

_PASSED_ON = ENGINE_VARIABLES | {"HOME", "LANG", "PATH", "TMPDIR", "TZ", "SSL_CERT_FILE", "SSL_CERT_DIR"}
_PASSED_ON_ANY_CASE = frozenset({"HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"})
_PASSED_ON_PREFIXES = ("ANTHROPIC_", "OPENAI_", "GEMINI_", "GOOGLE_GEMINI_", "KEYSTONE_JUDGE_", "LC_")
_KEY_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")


class EngineResult(Protocol):
    """What the engine hands back: `keystone_action.runs.Evaluation`."""

    @property
    def run(self) -> RunResult: ...

    @property
    def directory(self) -> Path: ...

    @property
    def exit_code(self) -> int: ...


Evaluate = Callable[[Options, ChangeBase, Progress], EngineResult]


def main(environ: Mapping[str, str], *, stdout: TextIO, evaluate: Evaluate | None = None) -> int:
    """Runs one step of a workflow and returns its exit code. Never raises: what goes wrong is said in the log,
    the outputs and the summary."""
    commands = LogCommands(stdout, verbose=environ.get("RUNNER_DEBUG") == "1")
    step = _Step(environ, commands)
    started = time.monotonic()
    try:
        return step.run(evaluate)
    except KeyboardInterrupt:
        return step.failed(Cancelled("the run was cancelled"), time.monotonic() - started)
    except KeystoneError as error:
        return step.failed(error, time.monotonic() - started)
    except BaseException as error:  # noqa: BLE001 - exit code 1 would call a bug of ours (a panic, too) a failed agent
        commands.debug(traceback.format_exc())
        if signals.stop_signal():  # which broke what was under way
            return step.failed(Cancelled("the run was cancelled"), time.monotonic() - started)
        if lacking := machine_shortage(error):
            return step.failed(HarnessError(lacking), 0.0)
        message = f"Keystone broke: {type(error).__name__}: {error}"
        return step.failed(HarnessError(message, help="please report it, with step debugging on"), 0.0)


class _Step:
    """One call of `main`: what is known so far, so that a failure at any point can still be reported."""

    def __init__(self, environ: Mapping[str, str], commands: LogCommands) -> None:
        self.environ = environ
        self.commands = commands
        self.options: Options | None = None
        self.warnings: tuple[str, ...] = ()
        self.reporting: Reporting | None = None
        self.event = Event()
        self.needs_checkout = False  # nobody is told to check out a fork where that is refused
        self.summaries = Summaries(None, commands.warning)

    def run(self, evaluate: Evaluate | None) -> int:
        _mask_keys(self.environ, self.commands)
        event = self.event = read_event(self.environ)
        options = self.options = self._read_options(event)
        self._warn(options, event)
        if options.jobs.mode == "comment":
            return self._comment(options)
        if not options.jobs.allow_pull_request_target:
            whose_code(event, options, self.environ, self.commands.log).refuse_foreign_code()
        self.needs_checkout = options.jobs.mode != "merge"
        if options.jobs.mode == "plan":
            return self._plan(options, event)
        if self.reporting is not None:
            self.reporting.start()
        evaluation = self._evaluate(options, event, evaluate)
        # A signal that comes later breaks off what is told to others, and nothing else.
        code = EXIT_CANCELLED if signals.stop_signal() else evaluation.exit_code
        found = annotations_of(
            evaluation.run,
            directory=options.caller.directory,
            workspace=options.caller.workspace,
            limit=options.reports.annotations,
            issued=self.commands.issued,
        )
        for annotation in found:
            self.commands.annotate(annotation)
        self._report(evaluation.run, evaluation.directory)
        return code

    def _read_options(self, event: Event) -> Options:
        """Who is to be told of a wrong input is known, as far as the inputs that say so are right."""
        reader = InputReader(self.environ)
        options = read_options(reader, is_committed=_is_committed)
        if options.jobs.mode in ("run", "merge"):
            self.reporting = Reporting(options, event, self.environ, self.commands)
        self.warnings = reader.unknown()
        reader.raise_problems()
        if options.caller.shard_variables and options.cells.shard is not None:
            index, count = options.cells.shard
            self.commands.log(f"this is shard {index}/{count}, by {options.caller.shard_variables}")
        if self.reporting is not None:
            self.reporting.directory = options.reports.folder
        if options.reports.summary_template is not None and options.jobs.mode in ("run", "merge"):
            # Before the agent can see to it that another one is read.
            template = SummaryTemplate.read(options.reports.summary_template, options.caller.workspace)
            self.summaries = Summaries(template, self.commands.warning)
        return options

    def failed(self, error: KeystoneError, duration_s: float) -> int:
        """Reports what kept a run from being finished."""
        self.commands.endgroup()
        if isinstance(error, SpecError):
            error = self._show_spec_errors(error)
        message = in_workflow(error, self._workspace)
        if self.needs_checkout and isinstance(error, UsageError) and _is_empty(self._workspace):
            message += "\nthe workspace is empty: put a step with actions/checkout before this one"
        if not isinstance(error, SpecError):
            self.commands.error(message)
        self._report(failed_run(message, self.environ, duration_s, cancelled=isinstance(error, Cancelled)), None)
        return error.exit_code or EXIT_ERROR

    def _show_spec_errors(self, error: SpecError) -> SpecError:
        """In the log with the lines of the file, and each at its line. Returns them with the paths of the checkout."""
        from keystone_action.spec.loading.diagnostics import with_short_paths

        workspace, limit = self._workspace, (self.options or Options()).reports.annotations
        short = with_short_paths(error, workspace)
        self.commands.log(short.message)
        issued = self.commands.issued
        for annotation in annotations_of_spec_error(short, workspace=workspace, limit=limit, issued=issued):
            self.commands.annotate(annotation)
        return short

    @property
    def _workspace(self) -> Path:
        return self.options.caller.workspace if self.options else Path(self.environ.get("GITHUB_WORKSPACE") or ".")

    def _warn(self, options: Options, event: Event) -> None:
        for warning in self.warnings:
            self.commands.warning(warning)
        if event.problem:
            self.commands.warning(event.problem)
        for name in options.caller.env:
            if name not in self.environ:
                self.commands.log(f"{name} is named by the input env, but not set in this step's environment")

    def _comment(self, options: Options) -> int:
        """Posts what another run found; nothing runs, and its verdict is not this job's."""
        from keystone_action.github.foreign_comment import ForeignComment

        foreign = ForeignComment(options, self.environ, self.commands)
        posted, well = foreign.post()
        self._write(commented_values(posted.outputs(options.caller.workspace)))
        return EXIT_PASS if well else EXIT_ERROR

    def _plan(self, options: Options, event: Event) -> int:
        """Says which jobs a matrix needs; nothing runs."""
        from keystone_action.report.write import render_plan
        from keystone_action.runs import plan_shards

        options = self._completed(options, event, "")
        planned = plan_shards(options, find_change_base(options, self.environ, self.commands))
        self._write(planned_values(planned.matrix, planned.plan.total))
        self._summarize(
            lambda path: append_text(path, lambda _: render_plan(list(planned.specs()), len(planned.names)))
        )
        cells, jobs = count(planned.plan.total, "cell"), count(len(planned.names), "job")
        self.commands.log(f"planned: {cells} in {jobs}")
        return EXIT_PASS

    def _evaluate(self, options: Options, event: Event, evaluate: Evaluate | None) -> EngineResult:
        left = [path for path in (options.reports.folder, options.running.cache_dir) if path is not None]
        made = [folder for path in left for folder in missing_folders(path, options.caller.workspace)]
        state = StepState(run_id_of_step(self.environ), (*left, *made))
        self._save(state)
        try:
            if options.jobs.mode == "merge":
                return self._join(self._completed(options, event, state.run_id))
            if options.running.cache_dir is not None:
                refuse_committed_answers(options.running.cache_dir, options.caller.workspace)
            base = find_change_base(options, self.environ, self.commands)
            return self._run(self._completed(options, event, state.run_id), base, evaluate or _engine())
        finally:
            hand_over([*left, *made], options.caller.workspace)

    def _completed(self, options: Options, event: Event, run_id: str) -> Options:
        """With what is found out for a run besides its inputs."""
        baseline, problem = find_baseline(options, self.environ, self.commands)
        temp, template = self.environ.get("RUNNER_TEMP", ""), options.reports.summary_template
        return options.having(
            environ=engine_environ(self.environ, options.caller.env),
            dialects=DIALECTS,
            run_id=run_id,
            # Our own /tmp is inside this container; the runner's folder lies on the engine's machine too.
            scratch=Path(temp) if temp and Path(temp).is_dir() else None,
            withheld=() if template is None else (template,),
            no_secrets_reason=event.no_secrets_reason,
            baseline_run=baseline,
            baseline_problem=problem,
        )

    def _run(self, options: Options, base: ChangeBase, engine: Evaluate) -> EngineResult:
        progress = LogProgress(self.commands, None if self.reporting is None else self.reporting.live)
        try:
            return engine(options, base, progress)
        finally:
            progress.finished()

    def _join(self, options: Options) -> EngineResult:
        from keystone_action.runs import join

        joined = join(options)
        for notice in joined.run.notices:
            self.commands.log(notice)
        self.commands.log(f"joined the results of {count(joined.run.counts.get('cells', 0), 'cell')}")
        return joined

    def _save(self, state: StepState) -> None:
        """Before anything is started: the post step knows whom to clean up after, even if we are killed."""
        try:
            state.save(self.environ)
        except OutputError as error:
            self.commands.warning(f"{error.message}; after a cancelled run, containers may be left")

    def _report(self, run: RunResult, directory: Path | None) -> None:
        """Writes outputs and summary, then tells the pull request. What can't be written or posted is a warning:
        reporting never changes the verdict, and what is written stays when posting fails."""
        self._write(output_values(run, directory=directory, workspace=self._workspace))
        if self.options is not None:
            self.summaries.run_url = run_url(self.environ)
            self.summaries.links = spec_links(run, self.options, self.event, self.environ, self.commands.log)
        self._write_summaries(run, directory)
        for line in (*gate_lines(run.spec_changes), *baseline_lines(run.baseline, run)):
            self.commands.log(line)
        score = "" if run.composite is None else f", composite {run.composite:.2f}"
        self.commands.log(f"verdict: {run.verdict}{score}")
        if self.reporting is not None:
            posted = self.reporting.finish(run, links=self.summaries.links)
            if posted.ids or posted.file:
                self._write(posted.outputs(self._workspace))

    def _write_summaries(self, run: RunResult, directory: Path | None) -> None:
        try:
            if directory is not None:
                self.summaries.replace_file(run, directory, self._workspace)
        except OutputError as error:
            self.commands.warning(error.message)
        self._summarize(lambda path: append_text(path, lambda room: self.summaries.text(run, room)))

    def _write(self, outputs: Mapping[str, str]) -> None:
        try:
            if path := self.environ.get("GITHUB_OUTPUT"):
                write_outputs(Path(path), outputs)
        except OutputError as error:
            self.commands.warning(error.message)

    def _summarize(self, append: Callable[[Path], bool]) -> None:
        try:
            path = self.environ.get("GITHUB_STEP_SUMMARY")
            if path and (self.options is None or self.options.reports.job_summary) and not append(Path(path)):
                self.commands.warning("the summary of this step is full; see the file that summary-path names")
        except OutputError as error:
            self.commands.warning(error.message)


def _is_committed(directory: Path, path: Path) -> bool:
    from keystone_action.files.git.commits import is_committed

    return is_committed(directory, path)


def _is_empty(folder: Path) -> bool:
    try:
        return is_empty(folder)
    except OSError:
        return False


def _engine() -> Evaluate:
    from keystone_action.runs import evaluate

    return evaluate


def engine_environ(environ: Mapping[str, str], names: tuple[str, ...]) -> dict[str, str]:
    """The part of our environment that the engine sees: what a process needs, what judges read, and the names of
    the input `env`. The runner's own variables, its tokens above all, are in none of these."""
    return {
        name: value
        for name, value in environ.items()
        if name in names
        or name in _PASSED_ON
        or name.upper() in _PASSED_ON_ANY_CASE
        or name.startswith(_PASSED_ON_PREFIXES)
    }


def _mask_keys(environ: Mapping[str, str], commands: LogCommands) -> None:
    """Secrets of a workflow are masked by the runner already; keys that came another way (a variable, the machine's
    own environment) are not."""
    for name in sorted(environ):
        is_key = name.startswith(_PASSED_ON_PREFIXES) and name.endswith(_KEY_ENDINGS)
        if is_key or name in {"INPUT_GITHUB-TOKEN", "INPUT_REGISTRY-PASSWORD"}:
            commands.mask(environ[name].strip())
