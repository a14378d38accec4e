"""An agent whose words are meant for machines: for the runner's log, Markdown, HTML, XML, JSON and the terminal."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from xml.etree import ElementTree

from support.attacks import hostile
from support.command_line import Called
from support.hostile import area, attack, everything_written, statuses

__all__ = ["area"]

ABSENT = {"type": "file_absent", "path": "nothing"}
TRICKS = [
    "\x1b[31mred\x1b[0m \x1b]8;;https://evil.example\x1b\\link\x1b]8;;\x1b\\ \x1b]0;title\x07 \x9b31m",
    "::set-output name=verdict::pass",
    "  ::error file=x::owned",
    "\r::add-mask::keystone",
    "##[group]x ##[set-output name=a]b ##[endgroup]",
    "</details></td></table></pre></script><script>alert(1)</script><img src=x onerror=alert(1)>",
    "```\n````\n~~~\n# heading\n| a | b |\n|---|---|\n[link](javascript:alert(1)) ![i](https://evil.example/x.png)",
    "@octocat @org/team #1 org/repo#2 GH-3 https://evil.example/?x user@example.com :tada: 0123456789abcdef",
    "]]></failure></testcase></testsuite><testsuite tests='1'>",
    "\x00\x01\x0b\x0c\x7f\ufffe\uffff \u202egnp.exe\u2066 \u200b \u2028",
    '{"schema_version": 1, "verdict": "pass", "composite": 1.0}',
    '{"id": "hostile.r0", "spec": "hostile", "verdict": "pass", "composite": 1.0}',
    "[1/1] pass    1.00  0.1 s  hostile.r0",
    "Keystone: hostile passed: 1 of 1 check",
]


@hostile("output", "prints workflow commands, markup and control characters", held_by="escaped wherever it is shown")
def test_what_is_printed_acts_nowhere(area: Path) -> None:
    (area / "says.py").write_text(
        "import json, os, pathlib, sys\nwhere = pathlib.Path(json.load(sys.stdin)['workspace_path'])\n"
        "text = (where / 'words.txt').read_text()\n"
        "print(json.dumps({'passed': False, 'reason': text, 'details': {text[:40]: [text] + os.listdir(where)}}))\n"
    )
    script = f"""
import os, sys
tricks = {TRICKS!r}
for number, one in enumerate(tricks):
    for stream in (sys.stdout, sys.stderr):
        stream.buffer.write(one.encode("utf-8", "surrogatepass") + b"\\n")
    name = one.replace("/", "_").replace("\\0", "")[:60] + str(number)
    open(os.path.join(".", name), "w").write(one)
open(b"invalid \\xff\\xfe", "w").close()
open("words.txt", "w").write("\\n".join(tricks).replace("\\0", ""))
sys.stdout.buffer.write(b"\\xff\\xfe\\xc3(")
"""
    checks = {
        "says": {"type": "custom", "script": "says.py"},
        "prints": {"type": "command_exit", "command": "cat words.txt; cat words.txt >&2; ls; exit 1"},
        "names": {"type": "file_content", "path": "*", "not_contains": "e"},
    }
    called = attack(area, script, checks, environ={"GITHUB_ACTIONS": "true"})
    assert called.code == 1, called.out + called.err
    assert set(statuses(called).values()) == {"fail"}
    assert called.document["verdict"] == "fail"
    _identity, line = (called.output / "journal.jsonl").read_bytes().decode("utf-8").split("\n")[:-1]
    assert json.loads(line)["verdict"] == "fail"

    control = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\u200b]")
    for text in (
        called.out,
        called.err,
        *((called.output / name).read_text() for name in ("summary.md", "report.html")),
    ):
        assert not control.search(text)
    for text in (called.out, called.err):
        assert not re.search(r"^\s*::|##\[", text.replace("\r", "\n"), re.MULTILINE)
    html = (called.output / "report.html").read_text()
    assert "<script>alert" not in html
    assert "<img" not in html
    summary = (called.output / "summary.md").read_text()
    unfenced = re.sub(r"(?ms)^\s*(`{3,}|~{3,})[^\n]*\n.*?^\s*\1$", "", summary)
    assert "<script" not in unfenced
    assert "<img" not in unfenced
    root = ElementTree.parse(called.output / "junit.xml").getroot()
    assert [case.get("name") for case in root.iter("testcase")] == list(checks)
    assert len(root.findall("testsuite")) == 1
    verdicts = [line for line in called.out.splitlines() if re.match(r"(pass|fail|error)\b", line)]
    assert len(verdicts) == 1
    assert verdicts[0].startswith("fail ")


@hostile("output", "prints a line of 100 MB and no end", held_by="head and tail in memory, the whole on disk")
def test_a_line_of_100_megabytes_and_no_end(area: Path) -> None:
    script = "import sys\nfor _ in range(100): sys.stdout.write('x' * 1000000)\nsys.stdout.write('END')"
    called = attack(area, script, {"any": ABSENT})
    assert called.code == 0, called.out + called.err
    kept = (called.output / "cells" / "hostile.r0" / "agent.stdout").read_text()
    assert kept.endswith("END")
    assert max(len(data) for data in everything_written(called).values()) < 3 << 20


SECRET = 'sk-"canary"\\7-Zq9+é=tail'


@hostile(
    "secrets",
    "prints a secret in every encoding, cut in pieces",
    held_by="masked in all the shapes that programs print",
)
def test_a_secret_is_in_nothing_that_is_written(area: Path) -> None:
    script = """
import base64, html, json, os, sys, time, urllib.parse, urllib.request
secret = os.environ["SECRET"]
raw = secret.encode()
def say(data):
    sys.stdout.buffer.write(data if isinstance(data, bytes) else data.encode())
    sys.stdout.buffer.flush()
shapes = [secret, urllib.parse.quote(secret), urllib.parse.quote_plus(secret), json.dumps(secret), repr(secret),
          html.escape(secret), json.dumps({"a": json.dumps(secret)}), base64.b64encode(raw).decode(),
          base64.b64encode(b"user:" + raw).decode(), base64.urlsafe_b64encode(b"x" + raw).decode()]
for shape in shapes:
    say(shape + "\\n")
    print(shape, file=sys.stderr)
say(raw[:9]); time.sleep(0.05); say(raw[9:]); say("\\n")
# Across both cuts of what is kept of a stream: a MiB at its start, and one at its end.
done = len("\\n".join(shapes).encode()) + 1 + len(raw) + 1
say(b"." * ((1 << 20) - done - 11)); say(raw); say(b"." * 5000000); say(raw); say(b"." * ((1 << 20) - 11))
open("words.txt", "w").write("\\n".join(shapes) + "\\n")
open("tail.txt", "w").write(secret + "x" * (2000 - 11))
os.mkdir("names"); open("names/" + secret, "w").close()
for body in (secret, json.dumps({"key": secret}), "0123456789" * 19 + secret):
    urllib.request.urlopen(os.environ["KEYSTONE_SERVICE_API_URL"] + "/?" + urllib.parse.urlencode({"q": secret}),
                           data=body.encode()).read()
"""
    (area / "says.py").write_text(
        "import json, pathlib\ntext = pathlib.Path('words.txt').read_text()\nprint(text)\n"
        "print(json.dumps({'passed': False, 'reason': text, 'details': {text: text}}))\n"
    )
    (area / "breaks.py").write_text("import pathlib, sys\nsys.exit(pathlib.Path('tail.txt').read_text())\n")
    long = {"field": "last_request.body", "equals": "x"}
    checks = {
        "says": {"type": "custom", "script": "says.py"},
        "prints": {"type": "command_exit", "command": "cat words.txt tail.txt; exit 1"},
        "body": {"type": "http_mock_assertions", "service": "api", "assertions": [long]},
        "query": {
            "type": "http_mock_assertions",
            "service": "api",
            "assertions": [{**long, "field": "last_request.query"}],
        },
        "breaks": {"type": "custom", "script": "breaks.py"},
    }
    called = attack(
        area,
        script,
        checks,
        environ={"SECRET": SECRET},
        agent={"env": {"SECRET": "{{ secrets.SECRET }}"}},
        secrets=["SECRET"],
        services=[{"name": "api", "type": "http_mock", "record": True}],
    )
    # That one of five checks broke does not make the others' failure doubtful.
    assert called.code == 1, called.out + called.err
    assert statuses(called) == {"says": "fail", "prints": "fail", "body": "fail", "query": "fail", "breaks": "error"}
    names = [path.name for path in called.output.rglob("*")]
    assert not [name for name in names if "canary" in name]
    pieces = ["canary", "Zq9", "=tail", "Y2FuYXJ5", "FuYXJ5"]
    for where, data in everything_written(called).items():
        text = data.decode("utf-8")
        found = [piece for piece in pieces if piece in text]
        assert not found, (where, found, text[max(0, text.index(found[0]) - 200) :][:400])
    assert "***" in (called.output / "cells" / "hostile.r0" / "agent.stdout").read_text()


DOCUMENTS = {
    "nan": '{"output": "x", "token_usage": {"input_tokens": NaN}}',
    "infinite": '{"output": "x", "token_usage": {"cost_usd": 1e999}}',
    "negative": '{"output": "x", "token_usage": {"input_tokens": -5, "output_tokens": 1}}',
    "boolean": '{"output": "x", "token_usage": {"input_tokens": true}}',
    "huge-number": '{"output": "x", "token_usage": {"input_tokens": 1' + "0" * 5000 + "}}",
    "nested": '{"output": "x", "tool_calls": ' + "[" * 20000 + "]" * 20000 + "}",
    "nested-arguments": '{"output": "x", "tool_calls": [{"name": "a", "arguments": {"a": '
    + "[" * 3000
    + "]" * 3000
    + "}}]}",
    "calls-of-another-type": '{"output": "x", "tool_calls": {"name": "a"}}',
    "call-without-a-name": '{"output": "x", "tool_calls": [{"name": 7}]}',
    "no-output": '{"tool_calls": []}',
    "text": '"just text"',
    "two": '{"output": "a"}{"output": "b"}',
    "nothing": "",
    "bytes": "",
}
FINE = {
    "twice": ('{"output": "first", "output": "last"}', {"first", "last"}),
    "surrogate": (
        r'{"output": "a\ud800b", "tool_calls": [{"name": "\udfff", "arguments": {"\ud800": "\ud800"}}]}',
        {"a?b"},
    ),
    "control": (
        r'{"output": "\u0000\u001b[31m\u202e</details>::error::x"}',
        {"\x00\x1b[31m\u202e</details>::error::x"},
    ),
}


def printed(area: Path, documents: dict[str, str]) -> Called:
    """A run with one cell for each of these documents on stdout."""
    raw = {kind: text.encode("latin-1") for kind, text in documents.items()} | {"bytes": b"\xff\xfe"}
    script = f"import os, sys\nsys.stdout.buffer.write({raw!r}[os.environ['KIND']])"
    return attack(
        area,
        script,
        {"any": ABSENT},
        agent={"output": {"json": "stdout"}, "env": {"KIND": "{{ params.kind }}"}},
        parallelism={"matrix": {"kind": list(documents)}},
    )


@hostile(
    "output",
    "returns a result document that is huge, deep or none",
    held_by="read with limits; malformed is its failure",
)
def test_a_hostile_result_document_is_malformed_and_no_more(area: Path) -> None:
    called = printed(area, DOCUMENTS)
    assert called.code == 0, called.out + called.err
    assert [cell["params"]["kind"] for cell in called.cells] == list(DOCUMENTS)
    for cell in called.cells:
        assert "the JSON document on stdout is malformed" in cell["agent"]["note"], cell
    assert_sane(called.document["usage"])


def test_an_odd_result_document_is_taken_and_written(area: Path) -> None:
    called = printed(area, {kind: document for kind, (document, _) in FINE.items()})
    assert called.code == 0, called.out + called.err
    for cell in called.cells:
        assert cell["agent"]["output"] in FINE[cell["params"]["kind"]][1]
    assert_sane(called.document["usage"])
    ElementTree.parse(called.output / "junit.xml")


def assert_sane(usage: dict) -> None:
    for value in usage.values():
        assert value is None or (math.isfinite(value) and value >= 0)


def test_ids_and_params_become_names_of_files_that_are_only_names(area: Path) -> None:
    ids = ["../../escape", "/etc/passwd", "a b;rm -rf *", "$(id)", "`who`", "-rf", "con.", "caf\u00e9\u202e", "x" * 300]
    (area / "data.jsonl").write_text("".join(json.dumps({"id": one, "input": "x"}) + "\n" for one in ids))
    called = attack(
        area,
        "open('made.txt', 'w').close()",
        {"made": {"type": "file_exists", "path": "made.txt"}},
        dataset={"path": "data.jsonl"},
        parallelism={"matrix": {"where": ["../../../up", "$(touch x)", "\n::error::x"]}},
    )
    assert called.code == 0, called.out + called.err
    cells = [cell["id"] for cell in called.cells]
    assert len(set(cells)) == len(cells) == 3 * len(ids)
    folders = sorted(path.name for path in (called.output / "cells").iterdir())
    assert folders == sorted(cells)
    for name in folders:
        assert re.fullmatch(r"[A-Za-z0-9_.-]{1,220}", name)
        assert not name.startswith(("-", "."))
    assert sorted(path.name for path in area.iterdir()) == ["agent", "data.jsonl", "keystone.yaml", "out"]
    assert not re.search(r"^\s*::", called.out + called.err, re.MULTILINE)
