"""Which program a command starts, and what to do when the sandbox has no such program."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_LISTS_ROOT = re.compile(
    rb"(?:['\"`]|\xe2\x80\x98)/(?:['\"]|\xe2\x80\x99)[^\n]*permission denied"
    rb"|permission denied[^\n]*['\"`]/['\"]",
    re.IGNORECASE,
)
_SPECIAL = frozenset("!(){}$`&;<>|*?[#~'\"\\")
_BUILT_IN_WORDS = """
    . : alias bg break case cd command continue do done echo elif else esac eval exec exit export false fc fg fi for
    getopts hash if in jobs kill printf pwd read readonly return set shift test then times trap true type ulimit umask
    unalias unset until wait while
"""
_BUILT_IN = frozenset(_BUILT_IN_WORDS.split())
"""Words that the shell itself knows: no program is missing when PATH has none of that name."""
_IMAGES = {
    "node:22": ("node", "npm", "npx", "yarn", "pnpm", "corepack"),
    "golang:1": ("go", "gofmt"),
    "rust:1": ("cargo", "rustc"),
    "ruby:3": ("ruby", "bundle", "gem", "rake"),
    "php:8": ("php", "composer"),
    "maven:3": ("mvn",),
    "gradle:8": ("gradle",),
    "eclipse-temurin:21": ("java", "javac"),
    "python:3.12": ("python", "python3", "pip", "pytest"),
}


def shell_words(command: str, *, comments: str = "") -> list[str]:
    """The words of a command, with a shell's operators as words of their own. comments: what one begins with. Raises
    ValueError for a quote that stays open."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = comments
    return list(lexer)


def started_program(command: str | list[str] | tuple[str, ...]) -> str | None:
    """The program that a command starts, as far as it can be told without a shell.

    Assignments in front (`CI=1 npm test`) are skipped; None for an empty command and for shell syntax (`(cd a; b)`,
    `$TOOL x`, `cd a`) where the first word names no program. A list names it itself.
    """
    if not isinstance(command, str):
        return command[0] if command else None
    try:
        words = iter(shell_words(command, comments="#"))
    except ValueError:  # an open quote further on: the shell will say so itself
        words = iter(command.split())
    for word in words:
        if _ASSIGNMENT.match(word):
            continue
        return None if _SPECIAL & set(word) or word in _BUILT_IN else word
    return None


def sentence_on_hidden(program: str, place: Path) -> str:
    """`claude is not in this sandbox: this machine has it as /root/bin/claude, which the sandbox hides`."""
    return f"{program} is not in this sandbox: this machine has it as {place}, which the sandbox hides"


def ways_to_show(place: Path) -> str:
    """What an author can do for a program that the sandbox hides."""
    from keystone_action.sandbox.processes.policy import hidden_folders

    folders = ", ".join(map(str, hidden_folders(place) or (place.parent,)))
    return (
        f"show its folder by `resources.readable: [{folders}]`, install it by "
        "setup.packages or setup.commands, or set `base:` to an image that has it"
    )


def listing_of_root(stderr: bytes) -> str:
    """What to know when a command complains, in the words of many programs, that it may not list `/`."""
    if _LISTS_ROOT.search(stderr) is None:
        return ""
    return (
        "`/` can't be listed in the process sandbox, nor folders that it hides: name the folder that is meant, "
        "or set `base:` to an image"
    )


def sentence_on_missing(program: str, hidden: Path | None = None) -> str:
    """`npm is not in this sandbox; set base: node:22`. hidden: where this machine has it and the sandbox hides it."""
    if hidden is not None:
        return f"{sentence_on_hidden(program, hidden)}; {ways_to_show(hidden)}"
    for image, programs in _IMAGES.items():
        if program in programs:
            return f"{program} is not in this sandbox; set base: {image}"
    return f"{program} is not in this sandbox; set base to an image that has it"
