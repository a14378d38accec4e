"""Secrets: every source, nothing silently empty, and nothing from the workflow's runner."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter
from support.process_world import eventually, runs

from keystone_action.errors import EXIT_ERROR, SecretError
from keystone_action.evidence.masking import MASK, Masker
from keystone_action.runner import secrets as room
from keystone_action.runner.secrets import SecretValues, resolve_values
from keystone_action.spec.models.task import Secret, SecretEntry

ENTRY: TypeAdapter[SecretEntry] = TypeAdapter(Secret)


def entry(written: Any) -> SecretEntry:
    """A secret as a spec has it."""
    return ENTRY.validate_python(written)


def one(written: Any, directory: Path, reason: str = "", **environ: str) -> SecretValues:
    """Only this secret, in this environment."""
    environ.setdefault("PATH", os.environ["PATH"])
    return resolve_values([entry(written)], environ=environ, directory=directory, no_secrets_reason=reason)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("API_KEY", "from-env"),
        ({"name": "X", "source": "env:API_KEY"}, "from-env"),
        ({"name": "API_KEY", "source": "env"}, "from-env"),
        ({"name": "X", "source": "file:key.txt"}, "from-file"),
        ({"name": "X", "source": "file:~/home.txt"}, "from-home"),
        ({"name": "X", "source": "command:printf ' from-command \\n\\n'"}, "from-command"),
        ({"name": "X", "source": "command:cat key.txt"}, "from-file"),
        ({"name": "X", "source": "command:echo $API_KEY; echo noise >&2"}, "from-env"),
        ({"name": "X", "from": "static:// as it is "}, " as it is "),
        ({"name": "X", "from": "static://a://b"}, "a://b"),
    ],
)
def test_sources(tmp_path: Path, written: Any, value: str) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "home.txt").write_text("from-home")
    (tmp_path / "key.txt").write_text("\n from-file \r\n")
    resolved = one(written, tmp_path, API_KEY="from-env", HOME=str(home))
    assert list(resolved.values.values()) == [value]
    assert resolved.warnings == ()


def test_an_absolute_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("absolute")
    assert one({"name": "X", "source": f"file:{tmp_path / 'key'}"}, Path("/")).values == {"X": "absolute"}


def test_a_generated_value_is_new_for_each_run(tmp_path: Path) -> None:
    written = {"name": "TOKEN", "from": "generated"}
    first, second = one(written, tmp_path).values["TOKEN"], one(written, tmp_path).values["TOKEN"]
    assert len(bytes.fromhex(first)) == 32
    assert first != second


@pytest.mark.parametrize(
    ("written", "reason", "remedy"),
    [
        ("MISSING", "secret MISSING can't be resolved: the environment variable MISSING is not set", "Set MISSING"),
        ("EMPTY", "the environment variable EMPTY is empty", "`optional: true`"),
        ("BLANK", "the environment variable BLANK is empty", "Set BLANK"),
        ({"name": "X", "source": "env:OTHER"}, "secret X can't be resolved: the environment variable OTHER", "OTHER"),
        ({"name": "X", "source": "file:missing"}, "the file missing does not exist", "relative to the spec"),
        ({"name": "X", "source": "file:."}, "the file . is not a file", "name another file"),
        ({"name": "X", "source": "file:fifo"}, "the file fifo is not a file", "name another file"),
        ({"name": "X", "source": "file:empty"}, "the file empty is empty", "Write the value"),
        ({"name": "X", "source": "file:binary"}, "the file binary is not text", "Write the value"),
        ({"name": "X", "source": "file:nul"}, "holds a NUL character", "Write the value"),
        ({"name": "X", "source": "file:large"}, "the file large is larger than 1 MiB", "Write the value"),
        ({"name": "X", "source": "command:exit 3"}, "its command `exit 3` ended with exit code 3", "Run `exit 3`"),
        ({"name": "X", "source": "command:kill -9 $$"}, "ended with signal 9", "by hand"),
        ({"name": "X", "source": "command:true"}, "the output of `true` is empty", "must print the value"),
        ({"name": "X", "source": "command:no-such-program-here"}, "ended with exit code 127", "by hand"),
        ({"name": "X", "from": "static://"}, "static:// holds no text", "after static://"),
        ("GITHUB_TOKEN", "GITHUB_TOKEN belongs to the workflow's runner", "under another name"),
        ({"name": "X", "source": "env:ACTIONS_RUNTIME_TOKEN"}, "never a secret's source", "another name"),
        ({"name": "X", "source": "env:input_key"}, "never a secret's source", "another name"),
    ],
)
def test_what_can_not_be_resolved_is_named(tmp_path: Path, written: Any, reason: str, remedy: str) -> None:
    for name, content in {"empty": b" \n", "binary": b"\xff\xfe", "nul": b"a\0b", "large": b"x" * (2 << 20)}.items():
        (tmp_path / name).write_bytes(content)
    os.mkfifo(tmp_path / "fifo")
    environ = {"EMPTY": "", "BLANK": " \n", "GITHUB_TOKEN": "t", "ACTIONS_RUNTIME_TOKEN": "t", "input_key": "t"}
    with pytest.raises(SecretError) as problem:
        one(written, tmp_path, **environ)
    assert reason in problem.value.message
    assert remedy in problem.value.help
    assert problem.value.exit_code == EXIT_ERROR
    if isinstance(written, dict):
        assert one({**written, "optional": True}, tmp_path, **environ).values == {"X": ""}
    else:
        assert one({"name": written, "optional": True}, tmp_path, **environ).values == {written: ""}


def test_all_that_is_missing_is_said_at_once(tmp_path: Path) -> None:
    with pytest.raises(SecretError) as problem:
        resolve_values([entry("ONE"), entry("TWO"), entry("HOME")], environ={"HOME": "/root"}, directory=tmp_path)
    assert "secret ONE" in problem.value.message
    assert "secret TWO" in problem.value.message
    assert "HOME" not in problem.value.message


def test_specs_of_other_tools_have_their_own_way_out(tmp_path: Path) -> None:
    with pytest.raises(SecretError) as problem:
        resolve_values(
            [entry("KEY")], environ={}, directory=tmp_path, otherwise="take it off `env` in agenticassure.yaml"
        )
    where = "in a workflow: under `env:` of the step, and name it in the input `env`"
    assert problem.value.help == f"Set KEY ({where}), or take it off `env` in agenticassure.yaml."


def test_a_run_without_secrets_says_why(tmp_path: Path) -> None:
    reason = "Runs of pull requests from forks get no secrets"
    with pytest.raises(SecretError) as problem:
        one("API_KEY", tmp_path, reason)
    assert problem.value.help.startswith(f"{reason}. Set API_KEY")


def test_short_values_are_not_masked_and_it_is_said(tmp_path: Path) -> None:
    resolved = one({"name": "PIN", "from": "static://123"}, tmp_path)
    assert resolved.values == {"PIN": "123"}
    assert resolved.warnings == ("secret PIN has fewer than 4 characters and is not masked in what is written",)
    assert one({"name": "PIN", "from": "static://1234"}, tmp_path).warnings == ()


def test_each_line_of_a_value_is_masked(tmp_path: Path) -> None:
    value = "-----BEGIN KEY-----\nabcdefgh\nxy\n-----END KEY-----"
    masker = Masker(one("PEM", tmp_path, PEM=value).values)
    assert [masker.text(part) for part in (value, *value.splitlines())] == [MASK, MASK, MASK, "xy", MASK]


def test_values_do_not_show_when_printed(tmp_path: Path) -> None:
    assert "hunter2" not in repr(one("PASSWORD", tmp_path, PASSWORD="hunter2"))


def test_what_a_command_writes_to_stderr_is_not_repeated(tmp_path: Path) -> None:
    with pytest.raises(SecretError) as problem:
        one({"name": "X", "source": "command:echo hunter2 >&2; exit 1"}, tmp_path)
    assert problem.value.message.count("hunter2") == 1  # in the command itself, as the author wrote it


def test_a_command_that_hangs_is_ended_with_all_it_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "COMMAND_SECONDS", 0.5)
    with pytest.raises(SecretError, match=r"took longer than 0\.5 s"):
        one({"name": "X", "source": "command:sleep 300 & echo $! > child; wait"}, tmp_path)
    child = int((tmp_path / "child").read_text())
    assert eventually(lambda: not runs(child)), "the command's child is still running"


@given(st.dictionaries(st.from_regex(r"[A-Z]{1,8}", fullmatch=True), st.text(max_size=12), max_size=4))
def test_never_empty_unless_optional(values: dict[str, str]) -> None:
    """Whatever the environment holds: a value as it is, or an error."""
    try:
        resolved = resolve_values([entry(name) for name in values], environ=values, directory=Path("/"))
    except SecretError:
        assert any(not value.strip() for value in values.values())
        return
    assert resolved.values == values
    assert all(value.strip() for value in values.values())
