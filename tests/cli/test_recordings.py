"""`keystone recordings`: files that anybody may have written, as people see them."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.kept_recordings import ANSWERS, USED, entry, keep

from keystone_action.cli.main import main
from keystone_action.cli.recordings import Recordings
from keystone_action.errors import UsageError
from keystone_action.files.removal import remove_tree
from keystone_action.runner.journal.identity import Identity
from keystone_action.runner.journal.journal import write_journal

EVIL = "\x1b[31mred\x1b[0m \u202eevil ::error::x hunter22-hunter22"


@dataclass
class Called:
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


def call(folder: Path, what: str, *words: str, environ: Mapping[str, str] | None = None) -> Called:
    """By the class that the command is made of: masks and escapes without a process."""
    kind = "json" if "json" in words else "plain"
    out, err = io.StringIO(), io.StringIO()
    found = Recordings(Path("kept"), folder, environ or {}, out, err)
    names = [word for word in words if word not in ("json", "plain")]
    code = found.show(names[0] if names else None, kind) if what == "show" else getattr(found, what)(kind)
    return Called(code, out.getvalue(), err.getvalue())


def test_a_list_has_a_line_for_each(tmp_path: Path) -> None:
    keep(tmp_path / "kept" / "repair")
    keep(
        tmp_path / "kept" / "repair", entry(*ANSWERS["openai chat"], api="openai", model="gpt-5"), cell="repair.two.r0"
    )
    found = call(tmp_path, "list")
    assert (found.code, found.err) == (0, "")
    head, first, second = (line.split("  ") for line in found.out.splitlines())
    assert [word.strip() for word in head if word] == [
        *("CELL", "SPEC", "DATE", "PROVIDER", "MODEL", "REQUESTS", "TOKENS", "COST"),
    ]
    assert [word.strip() for word in first if word] == [
        *("repair.r0", "repair", "2026-11-23 14:05", "anthropic", "m", "2", "2.4k", "cost unknown"),
    ]
    assert [word.strip() for word in second if word][3:6] == ["router", "gpt-5", "1"]


def test_a_list_for_programs(tmp_path: Path) -> None:
    keep(tmp_path / "kept", entry(*ANSWERS["anthropic"], usage={**USED, "cost_usd": 0.25}))
    (tmp_path / "kept" / "broken.jsonl").write_text("{}\n")
    found = call(tmp_path, "list", "json")
    assert found.code == 1
    assert found.document["recordings"] == [
        {
            "cell": "repair.r0",
            "spec": "repair",
            "date": "2026-11-23T14:05:00Z",
            "product": "1.0",
            "providers": ["anthropic"],
            "models": ["m"],
            "requests": 1,
            "tokens": {"uncached": 1_000, "cache_read": 0, "cache_write": 0, "output": 200},
            "cost_usd": 0.25,
        }
    ]
    (problem,) = found.document["problems"]
    assert problem["file"] == "broken.jsonl"
    assert problem["problem"].startswith(
        "line 1: expected the first line of a recording, with `keystone_recording`, found"
    )
    assert found.err.startswith("broken.jsonl: line 1: expected the first line")


def test_what_a_known_model_cost_is_told(tmp_path: Path) -> None:
    keep(tmp_path / "kept", entry(*ANSWERS["anthropic"], model="claude-sonnet-4-5"))
    assert "$0.0060" in call(tmp_path, "list").out


@pytest.mark.parametrize("api", ANSWERS)
def test_a_request_of_each_api_is_readable(tmp_path: Path, api: str) -> None:
    keep(tmp_path / "kept", entry(*ANSWERS[api], api=api.partition(" ")[0]))
    found = call(tmp_path, "show")
    assert found.code == 0
    lines = found.out.splitlines()
    assert lines[0] == "repair.r0, recorded 2026-11-23 14:05 UTC by Keystone 1.0"
    assert any(line.startswith("request 1 to m (") and "conversation 1 with tools, turn 1" in line for line in lines)
    assert any(line.endswith(": You repair.") for line in lines)
    assert any(line.endswith(": Repair it") for line in lines)
    assert any(line.startswith("  tools: bash") for line in lines)
    assert "  answered in 1.2 s" in lines
    assert "  said: Let me look." in lines
    assert '  called: bash {"cmd": "ls"}' in lines


def test_of_a_turn_only_what_is_new_is_shown(tmp_path: Path) -> None:
    keep(tmp_path / "kept")
    found = call(tmp_path, "show").out
    second = found[found.index("request 2") :]
    assert "  user: a.py\n    b.py\n" in second
    assert "max_tokens: 5" in second
    assert "  said: Done.\n    All.\n" in second
    assert "Repair it" not in second
    assert "You repair." not in second
    documents = call(tmp_path, "show", "json").document["entries"]
    assert [one.get("continues") for one in documents] == [None, {"messages": 1}]


def test_an_error_that_was_recorded_is_shown_with_its_status(tmp_path: Path) -> None:
    error = {"type": "error", "error": {"type": "invalid_request_error", "message": "too long"}}
    keep(tmp_path / "kept", entry(ANSWERS["anthropic"][0], error, status=400))
    out = call(tmp_path, "show").out
    assert "  answered in 1.2 s (400)" in out
    assert "  problem: too long" in out


def test_one_of_several_is_named(tmp_path: Path) -> None:
    keep(tmp_path / "kept" / "repair")
    keep(tmp_path / "kept" / "repair", cell="repair.r1")
    assert call(tmp_path, "show", "repair.r1").out.startswith("repair.r1, ")
    with pytest.raises(UsageError, match="there are 2 recordings here") as several:
        call(tmp_path, "show")
    assert "repair.r0, repair.r1" in several.value.help
    with pytest.raises(UsageError, match=r"no recording of 'repair\.r2'"):
        call(tmp_path, "show", "repair.r2")


def test_what_others_wrote_is_masked_and_escaped(tmp_path: Path) -> None:
    request = {"model": EVIL, "system": EVIL, "messages": [{"role": EVIL, "content": EVIL}], EVIL: EVIL}
    said = {
        "type": "message",
        "content": [{"type": "text", "text": EVIL}, {"type": "tool_use", "name": EVIL, "input": {}}],
    }
    path = keep(tmp_path / "kept", entry(request, said), product=EVIL)
    keep(tmp_path / "kept", product=EVIL, date=EVIL, cell="repair.r1")
    (path.parent / f"{EVIL[:12]}.jsonl").write_text("x")
    environ = {"SOME_API_KEY": "hunter22-hunter22"}
    for what, kind in (("list", "plain"), ("check", "plain"), ("show", "plain"), ("list", "json"), ("show", "json")):
        words = (kind, "repair.r0") if what == "show" else (kind,)
        found = call(tmp_path, what, *words, environ=environ)
        text = found.out + found.err
        assert text.isascii() or "\x1b" not in text
        assert "\x1b" not in text
        assert "\u202e" not in text
        assert "hunter22" not in text
        assert "\n::error" not in text


@given(st.text(max_size=40))
def test_no_text_ends_a_line_or_reaches_the_terminal(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    folder = tmp_path_factory.mktemp("recordings")
    request = {"model": "m", "messages": [{"role": "user", "content": text}]}
    keep(folder / "kept", entry(request, {"type": "message", "content": [{"type": "text", "text": text}]}, model=text))
    for line in call(folder, "show").out.split("\n")[:-1]:
        assert line.isprintable() or not any(ord(one) < 32 or 0x7F <= ord(one) < 0xA0 for one in line)
    assert len(call(folder, "list").out.split("\n")) == 3


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _edited(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"Let me look.", b"Let me pass."))


def _other_request(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"Repair it", b"Repair us"))


def _link(path: Path) -> None:
    path.rename(path.parent.parent / "elsewhere")
    path.symlink_to("../elsewhere")


def _copied(path: Path) -> None:
    path.rename(path.with_name("repair.r7.jsonl"))


def _other_version(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"keystone_recording": 1', b'"keystone_recording": 2'))


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()
    (path / "x.jsonl").write_text("")


def _planted(path: Path) -> None:
    key = b"sk-ant-api03-" + b"a" * 80
    path.write_bytes(path.read_bytes().replace(b"Let me look.", key))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (_cut, "cut"),
        (_edited, "edited"),
        (_other_request, "it was edited"),
        (_link, "found a link"),
        (_copied, "it is of the cell 'repair.r0', and a file of that cell is repair.r0.jsonl"),
        (_other_version, "expected a recording of version 1, found version 2"),
        (_folder, "expected a recording, found an empty file"),
        (_planted, "a key of Anthropic"),
    ],
)
def test_a_check_names_each_file_that_can_not_be_replayed(
    tmp_path: Path, spoil: Callable[[Path], None], said: str
) -> None:
    keep(tmp_path / "kept", cell="repair.good.r0")
    spoil(keep(tmp_path / "kept"))
    found = call(tmp_path, "check")
    assert (found.code, found.err) == (1, "")
    problem, total = found.out.splitlines()
    assert said in problem
    assert problem.startswith("repair.r")
    assert total == "2 recordings, 1 can't be replayed"
    assert "sk-ant" not in found.out
    document = call(tmp_path, "check", "json").document
    assert document["recordings"] == 2
    assert [said in one["problem"] for one in document["problems"]] == [True]


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (
            {"date": "yesterday"},
            'line 1: expected a date and a time under `date`, found "yesterday"; record anew with --gateway record',
        ),
        ({"spec": "other"}, "the cell 'repair.r0' is not one of the spec 'other'"),
    ],
)
def test_a_first_line_that_was_made_up_is_a_problem(tmp_path: Path, more: dict[str, Any], said: str) -> None:
    keep(tmp_path / "kept", **more)
    assert call(tmp_path, "check").out.startswith(f"repair.r0.jsonl: {said}")


def test_a_check_of_good_ones(tmp_path: Path) -> None:
    keep(tmp_path / "kept" / "repair")
    (tmp_path / "kept" / "README.md").write_text("not one")
    (tmp_path / "kept" / ".repair.r0.jsonl.0123").write_text("of a run that is under way")
    found = call(tmp_path, "check")
    assert (found.code, found.out) == (0, "1 recording, all can be replayed\n")
    assert call(tmp_path, "check", "json").document == {"recordings": 1, "problems": []}


def test_results_of_runs_are_no_recordings(tmp_path: Path) -> None:
    top = tmp_path / "kept"
    keep(top / "evals" / "recordings" / "repair")
    for folder in (top / ".keystone" / "runs" / "one", top / "keystone-results"):
        (folder / "cells" / "repair.r0").mkdir(parents=True)
        (folder / "cells" / "repair.r0" / "trace.jsonl").write_text("{}\n")
        write_journal(folder, Identity(), "run", [])
    assert call(tmp_path, "check").out == "1 recording, all can be replayed\n"


def test_a_folder_that_can_not_be_listed_is_not_passed_over(tmp_path: Path) -> None:
    """Here: below a path that the system finds too long."""
    keep(tmp_path / "kept")
    deep = os.open(tmp_path / "kept", os.O_RDONLY)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=deep)
        above, deep = deep, os.open("d" * 250, os.O_RDONLY, dir_fd=deep)
        os.close(above)
    os.close(deep)
    try:
        with pytest.raises(UsageError, match="can't be listed: File name too long"):
            call(tmp_path, "check")
    finally:
        remove_tree(tmp_path / "kept")


def test_by_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    path = keep(tmp_path / "kept")
    assert main(["recordings", "check", "kept"], {}) == 0
    assert main(["recordings", "show", str(path)], {}) == 0
    assert main(["recordings", "show", "kept", "repair.r0", "--format", "json"], {}) == 0
    capsys.readouterr()
    for words, told in (
        (["list", "nowhere"], "there is no file or folder"),
        (["check", "."], ""),
        (["show", "kept", "other"], "there is no recording of 'other' here"),
        (["list", "kept", "repair.r0"], "recordings list is about all recordings"),
        (["lost", "kept"], "'lost' is none of list, show, check"),
    ):
        code = main(["recordings", *words], {})
        assert code == (2 if told else 0)
        assert told in capsys.readouterr().err
    path.unlink()
    assert main(["recordings", "check", "kept"], {}) == 2
    assert "there are no recordings in kept: no files with the ending .jsonl" in capsys.readouterr().err
    path.write_text("no recording\n")
    assert main(["recordings", "show", "kept"], {}) == 2
    assert "repair.r0.jsonl:1: expected JSON" in capsys.readouterr().err
