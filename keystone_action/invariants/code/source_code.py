"""What of a workspace is source code, and which of its lines are more than comments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

PYTHON = frozenset({".py", ".pyw"})


@dataclass(frozen=True, slots=True)
class Comments:
    """How a language writes them: what begins one to the end of the line, and what opens and closes a block."""

    line: tuple[str, ...] = ()
    block: tuple[tuple[str, str], ...] = ()


_C = Comments(("//",), (("/*", "*/"),))
_HASH = Comments(("#",))
_MARKUP = Comments((), (("<!--", "-->"),))
_STYLES: Mapping[Comments, str] = {
    _C: ".js .jsx .mjs .cjs .ts .tsx .mts .cts .go .rs .java .kt .kts .scala .groovy .c .h .cc .cpp .cxx .hh .hpp .cs"
    " .swift .m .mm .dart .zig .v .sol .proto .scss .less",
    Comments((), (("/*", "*/"),)): ".css",
    Comments(("//", "#"), (("/*", "*/"),)): ".php .tf",
    _HASH: ".sh .bash .zsh .fish .pl .pm .r .jl .ex .exs .nim .tcl .awk .pyi .pyx .ps1",
    Comments(("#",), (("=begin", "=end"),)): ".rb",
    Comments(("--",), (("/*", "*/"),)): ".sql",
    Comments(("--",), (("--[[", "]]"),)): ".lua",
    Comments(("--",), (("{-", "-}"),)): ".hs .elm",
    Comments((), (("(*", "*)"),)): ".ml .mli",
    Comments(("//",), (("(*", "*)"),)): ".fs .fsx",
    Comments((";",)): ".clj .cljs .lisp .scm .el .asm .s",
    Comments(("%",)): ".erl .hrl",
    Comments(("//",), (("<!--", "-->"), ("/*", "*/"))): ".vue .svelte .astro",
    _MARKUP: ".html .htm .xml .xsl",
}
_BY_SUFFIX = {suffix: style for style, suffixes in _STYLES.items() for suffix in suffixes.split()}


def is_source(path: str) -> bool:
    """Whether a path has the name of a source file."""
    suffix = PurePosixPath(path).suffix.lower()
    return suffix in PYTHON or suffix in _BY_SUFFIX


def is_python(path: str) -> bool:
    """Whether a path has the name of a Python module."""
    return PurePosixPath(path).suffix.lower() in PYTHON


def is_test(path: str) -> bool:
    """`test_*` and `*_test` with any suffix; `*.test.*` and `*.spec.*` of JavaScript, too."""
    name = PurePosixPath(path).name
    stem = name.partition(".")[0]
    return stem.startswith("test_") or stem.endswith("_test") or ".test." in name or ".spec." in name


def code_lines(text: str, path: str) -> list[str]:
    """The lines that are neither blank nor only a comment, without the space around them. A comment is told by what a
    line begins with, so that no text in quotes is taken for one."""
    style = _HASH if is_python(path) else _BY_SUFFIX.get(PurePosixPath(path).suffix.lower(), Comments())
    found: list[str] = []
    closing = ""
    for whole in text.split("\n"):
        line = whole.strip()
        while line:
            if closing:
                _, closed, line = line.partition(closing)
                closing = "" if closed else closing
                line = line.strip()
                continue
            opened = next((pair for pair in style.block if line.startswith(pair[0])), None)
            if opened is None:
                break
            line, closing = line[len(opened[0]) :], opened[1]
        if line and not line.startswith(style.line):
            found.append(line)
    return found
