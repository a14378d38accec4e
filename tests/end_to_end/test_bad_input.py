"""What a user gets for each thing that can be wrong: the right exit code, a sentence that helps, no traceback."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.command_line import ENVIRONMENT, ROOT, keystone, run_spec, spec
from support.mounts import need_mounts

AS_ROOT = os.geteuid() == 0


def sentence(called, code: int, *parts: str) -> None:
    assert called.code == code, called.out + called.err
    for part in parts:
        assert part in called.err, called.err
    assert not called.has_traceback


def test_missing_spec_suggests_the_nearest(tmp_path):
    (tmp_path / "keystone.yaml").write_text(spec())
    called = keystone("run", "keystone.yml", directory=tmp_path)
    sentence(called, 2, "keystone.yml does not exist", "did you mean keystone.yaml?")


def test_directory_without_specs(tmp_path):
    (tmp_path / "evals").mkdir()
    (tmp_path / "evals" / "readme.md").write_text("nothing here")
    sentence(keystone("run", "evals", directory=tmp_path), 2, "no spec found in evals", "keystone init")


def test_no_spec_named(tmp_path):
    for command in ("run", "validate", "plan"):
        sentence(keystone(command, directory=tmp_path), 2, "there is no keystone.yaml", str(tmp_path), "keystone init")


@pytest.mark.parametrize("number", ["1.5", "nan"])
def test_bad_option(tmp_path, number):
    sentence(keystone("run", "x.yaml", "--threshold", number, directory=tmp_path), 2, "number from 0 to 1")


def test_misspelt_option_suggests_the_nearest(tmp_path):
    sentence(
        keystone("run", "x.yaml", "--treshold", "1", directory=tmp_path), 2, "--treshold", "did you mean --threshold?"
    )


def test_zero_scenarios(tmp_path):
    (tmp_path / "cases.jsonl").write_text("")
    called = run_spec(tmp_path, spec(dataset="{path: cases.jsonl}"))
    sentence(called, 2, "cases.jsonl")
    assert not (tmp_path / "out" / "results.json").exists()


def test_filter_that_matches_nothing_is_not_green(tmp_path):
    sentence(run_spec(tmp_path, spec(), "--filter", "nothing-like-this"), 2, "nothing to run", "--filter")


def test_tag_that_matches_nothing_is_not_green(tmp_path):
    sentence(run_spec(tmp_path, spec(), "--tag", "nightly"), 2, "nothing to run", "--tag nightly")


def test_unreadable_spec(tmp_path):
    (tmp_path / "keystone.yaml").symlink_to(tmp_path / "gone.yaml")
    sentence(keystone("run", "keystone.yaml", directory=tmp_path), 2, "keystone.yaml")


def test_binary_spec(tmp_path):
    (tmp_path / "keystone.yaml").write_bytes(bytes(range(256)))
    sentence(keystone("run", "keystone.yaml", directory=tmp_path), 2, "keystone.yaml:1")


def test_unknown_check_type_suggests_the_nearest_and_points(tmp_path):
    called = run_spec(tmp_path, spec(check="{type: file_exist, path: x}"))
    sentence(called, 2, "keystone.yaml:6:", "file_exist", "did you mean", "file_exists", "^")


def test_names_of_other_hosts_without_a_container(tmp_path):
    fields = {"network": "{dns_overrides: {a.example: api}}", "services": "[{name: api, type: http_mock}]"}
    sentence(run_spec(tmp_path, spec(**fields)), 2, "keystone.yaml:5:", "dns_overrides can't be kept", "set base")


@pytest.mark.parametrize("mode", ["rewind", "", "Replay"])
def test_a_mode_of_the_gateway_that_there_is_not(tmp_path, mode):
    sentence(run_spec(tmp_path, spec(), f"--gateway={mode}"), 2, "--gateway", "live", "record", "replay")


def test_a_replay_of_what_was_never_recorded(tmp_path):
    sentence(run_spec(tmp_path, spec(), "--gateway", "replay"), 3, "does not exist", "--gateway record")


@pytest.mark.parametrize("amount", ["-0.01", "nan", "inf", "1e400", "free", ""])
def test_an_amount_that_is_none(tmp_path, amount):
    sentence(run_spec(tmp_path, spec(), f"--max-cost-usd={amount}"), 2, "--max-cost-usd", "a number from 0")


def test_all_errors_of_a_file_at_once(tmp_path):
    text = spec(check="{type: file_exists, path: /etc/passwd}", scoring="{pass_treshold: 0.5}").replace("id: small", "")
    called = run_spec(tmp_path, text)
    sentence(called, 2, "pass_threshold", "id", "/etc/passwd")
    assert called.err.count("keystone.yaml:") == 3


def test_param_that_nothing_uses(tmp_path):
    sentence(run_spec(tmp_path, spec(), "--param", "modle=a"), 2, "modle")


def test_unresolvable_secret(tmp_path):
    agent = "{type: command, command: ['true'], env: {T: '{{ secrets.TOKEN }}'}}"
    called = run_spec(tmp_path, spec(agent, secrets="[TOKEN]"))
    assert called.code == 3
    (cell,) = called.cells
    assert cell["verdict"] == "error"
    assert "TOKEN" in cell["error"]
    assert not called.has_traceback


def test_service_that_never_gets_ready(tmp_path):
    services = "[{name: api, type: external, url: 'http://127.0.0.1:9', ready_timeout: 1s}]"
    called = run_spec(tmp_path, spec(services=services))
    assert called.code == 3
    (cell,) = called.cells
    assert "api" in cell["error"]
    assert "1 s" in cell["error"]


def test_agent_binary_that_does_not_exist_is_the_harness_fault(tmp_path):
    called = run_spec(tmp_path, spec("{type: cli, binary: no-such-agent}"))
    assert called.code == 3
    (cell,) = called.cells
    assert cell["verdict"] == "error"
    assert "no-such-agent" in cell["error"]


def test_shell_agent_that_ends_with_127_is_a_failed_agent(tmp_path):
    called = run_spec(tmp_path, spec("{type: command, command: 'no-such-agent'}", "{type: file_exists, path: x}"))
    assert called.code == 1
    assert called.cells[0]["agent"]["exit_code"] == 127


def test_check_program_that_is_not_in_the_sandbox_is_an_error(tmp_path):
    called = run_spec(tmp_path, spec(check="{type: command_exit, command: 'cargo-of-keystone test'}"))
    assert called.code == 3
    assert "cargo-of-keystone is not in this sandbox" in called.checks["it_holds"]["message"]


def test_agent_that_prints_nothing(tmp_path):
    called = run_spec(tmp_path, spec())
    assert called.code == 0
    assert called.cells[0]["agent"]["output"] == ""


def test_agent_that_prints_a_hundred_megabytes(tmp_path):
    """Fifty times what is kept."""
    agent = "{type: command, command: 'head -c 100000000 /dev/zero | tr \"\\\\0\" x; echo END'}"
    called = run_spec(tmp_path, spec(agent))
    assert called.code == 0, called.err
    kept = (called.output / "cells" / "small.r0" / "agent.stdout").read_text()
    assert kept.startswith("xxxx")
    assert kept.endswith("END\n")
    assert "bytes cut" in kept
    assert len(kept) < 3 << 20
    assert (called.output / "results.json").stat().st_size < 1 << 20


def test_agent_that_prints_invalid_utf8_and_control_characters(tmp_path):
    agent = r"""{type: command, command: 'printf "\377\376 \033[31m ::error::owned\n##[group]x\n</details>"'}"""
    called = run_spec(tmp_path, spec(agent, "{type: file_exists, path: x}"), environ={"GITHUB_ACTIONS": "true"})
    assert called.code == 1
    assert "\ufffd" in called.cells[0]["agent"]["output"]
    summary = (called.output / "summary.md").read_text()
    assert "\033" not in summary
    assert not any(line.startswith("::") or "##[" in line for line in (called.out + called.err).splitlines())


def test_two_runs_into_the_same_directory(tmp_path):
    assert run_spec(tmp_path, spec()).code == 0
    before = (tmp_path / "out" / "results.json").read_bytes()
    sentence(run_spec(tmp_path, spec()), 2, "already holds results", "--resume")
    assert (tmp_path / "out" / "results.json").read_bytes() == before


def test_output_directory_that_is_a_file(tmp_path):
    (tmp_path / "out").write_text("mine")
    sentence(run_spec(tmp_path, spec()), 3, "results can't be written", "--output")
    assert (tmp_path / "out").read_text() == "mine"


def _mounted(tmp_path: Path, options: str, script: str) -> subprocess.CompletedProcess[str]:
    """Run a script with a small file system of its own on `full`."""
    (tmp_path / "full").mkdir()
    (tmp_path / "keystone.yaml").write_text(
        spec("{type: command, command: 'head -c 300000 /dev/urandom | base64'}", "{type: file_exists, path: x}")
    )
    mount = f"mount -t tmpfs -o {options} none {tmp_path}/full && cd {tmp_path} && {script}"
    unshare = ["unshare", "-m"] if AS_ROOT else ["unshare", "-rm"]
    need_mounts(*unshare)
    return subprocess.run(
        [*unshare, "sh", "-c", mount],
        env={**ENVIRONMENT, "PYTHON": shutil.which("python3") or "", "ROOT": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_disk_full_in_the_output_directory(tmp_path):
    import sys

    run = f"{sys.executable} -m keystone_action run keystone.yaml --output full/out"
    done = _mounted(tmp_path, "size=256k", f"{run}; echo code $?")
    assert "code 3" in done.stdout, done.stdout + done.stderr
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_read_only_output_directory(tmp_path):
    import sys

    run = f"{sys.executable} -m keystone_action run keystone.yaml --output full/out"
    done = _mounted(tmp_path, "size=1m,ro", f"{run}; echo code $?")
    assert "code 3" in done.stdout, done.stdout + done.stderr
    assert "read-only" in done.stderr
    assert "Traceback" not in done.stderr


def test_internal_errors_show_a_traceback_with_verbose_only(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "results.json").write_text('{"schema_version": 99}')
    called = keystone("report", "results", directory=tmp_path)
    sentence(called, 2, "99")
    assert "Traceback" in keystone("report", "results", "--verbose", directory=tmp_path).err


POINTER = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'2' * 64}\nsize 104857\n"
NEEDS = '{type: tests, cmd: "python3 -c \'open(\\"want.json\\")\'", inject: [want.json]}'
FOLDER = "{type: files, expect_dir: expected}"


@pytest.mark.parametrize(("check", "file"), [(NEEDS, "want.json"), (FOLDER, "expected/a/want.json")])
def test_a_file_that_git_lfs_did_not_fetch_is_never_the_agents_fault(tmp_path, check, file):
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(POINTER)
    for command in ("run", "validate"):
        (tmp_path / "keystone.yaml").write_text(spec("{type: none}", check))
        called = keystone(command, directory=tmp_path)
        told = called.out + called.err
        assert called.code == 2, told
        assert f"{file}:1:1: this is a pointer of Git LFS, not the file itself" in told
        assert "`lfs: true`" in told


def test_other_files_that_git_lfs_did_not_fetch_are_named_as_that(tmp_path):
    (tmp_path / "recordings" / "small").mkdir(parents=True)
    for name in ("token", "base.json", "recordings/small/small.r0.jsonl"):
        (tmp_path / name).write_text(POINTER)
    text = spec("{type: command, command: 'true'}", "{type: file_absent, path: a}")
    secret = run_spec(tmp_path, f"{text}secrets: [{{name: TOKEN, source: 'file:token'}}]\n")
    assert (secret.code, "the file token is a pointer of Git LFS" in secret.err + secret.out) == (3, True), secret.err
    (tmp_path / "keystone.yaml").write_text(text)
    for words, code in ((("--baseline", "base.json"), 2), (("--gateway", "replay", "--output", "other"), 3)):
        called = keystone("run", *words, directory=tmp_path)
        assert called.code == code, called.err
        assert "a pointer of Git LFS, not the file itself" in called.out + called.err


def test_a_pointer_in_the_workspace_is_the_agents(tmp_path):
    """What the agent works on may be what it is; a text that only begins like a pointer is one."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "big.bin").write_text(POINTER)
    (tmp_path / "want.json").write_text(POINTER + "x" * 1024)
    called = run_spec(tmp_path, spec("{type: none}", NEEDS, workspace="app"))
    assert called.code == 0, called.out + called.err


def test_a_parameter_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "keystone.yaml").write_text(spec("{type: none}", "{type: file_exists, path: '{{ params.x }}'}"))
    word = os.fsdecode(b"x=\xff")
    done = subprocess.run(
        [sys.executable, "-m", "keystone_action", "run", "--param", word],
        cwd=tmp_path,
        env=ENVIRONMENT,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2, done
    assert b"is not name=value in UTF-8" in done.stderr
