"""`keystone completion`: the script in the real shell, with the keys that people press."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, keystone, spec
from support.terminals import on_terminal

PRESSED = [
    ("keystone ru\t", "ru", "run"),
    ("keystone run --qui\t", "--qui", "--quiet"),
    ("keystone run --fail-on-s\t", "--fail-on-s", "--fail-on-s"),
    ("keystone run --sandbox dock\t", "dock", "docker"),
    ("keystone run evals/sm\t", "evals/sm", "evals/small.keystone.yaml"),
    ("keystone run --filter small.o\t", "small.o", "small.only.r0"),
    ("keystone report res\t", "res", "results/"),
    ("keystone completion zs\t", "zs", "zsh"),
]
SHELLS = {
    "bash": (["bash", "--rcfile", "rc", "-i"], "rc", "source ./script\n"),
    "zsh": (["zsh", "-d", "-i"], ".zshrc", 'autoload -U compinit; compinit -u\neval "$(<script)"\nunsetopt beep\n'),
}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a spec, results, and `keystone` on the PATH."""
    (tmp_path / "evals").mkdir()
    (tmp_path / "results").mkdir()
    text = spec(scenarios="[{id: only, prompt: p}]")
    (tmp_path / "evals" / "small.keystone.yaml").write_text(text, "utf-8")
    (tmp_path / "evals" / "small.txt").write_text("no spec", "utf-8")
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "keystone"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m keystone_action "$@"\n', "utf-8")
    program.chmod(0o755)
    return tmp_path


def script_for(shell: str, place: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed here")
    called = keystone("completion", shell, directory=place)
    assert (called.code, called.err) == (0, "")
    (place / "script").write_text(called.out, "utf-8")


@pytest.mark.parametrize("shell", SHELLS)
def test_a_key_press_completes_what_was_begun(shell: str, place: Path) -> None:
    """`keystone` is a function here that prints its words; for the ids of cells it asks the real one."""
    script_for(shell, place)
    command, file, settings = SHELLS[shell]
    says = 'keystone() { if [ "$1" = plan ]; then command keystone "$@"; else printf \'GOT<%s>\\n\' "$*"; fi; }\n'
    (place / file).write_text(f"PS1='$ '\n{settings}{says}", "utf-8")
    typed = "".join(f"{keys}\r" for keys, _, _ in PRESSED) + "exit\r"
    environ = {
        "PATH": f"{place / 'bin'}:{ENVIRONMENT['PATH']}",
        "HOME": str(place),
        "ZDOTDIR": str(place),
        "TERM": "dumb",
    }
    shown = on_terminal(command, place, environ, typed=typed.encode())
    got = [line[4:-1].strip() for line in shown.lines if line.startswith("GOT<")]
    words = [keys.removeprefix("keystone ").rstrip("\t") for keys, _, _ in PRESSED]
    expected = [word.removesuffix(begun) + whole for word, (_, begun, whole) in zip(words, PRESSED, strict=True)]
    assert [one.rstrip("/") for one in got] == [one.rstrip("/") for one in expected], shown.text


def test_fish_offers_the_same(place: Path) -> None:
    script_for("fish", place)
    environ = {**ENVIRONMENT, "PATH": f"{place / 'bin'}:{ENVIRONMENT['PATH']}", "HOME": str(place)}
    for keys, _, whole in PRESSED:
        line = f"source script; complete -C '{keys.rstrip(chr(9))}'"
        done = subprocess.run(
            ["fish", "--no-config", "-c", line],
            cwd=place,
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        offered = [one.split("\t")[0] for one in done.stdout.splitlines()]
        assert any(one.startswith(whole) for one in offered), (keys, done.stdout, done.stderr)


def test_a_shell_that_is_not_known_is_named(tmp_path: Path) -> None:
    called = keystone("completion", "tcsh", directory=tmp_path)
    assert (called.code, called.out) == (2, "")
    assert "'tcsh' is none of bash, zsh, fish" in called.err


def test_no_script_runs_what_it_offers(place: Path) -> None:
    """bash expands the words that it is offered: an id must hold nothing that it would run."""
    text = spec(parallelism="{matrix: {m: ['$(touch hacked)`touch hacked`']}}")
    (place / "evals" / "small.keystone.yaml").write_text(text, "utf-8")
    script_for("bash", place)
    line = "source ./script; COMP_WORDS=(keystone run --filter sm); COMP_CWORD=3; _shtab_keystone; echo ${COMPREPLY[@]}"
    environ = {**ENVIRONMENT, "PATH": f"{place / 'bin'}:{ENVIRONMENT['PATH']}"}
    done = subprocess.run(
        ["bash", "-c", line], cwd=place, env=environ, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.startswith("small"), (done.stdout, done.stderr)
    assert not (place / "hacked").exists()
