"""What an agent, a service or a check printed is data: these functions make it harmless where it is shown.

Everything here takes any text and returns text that says the same to a reader and nothing to a machine: no markup, no
mention, no link, no terminal sequence, no workflow command.
"""

from __future__ import annotations

import re
from itertools import accumulate, takewhile

_NEWLINE = " ⏎ "
# C0 and C1 but tab and newline, soft hyphen, zero-width and bidirectional controls, line separators, byte order mark,
# tags, lone surrogates, and the two code points that XML forbids. Zero-width (non-)joiners stay: scripts and emoji
# are written with them.
_INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff"
    "\ufff9-\ufffb\ufffe\uffff\ud800-\udfff\U000e0000-\U000e007f]"
)
_DELETE = 0x7F

# A word with any of this in it could become a link on a forge: mentions, mail addresses, issue numbers, addresses,
# commits, references like ABC-1, emoji names, formulas. GitHub looks for most of them after Markdown is rendered, so
# that a backslash does not help; in a code span it leaves them alone.
_MAGNETIC = re.compile(
    r"@|#\w|\$|://|www\.|mailto:|xmpp:|(?<![0-9a-z])[0-9a-f]{7,40}(?![0-9a-z])|(?<![a-z0-9])gh-\d"
    r"|(?<![a-z0-9])(?-i:[A-Z][A-Z0-9]*)-\d|:(?:(?=[\w+-]*[a-z+])[\w+-]++|100|1234|-1):|`",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(r"[\\*\[\]<>&|~#^{}]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")
_BLOCK_START = re.compile(
    r"\A(?:()([-+=:])|(\d{1,9})([.)])(?=\s|\Z))"
)  # list markers, rules, headings' underlines, commands
_BACKTICKS = re.compile(r"`+")
# Quoted as our messages quote: a pair of single backticks that stands for itself, a sign of punctuation aside.
_QUOTED = re.compile(r"(?:(?<!\S)|(?<=\s\()|(?<=^\())`([^\s`](?:[^`]*[^\s`])?)`(?=[.,;:)]*(?:\s|\Z))")
_NAMED = re.compile(r"(?:(?<!\S)|(?<=\s\())('[^'`]+')(?=[.,;:)]*(?:\s|\Z))")
# The runner takes `::command::` at the start of a line, blanks aside, and the older `##[command]` anywhere in it.
_COMMAND = re.compile(r"^(\s*):(?=:)", re.MULTILINE)
_OLD_COMMAND = re.compile(r"##(?=\[)")


def visible(text: str) -> str:
    """text with every control, bidirectional, zero-width and undecodable character shown as a symbol (`␛`, `⟨U+202E⟩`).

    Tabs and newlines stay, CR LF becomes a newline. The result is legal in XML 1.0 and in UTF-8.
    """
    return _INVISIBLE.sub(_show, text.replace("\r\n", "\n"))


def _show(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < ord(" "):
        return chr(0x2400 + code)
    return "␡" if code == _DELETE else f"⟨U+{code:04X}⟩"


def without_commands(text: str) -> str:
    """text in which no line is a workflow command: `::x::` becomes `: :x::`, `##[x]` becomes `## [x]`."""
    return _OLD_COMMAND.sub("## ", _COMMAND.sub(r"\1: ", text))


def html_without_commands(html: str) -> str:
    """HTML in which no line is a workflow command, and which shows the same: a page may be printed in a job."""
    return _OLD_COMMAND.sub("#&#35;", _COMMAND.sub(r"\1&#58;", html))


def json_without_commands(document: str) -> str:
    """A JSON document that means the same, in which no line is a workflow command: none begins with a colon."""
    return _OLD_COMMAND.sub(r"#\\u0023", document)


def log_line(text: str) -> str:
    """text as one line for a terminal or a job's log."""
    return without_commands(_NEWLINE.join(visible(text).rstrip("\n").split("\n")).replace("\t", " "))


def log_lines(text: str) -> str:
    """text as lines for a terminal or a job's log."""
    return without_commands(visible(text))


def inline(text: str) -> str:
    """text as Markdown that renders as just this text: within a paragraph, a heading, a list item or a table's cell.

    One line: runs of blanks and newlines become one space.
    """
    words = [_word(word) for word in visible(text).split()]
    return _BLOCK_START.sub(r"\1\3\\\2\4", " ".join(words), count=1)


def prose(text: str) -> str:
    """text of a message as Markdown: as `inline`, and what it quotes in backticks is one code span, without them."""
    pieces = _QUOTED.split(" ".join(visible(text).split()))
    # Every other piece is what was quoted; blanks beside the others stay.
    written = [_code_spans(piece) if index % 2 else _inline_piece(piece) for index, piece in enumerate(pieces)]
    return _BLOCK_START.sub(r"\1\3\\\2\4", "".join(written), count=1)


def _inline_piece(text: str) -> str:
    """What stands in quotes is one code span if any word of it must be one."""
    pieces = _NAMED.split(text)
    is_code = [index % 2 and _MAGNETIC.search(piece) for index, piece in enumerate(pieces)]
    return "".join(_code_spans(piece) if code else _words(piece) for code, piece in zip(is_code, pieces, strict=True))


def _words(text: str) -> str:
    return re.sub(r"\S+", lambda match: _word(match[0]), text)


def prose_html(text: str) -> str:
    """text of a message as HTML: what it quotes in backticks is `<code>`, without them."""
    from html import escape  # brings a table of 2,231 names

    pieces = _QUOTED.split(visible(text))
    escaped = (html_without_commands(escape(piece)) for piece in pieces)
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(escaped))


def _word(word: str) -> str:
    if _MAGNETIC.search(word):
        named = word.rstrip(".,;") or word  # the end of a sentence is not part of the name
        return _code_spans(named) + word[len(named) :]
    return _MARKDOWN.sub(r"\\\g<0>", word)


def code(text: str) -> str:
    """text as a Markdown code span on one line, as an element where it holds `|`, which would end a table's cell. A
    dash for no text."""
    return _code_spans(" ".join(visible(text).split())) or "–"


def _code_spans(text: str) -> str:
    plain = _OLD_COMMAND.sub("## ", text)
    return _code_element(plain) if "|" in plain else _code_span(plain)


def _code_element(text: str) -> str:
    """What a code span can't hold in the cell of a table, as an element: every sign in it is an entity, so that no
    reader of Markdown takes it for its own, and what could be an address is several texts to those that link them."""
    return f"<code>{''.join(map(_spelled, text))}</code>"


def _spelled(sign: str) -> str:
    if sign.isalnum() or sign == " " or not sign.isascii():
        return sign
    return f"<wbr>&#{ord(sign)};" if sign in ".:@" else f"&#{ord(sign)};"


def _code_span(text: str) -> str:
    if not text:
        return ""
    fence = "`" * (_longest_run(text) + 1)
    pad = " " if text[0] in "` " or text[-1] in "` " else ""
    return f"{fence}{pad}{text}{pad}{fence}" if text.strip() else ""


def inline_html(text: str) -> str:
    """text for an element inside Markdown, such as `<summary>`, where Markdown is not read. One line."""
    return " ".join(_html_word(word) for word in visible(text).split())


def _html_word(word: str) -> str:
    from html import escape

    escaped = escape(word).replace("##[", "##&#91;")
    return f"<code>{escaped}</code>" if _MAGNETIC.search(word) else escaped


def fence(text: str, language: str = "text") -> str:
    """text as a fenced code block, the fence longer than any run of backticks in it, without a last newline."""
    body = without_commands(visible(text)).rstrip("\n")
    marks = "`" * max(3, _longest_run(body) + 1)
    return f"{marks}{language}\n{body}\n{marks}"


def _longest_run(text: str) -> int:
    return max((len(run) for run in _BACKTICKS.findall(text)), default=0)


def first_line(text: str, limit: int = 200) -> str:
    """The first line of text that says something, cut to limit characters with an ellipsis."""
    line = next((line for line in text.splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def short_path(path: str, limit: int) -> str:
    """A path of at most limit characters, as far as its last name is: what is longer loses a file's usual name at its
    end, then folders at its beginning."""
    if len(path) > limit:
        path = path.removesuffix("/keystone.yaml").removesuffix("/keystone.yml")
    if len(path) <= limit:
        return path
    parts = path.split("/")
    kept = next((n for n in range(1, len(parts)) if len("/".join(parts[n:])) + 2 <= limit), len(parts) - 1)
    return f"…/{first_line('/'.join(parts[kept:]), max(limit, 100))}"


def shortened(text: str, limit: int) -> str:
    """A line of at most limit characters. What is longer ends with an ellipsis, after a clause where one ends in the
    second half, else after a word; a line that is one word loses all of it but as much as fits."""
    if len(text) <= limit:
        return text
    head = text[:limit]
    clause = max(head.rfind("; "), head.rfind(". "))
    if clause > limit // 2:
        return f"{head[:clause]}…"
    words = head[: head.rfind(" ")] if " " in head.strip() else head[: limit - 1]
    return f"{words[: limit - 1].rstrip(' ,:;.')}…"


def is_sentences(text: str) -> bool:
    """Whether text is a few plain lines, which need no block that keeps indentation and carets in place."""
    return len(text.splitlines()) <= 3 and "\n " not in text


def is_long(text: str) -> bool:
    """Whether text is more than one readable line, so that it is better shown as a block."""
    return len(text) > 200 or "\n" in text.strip()


def excerpt(text: str, *, lines: int = 60, characters: int = 6000, head: float = 0.25) -> str:
    """The head and the tail of a long text with a line between them that says how much is left out.

    head: the part of it that is head. A quarter, unless said: what a program says last is what explains how it ended.
    """
    rows = text.rstrip("\n").split("\n")
    if len(rows) <= lines and len(text) <= characters:
        return text.rstrip("\n")
    top, room = int(lines * head), int(characters * head)
    first = _within(rows[:top], room)
    last = _within(rows[len(first) :][::-1][: lines - top], characters - room)[::-1]
    left_out = len(rows) - len(first) - len(last)
    # A line longer than the larger part has for it is cut in itself, since it is what the part is for.
    if not left_out or not (first if head > 0.5 else last):
        return _middle_cut(text.rstrip("\n"), room, characters - room)
    return "\n".join([*first, f"[… {left_out:,} lines left out …]", *last])


def _within(rows: list[str], characters: int) -> list[str]:
    ends = accumulate(len(row) + 1 for row in rows)
    return rows[: sum(1 for _ in takewhile(lambda end: end <= characters, ends))]


def _middle_cut(text: str, head: int, tail: int) -> str:
    left_out = len(text) - head - tail
    if left_out <= 0:  # few characters on many lines
        return text
    return f"{text[:head]}\n[… {left_out:,} characters left out …]\n{text[len(text) - tail :]}"
