"""What each command of the command line does; each returns the exit code."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import shlex
import shutil
import sys
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.cli.streams import give_up
from keystone_action.errors import EXIT_FAIL, EXIT_PASS, UsageError

if TYPE_CHECKING:
    from keystone_action.evaluate import Evaluation
    from keystone_action.gate.base_commit import BaseCommit
    from keystone_action.gate.options import GatedOptions
    from keystone_action.scoring.baseline import Baseline


def command_run(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Run specs, print the report on stdout, and decide."""
    from keystone_action.evaluate import evaluate
    from keystone_action.files.run_lock import run_lock
    from keystone_action.report import console

    options = _options(call, directory, environ)
    kind = _format(call, environ)
    report = sys.stdout if kind == "plain" else None
    shown = console.RichProgress(sys.stderr, quiet=call.quiet, report=report)
    results = directory / (options.output or options.resume or ".keystone")
    with shown as progress, run_lock(options.run_id or ""), _handed_over(results, directory):
        done = evaluate(options, progress)
    return _report(done, call, kind, directory, printed=progress.reported)


def _format(call: argparse.Namespace, environ: Mapping[str, str]) -> str:
    return call.format or ("rich" if sys.stdout.isatty() or environ.get("FORCE_COLOR") else "plain")


def _report(done: Evaluation, call: argparse.Namespace, kind: str, directory: Path, *, printed: Collection[str]) -> int:
    """The report on stdout and where `--summary` says; returns the exit code. printed: ids of cells that are there."""
    from keystone_action.report import console

    try:
        _print_report(done, kind, reported=printed)
    except BrokenPipeError:
        give_up(sys.stdout)  # the reader has left; the verdict stands
    if kind != "rich" and not call.quiet:
        console.print_verdict(done.run, sys.stderr)
    if call.summary is not None:
        _copy_summary(done.directory / "summary.md", directory / call.summary)
    return done.exit_code


@contextlib.contextmanager
def _handed_over(results: Path, directory: Path) -> Iterator[None]:
    """What root leaves in somebody's directory (the image does, on a laptop) is theirs."""
    from keystone_action.files.ownership import hand_over, missing_folders

    made = missing_folders(results, directory)
    try:
        yield
    finally:
        if os.geteuid() == 0 and directory.stat().st_uid != 0 and results.is_relative_to(directory):
            hand_over([results, *made], directory)


def _print_report(done: Evaluation, kind: str, *, reported: Collection[str]) -> None:
    from keystone_action.report import console

    if kind == "rich":
        console.print_table(done.run, sys.stdout, summary=done.directory / "summary.md")
    elif kind == "json":
        from keystone_action.report.render import render

        write_document(render(done.run, "json"))
    else:
        sys.stdout.write(console.plain(done.run, reported=reported))
    sys.stdout.flush()


def write_document(text: str) -> None:
    """Print a document that is UTF-8 by its format, even if the terminal has another encoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="strict")
    sys.stdout.write(text)


def _options(call: argparse.Namespace, directory: Path, environ: Mapping[str, str]) -> GatedOptions:
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.files.run_lock import new_run_id
    from keystone_action.gate.options import GatedOptions

    if call.resume is not None and call.output is not None:
        _require_same(directory / call.resume, directory / call.output)
    _refuse_directory_as_summary(call, directory)
    return GatedOptions(
        specs=tuple(call.specs),
        directory=directory,
        environ=environ,
        output=call.output,
        threshold=call.threshold,
        replicas=call.replicas,
        params=parameters(call.param),
        tags=tuple(call.tag),
        filter=call.filter,
        max_concurrency=call.max_concurrency,
        sandbox=call.sandbox,
        shard=call.shard,
        resume=call.resume,
        retry_errors=call.retry_errors,
        fail_on=call.fail_on,
        fail_on_skipped=call.fail_on_skipped,
        fail_on_stale=call.fail_on_stale,
        gateway=call.gateway,
        timeout=call.timeout,
        max_cost_usd=call.max_cost_usd,
        keep=call.keep,
        run_id=new_run_id(),
        registry_mirror=_mirror(environ),
        user_logins=True,
        dialects=DIALECTS,
        agent=call.agent,
        baseline=_baseline(call, directory),
        spec_from=call.spec_from,
        base=_base(call, directory),
        summary=None if call.summary is None else directory / call.summary,
    )


def _base(call: argparse.Namespace, directory: Path) -> BaseCommit | None:
    if call.spec_from == "head":
        return None
    from keystone_action.gate.base_commit import merge_base

    return merge_base(directory)


def _baseline(call: argparse.Namespace, directory: Path) -> Baseline | None:
    if call.baseline is None:
        return None
    from keystone_action.runner.baseline import read_baseline

    return read_baseline(directory / call.baseline, str(call.baseline))


def _refuse_directory_as_summary(call: argparse.Namespace, directory: Path) -> None:
    if call.summary is not None and (directory / call.summary).is_dir():
        raise UsageError(f"--summary {call.summary} is a directory", help=f"name a file: {call.summary / 'summary.md'}")


def _mirror(environ: Mapping[str, str]) -> str | None:
    from keystone_action.spec.registry_names import parse_mirror

    value = environ.get("KEYSTONE_REGISTRY_MIRROR", "").strip()
    mirror = parse_mirror(value)
    if value and mirror is None:
        raise UsageError(
            f"KEYSTONE_REGISTRY_MIRROR is {value!r}; expected a registry such as mirror.example:5000/hub",
            help="write no scheme but https://, and no user",
        )
    return mirror


def _require_same(resumed: Path, output: Path) -> None:
    if resumed.resolve() != output.resolve():
        raise UsageError(
            "--resume and --output name two directories", help="a resumed run goes on in its own: leave --output out"
        )


def parameters(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """`--param` words as a mapping. Raises UsageError when a name comes twice with different values."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--param {name} is given twice, as {found[name]!r} and {value!r}")
    return found


def _copy_summary(source: Path, target: Path) -> None:
    from keystone_action.runner.parts.journal import output_error

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, target)
    except OSError as error:
        raise output_error(target, error) from error


def command_validate(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Load every spec and say what it has; all errors of all files at once."""
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.gate.options import GatedOptions
    from keystone_action.report.escape import log_line
    from keystone_action.report.words import count
    from keystone_action.runner.preflight import load_specs
    from keystone_action.spec.loading.diagnostics import with_short_path

    options = GatedOptions(
        specs=tuple(call.specs),
        directory=directory,
        params=parameters(call.param),
        dialects=DIALECTS,
        agent=call.agent,
    )
    for loaded in load_specs(options):
        for warning in loaded.warnings:
            sys.stderr.write(f"warning: {with_short_path(warning, directory).render()}\n")
        spec, path = loaded.spec, Path(loaded.path)
        shown = path.relative_to(directory) if path.is_relative_to(directory) else path
        names = {*spec.invariants, *(name for scenario in loaded.scenarios for name in scenario.invariants)}
        counts = f"{count(len(loaded.scenarios), 'scenario')}, {count(len(names), 'invariant')}"
        sys.stdout.write(f"{log_line(str(shown))}: {spec.id}: valid, {counts}\n")
    return EXIT_PASS


def command_plan(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """List the cells that a run would have, one id a line; with `--shards` the shard of each before it, or the matrix
    of GitHub's jobs alone."""
    from keystone_action.dialects.known import DIALECTS
    from keystone_action.gate.options import GatedOptions
    from keystone_action.shards import plan_shards, refuse_too_many

    if call.github and call.shards is None:
        raise UsageError("--github prints the jobs of a matrix; expected --shards N beside it", help="N: at most 256")
    if call.github:
        refuse_too_many(call.shards)
    if call.shards is not None and call.shard is not None:
        raise UsageError("--shards plans all shards, --shard I/N is one of them", help="leave one of them out")
    options = GatedOptions(
        specs=tuple(call.specs),
        directory=directory,
        params=parameters(call.param),
        tags=tuple(call.tag),
        filter=call.filter,
        shard=call.shard,
        replicas=call.replicas,
        dialects=DIALECTS,
        agent=call.agent,
    )
    planned = plan_shards(options, call.shards or 1)
    if call.github:
        sys.stdout.write(f"{planned.matrix}\n")
        return EXIT_PASS
    for number, cell in enumerate(planned.plan.cells):
        shard = f"{planned.names[number % len(planned.names)]}\t" if call.shards is not None else ""
        sys.stdout.write(f"{shard}{cell.id}\n")
    return EXIT_PASS


def command_report(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the report of a finished run in another format."""
    from keystone_action.report.render import render
    from keystone_action.scoring.document import run_from_document

    path = directory / call.directory
    path = path / "results.json" if path.name != "results.json" or path.is_dir() else path
    try:
        document = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}", help="name the folder of a finished run") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is no JSON document: {error}", help="name the folder of a finished run") from None
    if not isinstance(document, dict):
        raise UsageError(f"{path} holds no results; expected a JSON object", help="name the folder of a finished run")
    write_document(render(run_from_document(document), call.format))
    return EXIT_PASS


def command_schema(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Print the JSON Schema of spec files."""
    from keystone_action.invariants.registry import CheckTypes
    from keystone_action.spec.loading.json_schema import json_schema

    write_document(json.dumps(json_schema(CheckTypes()), indent=2, ensure_ascii=False) + "\n")
    return EXIT_PASS


def command_init(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Write a first spec with its agent; never overwrites. At a terminal, ask which agent, unless the call says it."""
    from keystone_action.cli import agent_scaffold, scaffold
    from keystone_action.report.escape import log_line

    place, shown = directory / call.directory, log_line(shlex.quote(str(call.directory / "keystone.yaml")))
    agent = agent_scaffold.choose_agent(call.agent, sys.stdin, sys.stdout, environ)
    paths = (
        scaffold.write_first_spec(place) if agent is None else agent_scaffold.write_agent_specs(agent, place, environ)
    )
    for path in paths:
        sys.stdout.write(f"wrote {log_line(os.path.relpath(path, directory))}\n")
    steps = [f"now: keystone run {shown}"] if agent is None else agent_scaffold.next_steps(agent, place, shown, environ)
    for line in steps:
        sys.stdout.write(f"{line}\n")
    return EXIT_PASS


def command_doctor(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Say what this machine can do, and why not."""
    from keystone_action.cli.doctor import examine

    for finding in examine(environ):
        sys.stdout.write(f"{finding.mark} {finding.what}: {finding.found}\n")
    return EXIT_PASS


def command_merge(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Join the results of shards, print the report on stdout, and decide."""
    from keystone_action.runner.parts.merge import MergeOptions
    from keystone_action.shards import join

    _refuse_directory_as_summary(call, directory)
    options = MergeOptions(
        places=tuple(call.directories),
        directory=directory,
        output=call.output,
        fail_on=call.fail_on,
        baseline=_baseline(call, directory),
    )
    with _handed_over(directory / (call.output or ".keystone"), directory):
        done = join(options)
    return _report(done, call, _format(call, environ), directory, printed=())


def command_compare(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what changed from one run to another: 1 when something that passed fails, else 0."""
    from keystone_action.report.compared import print_comparison, render_comparison
    from keystone_action.runner.baseline import read_baseline
    from keystone_action.scoring.compare import compare

    base = read_baseline(directory / call.base, str(call.base))
    head = read_baseline(directory / call.head, str(call.head))
    compared = compare(base.run, head.run, source=base.source)
    kind = _format(call, environ)
    if kind == "rich":
        print_comparison(compared, head.run, sys.stdout)
    else:
        write_document(render_comparison(compared, head.run, kind))
    return EXIT_FAIL if compared.regressions else EXIT_PASS


def command_clean(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:  # noqa: ARG001
    """Remove what killed runs left behind, and say what."""
    from keystone_action.cli.clean import CleanOptions, clean
    from keystone_action.report.escape import log_line

    wanted = CleanOptions(older_than=call.older_than, everything=call.all, run_id=call.run, dry_run=call.dry_run)
    clean(wanted, environ, lambda line: print(log_line(line), flush=True))
    return EXIT_PASS


def command_recordings(call: argparse.Namespace, *, directory: Path, environ: Mapping[str, str]) -> int:
    """Say what is in recordings, and whether they can be replayed: 1 when one of them can't, else 0."""
    from keystone_action.cli.recordings import Recordings

    if call.cell is not None and call.what != "show":
        raise UsageError(f"recordings {call.what} is about all recordings", help=f"leave {call.cell!r} out")
    found = Recordings(call.directory, directory, environ, sys.stdout, sys.stderr)
    if call.what == "show":
        return found.show(call.cell, call.format)
    return found.list(call.format) if call.what == "list" else found.check(call.format)
