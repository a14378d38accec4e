"""argparse with our own sentences for bad calls: what is wrong, the word that may be meant, the usage line."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

from keystone_action.errors import UsageError


class Parser(argparse.ArgumentParser):
    """The parser of the command line, or of one command. commands: the parsers of all commands, by name."""

    commands: Mapping[str, argparse.ArgumentParser] = {}

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
