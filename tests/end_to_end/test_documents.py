"""What README and docs say is true: their commands run, their specs load and pass; workflows are linted elsewhere."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from support.command_line import ENGINE_IS_CLOSED, NO_ENGINE, ROOT, keystone, run_spec
from support.images import POSTGRES, PYTHON
from support.released import missing

NUMBERS = ("no", "one", "two", "three", "four", "five", "six")
README = (ROOT / "README.md").read_text("utf-8")
FOLLOWED = {"tutorial.md", "scoring.md"}
"""Done from their first line to their last by test_tutorial.py and test_guides.py."""
DOCUMENTS = {
    path.relative_to(ROOT): path.read_text("utf-8")
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
    if path.name not in FOLLOWED
}


def blocks(language: str) -> list[str]:
    pattern = re.compile(rf"^```{language}\n(.*?)^```", re.MULTILINE | re.DOTALL)
    return [block for text in DOCUMENTS.values() for block in pattern.findall(text)]


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.strip()]
    return [shlex.split(line, comments=True) for line in lines]


def test_the_make_targets_exist():
    makefile = (ROOT / "Makefile").read_text("utf-8")
    wanted = {words[1] for words in commands() if words[0] == "make"}
    wanted |= set(re.findall(r"`(?:KEYSTONE_DEMO=broken )?make ([\w-]+)`", "".join(DOCUMENTS.values())))
    tests = {"test", "test-slow", "test-containers", "test-fast"}
    assert wanted == {"demo", "lint", "hostile", "faults", "docs", "bench", *tests}
    for target in wanted:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_every_keystone_command_runs_as_shown(tmp_path):
    shown = [words for words in commands() if words[0] == "keystone"]
    known = {"init", "validate", "run", "report", "compare", "plan", "merge", "schema", "explain", "doctor", "clean"}
    known |= {"completion", "help"}
    assert {words[1] for words in shown} == known
    for words in shown:
        called = keystone(*words[1:], directory=tmp_path)
        expected = 3 if ENGINE_IS_CLOSED and words[1] == "clean" else 0
        assert called.code == expected, (words, called.out, called.err)
        assert called.err if expected else called.out


def test_every_command_is_either_run_or_known():
    assert {words[0] for words in commands()} == {"make", "keystone"}


def spec_of(name: str) -> str:
    (text,) = [block for block in blocks("yaml") if block.startswith(f"version: 1\nid: {name}")]
    return text


def test_every_spec_is_run():
    """Those of seven pages by tests of their own: test_agents_page.py, test_gateway_page.py and so on; what pre-commit
    reads by test_pre_commit.py."""
    pages = ("agents", "gateway", "forbidden", "http-agents", "recordings", "spec", "statistics")
    elsewhere = "".join(DOCUMENTS[Path("docs") / f"{name}.md"] for name in pages)
    shown = [block for block in blocks("yaml") if "jobs:" not in block and "uses:" not in block]
    shown = [block for block in shown if f"```yaml\n{block}```" not in elsewhere]
    shown = [block for block in shown if not block.startswith("# .pre-commit-config.yaml")]
    assert sorted(shown) == sorted(map(spec_of, ("changelog", "greeting", "in-containers", "with-a-key")))


def test_the_first_spec_runs(tmp_path):
    for agent, code in (('echo "# 1.2.0"', 0), ("echo draft", 1), ('touch notes.txt; echo "# 1.2.0"', 1)):
        folder = tmp_path / str(len(agent))
        folder.mkdir()
        called = run_spec(folder, spec_of("changelog").replace('echo "# 1.2.0"', agent))
        assert called.code == code, called.out + called.err


def test_what_is_installed_is_this_package():
    shown = re.findall(r"^\$ pip install (.*)$", "\n".join(DOCUMENTS.values()), re.MULTILINE)
    assert shown == [".", "'.[postgres]'"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert (project["name"], "keystone" in project["scripts"]) == ("keystone-action", True)
    assert "postgres" in project["optional-dependencies"]


def test_no_page_installs_from_an_address() -> None:
    """Nothing is there before the first release."""
    pages = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
    assert [page for page in pages if re.search(r"git\+https?:|git clone http", page.read_text("utf-8"))] == []


def test_the_first_screen_has_the_two_commands_of_a_clone() -> None:
    """`make demo` is run by test_demo.py; what `make test` would do is shown by make."""
    first = "\n".join(README.splitlines()[:40])
    assert "Linux" in first
    assert re.findall(r"^make \S+$", first, re.MULTILINE) == ["make demo", "make test"]
    done = subprocess.run(["make", "-n", "test"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "pytest" in done.stdout


@pytest.mark.slow
def test_the_readme_s_installation_runs(tmp_path: Path) -> None:
    """In a clone, line by line, by somebody whose HOME is empty."""
    clone, home = tmp_path / "clone", tmp_path / "home"
    home.mkdir()
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True, timeout=120)
    (block,) = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    (after,) = [one for one in re.findall(r"^```sh\n(.*?)^```", README, re.MULTILINE | re.DOTALL) if "keystone" in one]
    install = [line.removeprefix("$ ") for line in block.splitlines()]
    assert install[-1] == "pip install ."
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    of_pip = {
        name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_CERT_", "HTTPS_PROXY"))
    }
    environ = {**of_pip, "HOME": str(home), "PATH": f"{programs}:/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8"}
    script = "\n".join(["set -e", *install, "echo installed", after])
    done = subprocess.run(["bash", "-c", script], cwd=clone, env=environ, capture_output=True, text=True, timeout=500,
                          check=False)  # fmt: skip
    if "installed\n" not in done.stdout:
        missing(f"the package index is not reached: {done.stderr[-500:]}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "pass" in done.stdout


def test_the_spec_explained_runs(tmp_path):
    called = run_spec(tmp_path, spec_of("greeting"))
    assert called.code == 0, called.out + called.err
    assert len(called.cells) == 4


@pytest.mark.docker
def test_the_spec_in_containers_runs(tmp_path, image):
    assert (image(PYTHON), image(POSTGRES)) == ("python:3.12-slim", "postgres:16")
    called = run_spec(tmp_path, spec_of("in-containers"))
    assert called.code == 0, called.out + called.err
    assert called.document["sandbox"]["kind"] == "docker"
    assert {path.name for path in (called.output / "services").iterdir()} == {"db.log", "shop-in-containers.r0.log"}


def test_the_spec_in_containers_is_refused_without_an_engine(tmp_path):
    called = run_spec(tmp_path, spec_of("in-containers"), environ=NO_ENGINE)
    assert called.code == 2
    assert "base: python:3.12-slim needs a Docker engine" in called.err


def test_exit_codes_of_the_table_are_those_of_the_code():
    from keystone_action import errors

    table = dict(re.findall(r"^\| (\w+|—) \|.*\| (\d+) \|$", README, re.MULTILINE))
    assert (table["pass"], table["flaky"], table["fail"], table["error"]) == (
        str(errors.EXIT_PASS),
        str(errors.EXIT_PASS),
        str(errors.EXIT_FAIL),
        str(errors.EXIT_ERROR),
    )


def test_numbers_and_names_of_the_pages_are_those_of_the_code():
    import yaml

    from keystone_action.github import baseline
    from keystone_action.github import event as base

    page = DOCUMENTS[Path("docs/baseline.md")]
    assert (
        f"after a branch's newest {baseline.MAX_RUNS} runs, or {baseline.MAX_WITHOUT} of them that count, and after"
        f" {NUMBERS[baseline.MAX_FOUND]} artifacts"
    ) in page.replace("\n", " ")
    compared = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| (`[^|]*) \|", page, re.MULTILINE))))
    assert compared >= {*base._PULL_REQUESTS, "merge_group", "push", "workflow_dispatch"}
    evaluate = yaml.safe_load((ROOT / ".github" / "workflows" / "evaluate.yml").read_text("utf-8"))
    assert f"`<your job> / {evaluate['jobs']['merge']['name']}`" in DOCUMENTS[Path("docs/scaling.md")]
    minimal = yaml.safe_load((ROOT / "examples" / "workflows" / "minimal.yml").read_text("utf-8"))
    assert f"its check is called `{minimal['jobs']['evaluate']['name']}`" in README


def test_action_inputs_of_the_workflow_exist():
    import yaml

    known = yaml.safe_load((ROOT / "action.yml").read_text("utf-8"))["inputs"]
    shown = [yaml.safe_load(text) for text in blocks("yaml") if "uses:" in text]
    steps = [
        step
        for document in shown
        for job in (document["jobs"].values() if isinstance(document, dict) else [{"steps": document}])
        for step in job.get("steps", ())
        if "keystone-action@" in step.get("uses", "")
    ]
    assert len(steps) >= 4
    for step in steps:
        assert set(step.get("with", {})) <= set(known)


def test_nothing_in_the_repository_names_this_machine():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    for name in listed:
        path = ROOT / name
        if path.is_file():
            assert f"{ROOT}/" not in path.read_text("utf-8", "replace"), name


def test_files_stay_readable():
    for path in Path(ROOT / "keystone_action").rglob("*.py"):
        assert len(path.read_text("utf-8").splitlines()) <= 450, path
