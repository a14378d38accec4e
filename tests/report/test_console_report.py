"""What a terminal and a job's log get to see."""

from __future__ import annotations

import io
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from samples import SAMPLES, forbidden, gate_failure, hostile, matrix, skipped_judge, usage_error
from support.sample_parts import HOSTILE, cell, check, run, spec

from keystone_action.cli.progress import RichProgress
from keystone_action.report import console
from keystone_action.report.console import plain, print_table, print_verdict
from keystone_action.scoring.results import RunResult


def table(result: RunResult) -> str:
    file = io.StringIO()
    print_table(result, file, summary=Path("/tmp/out/summary.md"))
    return file.getvalue()


def progress(result: RunResult, *, quiet: bool = False, secrets: tuple[str, ...] = ()) -> str:
    file = io.StringIO()
    with RichProgress(file, quiet=quiet) as shown:
        shown.secrets(secrets)
        shown.started(cells=2, finished=0, output=Path("out"), notices=result.notices)
        for one in result.specs:
            for finished in one.cells:
                shown.phase(finished.id, "agent")
                shown.cell(one.id, finished)
        shown.note("a note")
    return file.getvalue()


@pytest.mark.parametrize("name", SAMPLES)
def test_no_line_is_a_command_or_moves_the_cursor(name: str) -> None:
    result = SAMPLES[name]()
    for text in (table(result), plain(result), progress(result)):
        for line in text.split("\n"):
            assert not line.lstrip().startswith("::")
            assert "##[" not in line
        assert not set(text) & {"\x1b", "\r", "\0", "\u202e"}


def test_text_of_others_is_never_markup() -> None:
    assert "[bold red]markup[/]" in plain(hostile()) + progress(hostile())
    named = cell("c", check("[red]x[/red]", message="[link=https://evil.example]y[/link]"))
    assert "[red]x[/red]" in table(run(spec("s", named)))
    assert "[link=https://evil.example]y[/link]" in table(run(spec("s", named)))


@pytest.mark.parametrize("name", SAMPLES)
def test_the_verdict_says_nothing_twice(name: str) -> None:
    result, file = SAMPLES[name](), io.StringIO()
    print_verdict(result, file)
    for text in (file.getvalue(), table(result)):
        (line,) = [line for line in text.splitlines() if line.startswith("Keystone: ")]
        said = [part.removesuffix(" passed").rpartition(": ")[2] for part in line.split(" · ")]
        assert len(said) == len(set(said)), line


def test_the_verdict_says_what_its_reason_does_not() -> None:
    assert "Keystone: fix-tests failed" in table(gate_failure())
    assert " · 1 of 3 checks passed · " in table(gate_failure())


def test_the_table_says_verdict_composite_threshold_reason_and_where_the_summary_is() -> None:
    text = table(gate_failure())
    assert "Keystone: fix-tests failed: exit code 1, expected 0 (tests_pass), and 1 more check" in text
    assert "gate tests_pass scored 0.00" in text
    assert "tests_pass (gate)" in text
    assert "summary: /tmp/out/summary.md" in text
    assert "unknown key invariant" in table(usage_error())


def test_plain_is_one_line_a_cell() -> None:
    lines = plain(matrix()).splitlines()
    assert len(lines) == 13
    assert [line.split()[0] for line in lines].count("fail") == 2
    assert "(gate tests_pass scored 0.00, and a gate needs 1.00)" in lines[4]
    assert len(plain(hostile()).splitlines()) == 3
    assert plain(usage_error()).startswith("error: keystone.yaml:7:5: unknown key")


def test_a_log_gets_one_line_a_finished_cell() -> None:
    lines = progress(gate_failure()).splitlines()
    assert lines[0] == "2 cells; results go to out"
    assert lines[1].startswith("[1/2] fail")
    assert lines[-1] == "note: a note"
    assert len(lines) == 3


def test_a_report_that_is_written_while_it_runs_has_each_cell_once() -> None:
    result, progressed, report = matrix(), io.StringIO(), io.StringIO()
    with RichProgress(progressed, report=report) as shown:
        shown.started(cells=12, finished=0, output=Path("out"), notices=())
        for one in result.specs[0].cells[:3]:
            shown.cell(result.specs[0].id, one)
    whole = report.getvalue() + plain(result, reported=shown.reported)
    assert sorted(whole.splitlines()) == sorted(plain(result).splitlines())
    assert progressed.getvalue().splitlines() == ["12 cells; results go to out"]
    assert plain(result, reported={one.id for spec in result.specs for one in spec.cells}) == ""


def test_a_report_that_nobody_takes_is_left_for_the_end() -> None:
    gone = io.StringIO()
    gone.close()
    result = gate_failure()
    with RichProgress(io.StringIO(), report=gone) as shown:
        shown.cell("fix-tests", result.specs[0].cells[0])
    assert plain(result, reported=shown.reported) == plain(result)


def test_the_verdict_comes_with_what_to_know_about_it() -> None:
    file = io.StringIO()
    print_verdict(skipped_judge(), file)
    lines = file.getvalue().splitlines()
    assert lines[0].startswith("Keystone: ")
    assert any(line.startswith("note: Skipped: email_quality") for line in lines)


def test_a_narrow_terminal_still_shows_names_and_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "WIDTH_WITHOUT_TERMINAL", 40)
    text = table(gate_failure())
    assert max(len(line) for line in text.splitlines() if line[0] in "╭│├╰") == 40
    for part in ("tests_pass (gate) · score 0.00", "exit code 1, expected 0", "no_debug_logs"):
        assert part in " ".join(text.replace("│", " ").split())


def test_quiet_says_nothing() -> None:
    assert progress(hostile(), quiet=True) == ""


def test_secrets_are_masked_longest_first() -> None:
    secret = cell("c", check("t"), verdict="fail", reason="token hunter2-long and hunter2 leaked")
    text = progress(run(spec("s", secret)), secrets=("hunter2", "", "hunter2-long"))
    assert "hunter2" not in text
    assert "token *** and *** leaked" in text


def test_a_closed_stream_does_not_end_the_run() -> None:
    file = io.StringIO()
    shown = RichProgress(file)
    file.close()
    shown.phase("c", "agent")
    with pytest.raises(ValueError, match="closed"):
        file.write("")
    shown.note("into the void")


def test_a_stream_without_unicode_gets_question_marks() -> None:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    RichProgress(file).note("naïve ✓")
    file.flush()
    assert raw.getvalue() == b"note: na?ve ?\n"


SHOW_ON_A_TERMINAL = """
import sys
from pathlib import Path
sys.path[:0] = [sys.argv[1], str(Path(sys.argv[1]).parent)]
from samples import gate_failure
from support.sample_parts import HOSTILE
from keystone_action.cli.progress import RichProgress
from keystone_action.report.console import print_table
run = gate_failure()
with RichProgress() as progress:
    progress.started(cells=1, finished=0, output=Path("out"), notices=())
    progress.phase(HOSTILE, "agent")
    progress.cell("fix-tests", run.specs[0].cells[0])
print_table(run)
"""


def test_a_terminal_gets_a_bar_and_colours() -> None:
    main, other = pty.openpty()
    environment = {"PATH": os.environ["PATH"], "TERM": "xterm-256color", "COLUMNS": "100", "PYTHONUTF8": "1"}
    command = [sys.executable, "-c", SHOW_ON_A_TERMINAL, str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=other, stderr=other, stdin=other, env=environment) as process:
        os.close(other)
        text = b""
        while True:
            try:
                piece = os.read(main, 65536)
            except OSError:  # Linux says so when the other end is closed
                break
            if not piece:
                break
            text += piece
    os.close(main)
    assert process.returncode == 0, text.decode()
    shown = text.decode()
    assert "━" in shown
    assert "\x1b[31m" in shown
    assert "1/1" in shown
    assert "\x1b[32m✅" not in shown
    assert HOSTILE.splitlines()[1] not in shown


def test_broken_rules_stand_before_the_checks() -> None:
    text = table(forbidden())
    rule, check = text.index("forbidden rule db_writes_outside was violated:"), text.index("reconciliation_clean")
    assert rule < check
    for sentence in ("table audit_4: delete of 4 rows", "line 12, the agent's own output"):
        assert rule < text.index(sentence) < check
    file = io.StringIO()
    print_verdict(forbidden(), file)
    assert "table audit_4: delete of 4 rows" in file.getvalue()
