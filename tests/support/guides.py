"""Follows a page of docs/ as its reader would: writes its files, types its commands, and looks whether what is printed
is what the page shows.

The line above a block says what the block is:

    `keystone.yaml`:           the file of that name (any line that ends with a path in backticks and a colon)
    From `keystone.yaml`:      lines that stand in that file
    ```sh                      commands, in their order, in one terminal; `# exit code 1` behind one that fails,
                               `# answer: 7` behind one that asks
    ```text                    what the last command printed; or, with a line above it that the test knows, what else
                               it has to show

`…` in a shown text stands for anything. Times and names of runs may differ. KEYSTONE_UPDATE_GUIDES=1 writes what was
printed into the page, where no `…` is.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from support.command_line import ROOT

HOME = "/home/ada"
"""What pages show as the reader's home."""
TERMINAL = {"TERM": "dumb", "COLUMNS": "100", "LINES": "40", "LANG": "C.UTF-8"}
"""Without colours, and without a line that is drawn again and again."""
_BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([^`\s]*[./][^`\s]*)`[^`]*:$")
_EXIT = re.compile(r"#.*\bexit code (\d+)")
_ANSWER = re.compile(r"# answer: (\S+)")
_DIFFERS = (
    (re.compile(r" +(?:less than )?\d[\d.]* (?:s|ms|min(?: \d+ s)?)\b"), " 0 s"),
    (re.compile(r"\b\d{8}-\d{6}-[0-9a-f]{6}\b"), "RUN"),
)
_LIMIT_S = 300


@dataclass(frozen=True)
class Block:
    """What a page shows. caption: the line above it, empty after another block. place: that of its text in the page."""

    caption: str
    language: str
    text: str
    place: slice

    @property
    def file(self) -> str | None:
        """The name of the file that it is, or is from."""
        named = _FILE.search(self.caption)
        return named[1] if named else None


def blocks(page: str) -> Iterator[Block]:
    """The blocks of a page. Raises ValueError when one has no language."""
    found = list(_BLOCK.finditer(page))
    if 2 * len(found) != len(re.findall(r"^ *```", page, re.MULTILINE)):
        raise ValueError("a block has no language, or is indented")
    for match in found:
        above = page[: match.start()].rstrip().rpartition("\n")[2]
        yield Block("" if above == "```" else above, match[1], match[2], slice(*match.span(2)))


@dataclass
class Reader:
    """Somebody with an empty home who does what a page says.

    home: their home folder, where they begin. environ: besides HOME, PATH and TERM. shows: line above a block → what it
    has to be.
    """

    home: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    shows: Mapping[str, Callable[[], str]] = field(default_factory=dict)
    path: str = f"{ROOT}/.venv/bin:/usr/local/bin:/usr/bin:/bin"
    printed: str = ""
    """By the last command."""

    def __post_init__(self) -> None:
        self.folder = self.home
        self._exports = self.home.parent / "exports"
        self._exports.touch()

    def follow(self, page: Path) -> None:
        """Do all of a page of docs/. Raises AssertionError where it is not as the page says."""
        text = page.read_text("utf-8")
        wrong: list[tuple[Block, str]] = []
        for block in blocks(text):
            if block.file is not None:
                self._put(block, block.file)
            elif block.language == "sh":
                for line in filter(None, block.text.splitlines()):
                    self.type(line)
            elif block.language == "text":
                show = next((show for start, show in self.shows.items() if block.caption.startswith(start)), None)
                found = self.printed if show is None else show()
                if not fits(block.text, found):
                    wrong.append((block, found))
            else:
                raise ValueError(f"{block.caption!r} does not say what the block below it is")
        if wrong and os.environ.get("KEYSTONE_UPDATE_GUIDES"):
            for block, found in reversed([one for one in wrong if "…" not in one[0].text]):
                text = text[: block.place.start] + found.strip() + "\n" + text[block.place.stop :]
            page.write_text(text, "utf-8")
        told = [f"{block.caption}\n--- shown\n{block.text}\n--- found\n{found}" for block, found in wrong]
        assert not told, "\n\n".join(told)

    def type(self, line: str) -> None:
        """A command at a terminal. Raises AssertionError for another exit code than the line says."""
        script = f'cd "{self.folder}"; . "{self._exports}"; {line}\ncode=$?; pwd > "{self._exports}.folder"\n'
        script += f'export -p > "{self._exports}"; exit $code'
        environ = {"HOME": str(self.home), "PATH": self.path, **TERMINAL, **self.environ}
        code, printed = at_a_terminal(["bash", "-c", script], environ, answers=_ANSWER.findall(line))
        self.printed = printed.replace(str(self.home), HOME)
        expected = int(found[1]) if (found := _EXIT.search(line)) else 0
        assert code == expected, f"$ {line}\nexit code {code}, expected {expected}\n{self.printed}"
        self.folder = Path(Path(f"{self._exports}.folder").read_text("utf-8").strip())

    def _put(self, block: Block, name: str) -> None:
        path = self.folder / name
        if block.caption.startswith("From "):
            assert block.text in path.read_text("utf-8"), f"not in {name}:\n{block.text}"
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")


def fits(shown: str, found: str) -> bool:
    """Whether a text is the one that a page shows."""
    pattern = ".*".join(re.escape(part) for part in re.split(r"\n*…\n*", _plain(shown)))
    return re.fullmatch(pattern, _plain(found), re.DOTALL) is not None


def at_a_terminal(command: Sequence[str], environ: Mapping[str, str], answers: Sequence[str] = ()) -> tuple[int, str]:
    """The exit code of a command at a terminal, and what stands on that in the end."""
    ours, theirs = pty.openpty()
    try:
        process = subprocess.Popen(
            command,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=environ,
            start_new_session=True,
        )
    finally:
        os.close(theirs)
    printed, waiting = bytearray(), list(answers)
    try:
        while piece := os.read(ours, 1 << 16):
            printed += piece
            if waiting and printed.endswith((b": ", b"? ")):
                os.write(ours, f"{waiting.pop(0)}\n".encode())
    except OSError:
        """The terminal's other end was closed: the command has ended."""
    finally:
        os.close(ours)
    code = process.wait(_LIMIT_S)
    return code, printed.decode("utf-8", "replace").replace("\r\n", "\n")


def _plain(text: str) -> str:
    for pattern, instead in _DIFFERS:
        text = pattern.sub(instead, text)
    return "\n".join(line.rstrip() for line in text.strip().splitlines())
