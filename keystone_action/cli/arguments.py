"""The words of the command line: a parser made from models, and the options that a call comes to.

`run`, `validate`, `plan` and `merge` take the fields of `Options` that name them; the other commands have models of
their own here. Nothing is done yet.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, TypeVar

from keystone_action import __version__
from keystone_action.errors import UsageError
from keystone_action.options.model import Options
from keystone_action.options.option import Group, Setting, option, settings_of
from keystone_action.options.values import AUTO_SHARD, UnreadableError, find_shard, read_duration, read_run_id

_EXITS = "Exit codes: 0 pass, 1 fail, 2 bad spec or call, or nothing to run, 3 error (the harness, not the agent), \
130 cancelled."
FIRST_STEPS = """\
usage: keystone COMMAND [options]

  keystone init first   write a first spec and a small agent into the folder `first`
  keystone validate     check the specs of this folder; every error at once
  keystone run          run the specs of this folder and decide
  keystone report DIR   print the report of a finished run again
  keystone doctor       say what this machine can do, and what it lacks

`keystone help` lists all commands, `keystone help run` explains one.
"""
"""What those see who call `keystone` without a word."""
GroupT = TypeVar("GroupT", bound=Group)


class ReportArguments(Group):
    """`keystone report`."""

    directory: Path = option("The folder of a finished run.", ..., metavar="DIR")
    format: Literal["md", "html", "junit", "json"] = option("The form of the report.", "md", flag="--format")


class InitArguments(Group):
    """`keystone init`."""

    directory: Path = option("Where to; it may be new.", Path(), metavar="DIR", default_note=".")
    agent: str | None = option(
        "A known agent, such as claude-code: spec, workflow and example.", flag="--agent", metavar="NAME"
    )


class ExplainArguments(Group):
    """`keystone explain`."""

    path: str = option(
        "A field, such as agent.timeout or check.sql.", "", metavar="FIELD", default_note="the top level"
    )


class CleanArguments(Group):
    """`keystone clean`."""

    dry_run: bool = option("Only say what would be removed.", False, flag="--dry-run")
    older_than: float = option(
        "How old the youngest thing of a run elsewhere must be: only its age is known.",
        3600.0,
        parse=read_duration,
        flag="--older-than",
        metavar="D",
        default_note="1h",
        exclusive=True,
    )
    everything: bool = option(
        "Runs that are still going too, and every setup image.", False, flag="--all", exclusive=True
    )
    run_id: str | None = option(
        "This run alone, going or not.", parse=read_run_id, flag="--run", metavar="ID", exclusive=True
    )


class CompareArguments(Group):
    """`keystone compare`."""

    base: Path = option("Results of the earlier run, or their folder.", ..., metavar="BASE")
    head: Path = option("Results of the later run, or their folder.", ..., metavar="HEAD")
    format: Literal["rich", "plain", "json"] | None = option(
        "The form of what is printed.", flag="--format", default_note="rich on a terminal, else plain"
    )


class RecordingsArguments(Group):
    """`keystone recordings`."""

    what: Literal["list", "show", "check"] = option(
        "All of them, one request by request, or whether they are whole.", ...
    )
    directory: Path = option("A folder with recordings, or a file.", ..., metavar="DIR")
    cell: str | None = option("Of show: whose recording, where there are several.", metavar="CELL")
    format: Literal["plain", "json"] = option("The form of what is printed.", "plain", flag="--format")


class CompletionArguments(Group):
    """`keystone completion`."""

    shell: Literal["bash", "zsh", "fish"] = option("Which the script is for.", ..., metavar="SHELL")


@dataclass(frozen=True, slots=True)
class Subcommand:
    """A command of `keystone`."""

    name: str
    """The word for it."""
    text: str
    """What it does, as a clause."""
    usage: str = ""
    """Its arguments without a flag, as the usage line shows them."""
    arguments: type[Group] | None = None
    """Its own; None = those of `Options` that name it."""

    @property
    def settings(self) -> tuple[Setting, ...]:
        """Its arguments, as help shows them."""
        if self.arguments is not None:
            return settings_of(self.arguments)
        return tuple(one for one in Options.settings() if self.name in one.option.commands and not one.option.variable)


COMMANDS = (
    Subcommand("run", "run specs and decide", "[SPEC …]"),
    Subcommand("validate", "check spec files, all errors at once", "[SPEC …]"),
    Subcommand("plan", "list the cells that a run would have", "[SPEC …]"),
    Subcommand("merge", "join the results of shards into one verdict", "DIR …"),
    Subcommand("report", "print a run's report again", "DIR", ReportArguments),
    Subcommand("init", "write a first spec and agent", "[DIR]", InitArguments),
    Subcommand("schema", "print the JSON Schema of spec files, for editors"),
    Subcommand("explain", "say what a field of a spec means", "[FIELD]", ExplainArguments),
    Subcommand("doctor", "say what this machine can do, and why not"),
    Subcommand(
        "clean",
        "remove what killed runs left: containers, networks, volumes, old setup images, temporary folders",
        arguments=CleanArguments,
    ),
    Subcommand("compare", "say what changed from one run to another", "BASE HEAD", CompareArguments),
    Subcommand(
        "recordings",
        "show what models answered in recorded runs, and check the files",
        "list|show|check DIR [CELL]",
        RecordingsArguments,
    ),
    Subcommand(
        "completion", "print a script that completes commands in your shell", "bash|zsh|fish", CompletionArguments
    ),
)


class Parser(argparse.ArgumentParser):
    """argparse with our own sentences for bad calls: what is wrong, the word that may be meant, the usage line."""

    commands: Mapping[str, argparse.ArgumentParser] = {}
    """The parsers of all commands, by name."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """A word that a command does not know is told by that command, which knows the options it has."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown[0].partition("=")[0]))
        return found, unknown

    def error(self, message: str) -> NoReturn:
        """Raises UsageError."""
        usage = " ".join(self.format_usage().split())
        raise UsageError(message, help=f"{usage}\n    `{self.prog} --help` explains them")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        from keystone_action.spec.loading.diagnostics import nearest

        known = [str(choice) for choice in action.choices]
        near = nearest(str(value), known)
        if not isinstance(action, argparse._SubParsersAction):
            hint = f"; did you mean {near}?" if near else ""
            raise argparse.ArgumentError(action, f"{value!r} is none of {', '.join(known)}{hint}")
        if not near and Path(value).exists():
            near = f"run {value}"
        if f"--{value}" in self._option_string_actions:
            near = f"--{value}"
        self.error(f"there is no command {value!r}" + (f"; did you mean `keystone {near}`?" if near else ""))

    def _unknown(self, word: str) -> str:
        if not word.startswith("-"):
            several = any(action.nargs in ("*", "+") for action in self._get_positional_actions())
            where = ": name all of them side by side, before the options or after them" if several else ""
            return f"unexpected argument {word!r}{where}"
        from keystone_action.spec.loading.diagnostics import nearest

        having = [name for name, one in self.commands.items() if word in one._option_string_actions]
        if having and self.prog == "keystone":
            return f"{word} is an option of commands: write it behind one, such as `keystone {having[0]} {word}`"
        if having:
            listed = ", ".join(f"`keystone {name}`" for name in having)
            return f"{self.prog} has no option {word}: it is an option of {listed}"
        near = nearest(word, [option for option in self._option_string_actions if option.startswith("--")])
        return f"{self.prog} has no option {word}" + (f"; did you mean {near}?" if near else "")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line. What a call did not give is not in the namespace."""
    parser = Parser(
        prog="keystone",
        usage="keystone COMMAND [options]",
        description="Decides whether an AI agent's change may be merged: services, sandbox, invariants, verdict.",
        epilog=_EXITS,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"keystone {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", parser_class=Parser)
    parser.commands = commands.choices
    for command in COMMANDS:
        made = _add_command(commands, command.name, command.text, command.usage)
        apart: Any = made.add_mutually_exclusive_group()
        for setting in command.settings:
            (apart if setting.option.exclusive else made).add_argument(*_words(setting), **_argument(setting))
    about = _add_command(commands, "help", "explain a command, or list all of them", "[COMMAND]")
    about.add_argument("about", nargs="?", choices=tuple(commands.choices), metavar="COMMAND", help="which [all]")
    return parser


def _add_command(commands: Any, name: str, text: str, arguments: str) -> Parser:
    parser: Parser = commands.add_parser(
        name,
        help=text,
        prog=f"keystone {name}",
        usage=" ".join(filter(None, ["keystone", name, arguments, "[options]"])),
        description=text[0].upper() + text[1:] + ".",
        allow_abbrev=False,
        epilog=_EXITS,
    )
    parser.commands = commands.choices
    told = parser.add_mutually_exclusive_group()
    told.add_argument("-q", "--quiet", action="store_true", help="only what the command is asked for, and errors")
    told.add_argument(
        "-v", "--verbose", action="store_true", help="each step and its time, where files are, tracebacks of errors"
    )
    return parser


def _words(setting: Setting) -> tuple[str, ...]:
    return (setting.option.flag,) if setting.option.flag else (setting.name,)


def _argument(setting: Setting) -> dict[str, Any]:
    """How argparse is told of an option."""
    made: dict[str, Any] = {"help": setting.help.replace("%", "%%"), "default": argparse.SUPPRESS}
    if setting.option.flag:
        made["dest"] = setting.name
    if setting.type is bool:
        return {**made, "action": "store_true"}
    if setting.option.metavar:
        made["metavar"] = setting.option.metavar
    made |= {"choices": setting.choices} if setting.choices else {"type": _reader(setting)}
    if setting.option.flag:
        return {**made, "action": "append"} if setting.is_list else made
    if setting.field.is_required():
        return made
    # argparse would read the word that stands for "no default" as a value.
    made["default"] = setting.field.default
    return {**made, "nargs": ("*" if setting.field.default else "+") if setting.is_list else "?"}


def _reader(setting: Setting) -> Callable[[str], Any]:
    def read(text: str) -> Any:
        try:
            return setting.read(text)
        except UnreadableError as error:
            raise argparse.ArgumentTypeError(f"{error.found or text!r} is not {error.expected}") from None

    return read


def arguments_of(call: argparse.Namespace, model: type[GroupT]) -> GroupT:
    """What a call of a command with a model of its own was given."""
    return model(**{name: value for name, value in vars(call).items() if name in model.model_fields})


def options_of(call: argparse.Namespace, directory: Path, environ: Mapping[str, str]) -> Options:
    """What `run`, `validate`, `plan` or `merge` is asked. Raises UsageError for options that contradict each other, or
    name what is not there."""
    from keystone_action.dialects.known import DIALECTS

    given: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in vars(call).items()
    }
    given = {name: value for name, value in given.items() if Options.has(name)}
    if "params" in given:
        given["params"] = _parameters(given["params"])
    if "resume" in given:
        _refuse_other_folders(given, directory)
    if "summary_copy" in given:
        given["summary_copy"] = _file_of_summary(given["summary_copy"], directory)
    given |= _from_environment(call.command, environ)
    if given.get("shard") == AUTO_SHARD:
        given["shard"], variables = find_shard(environ)
        index, count = given["shard"]
        if not call.quiet:
            sys.stderr.write(f"note: this is shard {index}/{count}, by {variables}\n")
    if "failed" in given:
        from keystone_action.runner.journal.earlier_runs import read_failed_cells

        given["failed_cells"] = read_failed_cells((directory / given["failed"]).resolve(), str(given["failed"]))
    if "baseline" in given:
        from keystone_action.runner.journal.earlier_runs import read_baseline

        given["baseline_run"] = read_baseline(directory / given["baseline"], str(given["baseline"]))
    return Options.of(directory=directory, environ=environ, dialects=DIALECTS, user_logins=True, **given)


def _from_environment(command: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """The options that variables hold. Raises UsageError."""
    found: dict[str, Any] = {}
    for setting in Options.settings():
        variable = setting.option.variable
        text = environ.get(variable, "").strip() if variable and command in setting.option.commands else ""
        try:
            found |= {setting.name: setting.read(text)} if text else {}
        except UnreadableError as error:
            raise UsageError(f"{variable} is {error.found or text!r}; expected {error.expected}") from None
    return found


def _file_of_summary(path: Path, directory: Path) -> Path:
    """Looked at before anything runs: afterwards there would be a verdict, and no place for its summary."""
    if (directory / path).is_dir():
        raise UsageError(f"--summary {path} is a directory", help=f"name a file: {path / 'summary.md'}")
    return directory / path


def _refuse_other_folders(given: Mapping[str, Any], directory: Path) -> None:
    """Raises UsageError where `--output` is not the folder of `--resume`, or `--failed` is."""
    resumed = (directory / given["resume"]).resolve()
    if "output" in given and resumed != (directory / given["output"]).resolve():
        raise UsageError(
            "--resume and --output name two directories", help="a resumed run goes on in its own: leave --output out"
        )
    if "failed" not in given:
        return
    failed = directory / given["failed"]
    if resumed == (failed.parent if failed.name == "results.json" else failed).resolve():
        raise UsageError(
            "--resume and --failed name the same run: what failed there is finished, and would not run again",
            help="leave --resume out: the failed cells get a run, and results, of their own",
        )


def _parameters(pairs: list[tuple[str, str]]) -> dict[str, str]:
    """`--param` words as a mapping. Raises UsageError when a name comes twice with different values."""
    found: dict[str, str] = {}
    for name, value in pairs:
        if found.setdefault(name, value) != value:
            raise UsageError(f"--param {name} is given twice, as {found[name]!r} and {value!r}")
    return found
