"""What `-q` and `-v` show of each command, where the report is said to be, and what becomes of it on odd terminals."""

from __future__ import annotations

import json
import os
import re
import tempfile
from pathlib import Path

import pytest
from support.command_line import ENGINE_IS_CLOSED, ENVIRONMENT, keystone, run_spec, server, spec
from support.terminals import keystone_on_terminal

FAILING = spec("{type: command, command: 'echo working; true'}", "{type: file_exists, path: x}")
PASSING = spec("{type: command, command: 'touch x'}", "{type: file_exists, path: x}")
RUNS = {"passing": 0, "failing": 1}
"""Specs, and the exit codes of their runs."""
LINK = re.compile(r"\x1b\]8;[^;]*;(file://[^\x1b]+)\x1b\\(.*?)\x1b\]8;;\x1b\\")


@pytest.fixture
def ready(tmp_path: Path) -> Path:
    (tmp_path / "keystone.yaml").write_text(FAILING, "utf-8")
    return tmp_path


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both specs, and of one spec a run that passed and one that failed."""
    place = tmp_path_factory.mktemp("compared")
    for name, text in (("passing", PASSING), ("failing", FAILING)):
        (place / f"{name}.yaml").write_text(text, "utf-8")
    for output, name in (("good", "passing"), ("bad", "failing")):
        called = keystone("run", f"{name}.yaml", "--output", output, directory=place)
        assert called.code == RUNS[name], called.err
    return place


def test_quiet_leaves_the_report_and_errors(ready: Path) -> None:
    plain = keystone("run", "-q", "--output", "out", directory=ready)
    assert (plain.code, plain.err) == (1, "")
    assert [line.split()[0] for line in plain.out.splitlines()] == ["fail"]
    document = keystone("run", "-q", "--format", "json", "--output", "two", directory=ready)
    assert (json.loads(document.out)["verdict"], document.err) == ("fail", "")
    rich = keystone("run", "-q", "--format", "rich", "--output", "three", directory=ready)
    assert rich.out.startswith("Keystone: small failed: ")
    assert "│" not in rich.out
    assert rich.err == ""
    wrong = keystone("run", "-q", "nowhere", directory=ready)
    assert (wrong.code, wrong.out) == (2, "")
    assert "nowhere does not exist" in wrong.err


def test_verbose_tells_commands_services_times_and_files(tmp_path: Path) -> None:
    text = spec(
        "{type: command, command: 'echo working; true'}",
        "{type: command_exit, command: 'test -e ready'}",
        services="[{name: api, type: http_mock}]",
        setup="{commands: ['touch ready']}",
    )
    called = run_spec(tmp_path, text, "-v")
    assert called.code == 0, called.err
    assert [line.split()[0] for line in called.out.splitlines()] == ["pass"], "stdout carries the report alone"
    for said in (
        r"  small\.r0: service api: 127\.0\.0\.1:\d+",
        r"  small\.r0: setup \$ touch ready",
        r"  small\.r0: \$ .*sh -c 'echo working; true'",
        r"  small\.r0: exit code 0 after [\d.]+ s: .*",
        r"  small\.r0: \$ .*test -e ready.*",
        r"  small\.r0: agent took (?:less than )?[\d.]+ s",
        r"  small\.r0: files are in .*/out/cells/small\.r0",
        r"report: out/report\.html \(open it in a browser\)",
        r"keystone: run took (?:less than )?[\d.]+ s and ends with exit code 0",
    ):
        assert any(re.fullmatch(said, line) for line in called.err.splitlines()), (said, called.err)
    usual = run_spec(tmp_path, text.replace("id: small", "id: other"), "--output", "usual")
    assert "$" not in usual.err


@pytest.mark.parametrize("secret", ["it's-no-business-of-yours", "hunter2-hunter2-hunter2-hunter2"])
def test_verbose_masks_a_secret_before_its_command_is_quoted_and_cut(tmp_path: Path, secret: str) -> None:
    command = f'true {"x" * 70} "{{{{ secrets.KEY }}}}"'
    text = spec(
        f"{{type: command, command: '{command}'}}",
        f"{{type: command_exit, command: '{command}'}}",
        secrets="[KEY]",
        setup=f"{{commands: ['{'y' * 3}() {{ :; }}; {command}']}}",
    )
    called = run_spec(tmp_path, text, "-v", environ={"KEY": secret})
    assert called.code == 0, called.err
    assert "$" in called.err
    assert secret[:4] not in called.err


@pytest.mark.parametrize(
    ("words", "quiet", "usual", "verbose"),
    [
        (["validate"], "small: valid", "small: valid", "it_holds: file_exists"),
        (["plan"], "small.r0", "small.r0", "plan took"),
        (["schema"], '"$schema"', '"$schema"', "schema took"),
        (["report", "out", "--format", "json"], '"verdict"', '"verdict"', "report took"),
        (["compare", "out", "out"], "against the baseline", "against the baseline", "compare took"),
        (["clean", "--dry-run"], "", "", "clean took"),
        (["init", "new"], "wrote new/keystone.yaml", "now: keystone run", "init took"),
        (["doctor"], "", "ok keystone", "doctor took"),
    ],
)
def test_every_command_says_less_or_more(ready: Path, words: list[str], quiet: str, usual: str, verbose: str) -> None:
    refused = "keystone: can't reach a Docker engine" if ENGINE_IS_CLOSED and words[0] == "clean" else ""
    if words[0] in ("report", "compare"):
        keystone("run", "--output", "out", directory=ready)
    least = keystone(*words, "-q", directory=ready)
    assert quiet in least.out
    assert least.err.startswith(refused) if refused else least.err == ""
    if words[0] == "init":
        assert "now:" not in least.out
        (ready / "new" / "keystone.yaml").unlink()
        (ready / "new" / "agent" / "agent.sh").unlink()
    if words[0] == "doctor":
        assert all(line[:2] != "ok" for line in least.out.splitlines())
    between = keystone(*words, directory=ready)
    assert usual in between.out
    if words[0] == "init":
        (ready / "new" / "keystone.yaml").unlink()
        (ready / "new" / "agent" / "agent.sh").unlink()
    most = keystone(*words, "-v", directory=ready)
    assert usual in most.out
    assert (refused or verbose) in most.err


def test_a_terminal_gets_a_link_to_the_report(ready: Path) -> None:
    shown = keystone_on_terminal(["run", "--output", "out"], ready, {})
    assert shown.code == 1, shown.text
    (link,) = LINK.findall(shown.text)
    assert link == ((ready / "out" / "report.html").as_uri(), "out/report.html")


@pytest.mark.parametrize("terminal", ["dumb", "linux"])
def test_a_terminal_without_links_gets_an_address(ready: Path, terminal: str) -> None:
    shown = keystone_on_terminal(["run", "--output", "out"], ready, {"TERM": terminal})
    assert not LINK.search(shown.text)
    assert f"report: {(ready / 'out' / 'report.html').as_uri()} (open it in a browser)" in shown.text
    if terminal == "dumb":
        assert "\x1b" not in shown.text
        assert "[1/1] fail" in shown.text


def test_no_color_is_heeded_and_forced_color_too(ready: Path) -> None:
    colour = re.compile(r"\x1b\[[0-9;]*3[0-9]")
    assert colour.search(keystone_on_terminal(["run", "--output", "a"], ready, {}).text)
    assert not colour.search(keystone_on_terminal(["run", "--output", "b"], ready, {"NO_COLOR": "1"}).text)
    plain = keystone("run", "--output", "c", directory=ready)
    assert "\x1b" not in plain.out + plain.err
    forced = keystone("run", "--output", "d", directory=ready, environ={"FORCE_COLOR": "1", "TERM": "xterm-256color"})
    assert colour.search(forced.out)
    assert "│" in forced.out
    assert not LINK.search(forced.out + forced.err), "a log is not a terminal, whatever colours it takes"


@pytest.mark.parametrize("how", ["terminal", "COLUMNS"])
def test_forty_columns_are_enough(ready: Path, how: str) -> None:
    environ = {"COLUMNS": "40"} if how == "COLUMNS" else {}
    shown = keystone_on_terminal(["run", "--output", "out"], ready, environ, columns=100 if environ else 40)
    text = re.sub(r"\x1b\][^\x1b]*\x1b\\|\x1b\[[0-9;?]*[A-Za-z]|\r", "", shown.text)
    boxes = [line for line in text.splitlines() if line[:1] in set("╭│├╰")]
    assert boxes
    assert max(map(len, boxes)) <= 40
    assert "it_holds" in text
    helped = keystone_on_terminal(["run", "--help"], ready, environ, columns=100 if environ else 40)
    assert helped.code == 0
    assert max(len(line) for line in helped.lines) <= 40


COMMANDS = "x\\n::add-mask::secret\\n  ::error::no\\nb ##[error]no\\n"


@pytest.mark.parametrize("kind", ["md", "html", "junit", "json"])
def test_a_report_that_is_printed_in_a_job_holds_no_workflow_command(tmp_path: Path, kind: str) -> None:
    agent = f"{{type: command, command: \"printf '{COMMANDS}' | tee f.txt\"}}"
    check = f'{{type: file_content, path: f.txt, equals: "y\\n{COMMANDS}"}}'
    called = run_spec(tmp_path, spec(agent, check))
    assert called.code == 1, called.err
    printed = keystone("report", called.output, "--format", kind, directory=tmp_path).out
    assert "add-mask" in printed
    assert not re.search(r"(?m)^\s*::|##\[", printed)


@pytest.mark.parametrize("reader", ["left", "never there"])
@pytest.mark.parametrize(
    ("words", "code"),
    [
        *(
            (f"run {name}.yaml --format {kind}", code)
            for kind in ("plain", "rich", "json")
            for name, code in RUNS.items()
        ),
        ("compare good bad --format plain", 1),
        ("compare good bad --format rich", 1),
        ("compare bad good --format rich", 0),
        ("help", 0),
        ("schema", 0),
    ],
)
def test_a_reader_that_has_seen_enough_changes_no_exit_code(compared: Path, words: str, code: int, reader: str) -> None:
    reading, writing = os.pipe()
    with tempfile.TemporaryFile() as err:
        called = server().start(words.split(), compared, ENVIRONMENT, writing, err.fileno())
        os.close(writing)
        if reader == "left":
            os.read(reading, 1)
        os.close(reading)
        found = called.wait(120)
        err.seek(0)
        said = err.read()
    assert found == code, said
    assert b"Traceback" not in said
    assert b"BrokenPipe" not in said
