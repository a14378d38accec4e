"""docs/command-line.md: the image as the command on a laptop, by the very words of the page."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from support.action_image import action_base, action_image
from support.engine_watch import EngineWatch, watch
from support.images import PYTHON

__all__ = ["action_base", "action_image", "watch"]

ROOT = Path(__file__).parents[2]
FOR_TESTS = {"--network=host", "--build-arg", "BASE=$base"}
"""What tests/images/build-action adds to the page's build: a base that can be had without a registry."""

SPEC = """\
version: 1
id: shown
task: {prompt: Write hello.}
base: IMAGE
agent: {type: command, command: echo hello > hello.txt}
invariants:
  written: {gate: true, check: {type: file_content, path: hello.txt, contains: hello}}
"""


def shown() -> tuple[str, str]:
    """The build and the run of the page, as for a shell."""
    page = (ROOT / "docs" / "command-line.md").read_text("utf-8")
    (block,) = re.findall(r"^```console\n(\$ docker .*?)^```", page, re.MULTILINE | re.DOTALL)
    build, run = re.findall(r"^\$ (.*(?:\n .*)*)", block, re.MULTILINE)
    return build, run


def test_the_build_is_the_one_that_these_tests_make_images_by() -> None:
    script = (ROOT / "tests" / "images" / "build-action").read_text("utf-8")
    (line,) = re.findall(r"^DOCKER_BUILDKIT=0 (docker build .*)$", script, re.MULTILINE)
    ours = [word for word in shlex.split(line) if word not in FOR_TESTS]
    assert shlex.split(shown()[0]) == [{"$tag": "keystone"}.get(word, word) for word in ours]


@pytest.mark.docker
def test_the_run_does_it_with_the_engine_and_leaves_results_beside_the_spec(
    action_image: str, image: Callable[[str], str], watch: EngineWatch, tmp_path: Path
) -> None:
    (tmp_path / "keystone.yaml").write_text(SPEC.replace("IMAGE", image(PYTHON)), "utf-8")
    command, built = re.subn(r" keystone (?=run )", f" {action_image} ", shown()[1])
    assert built == 1
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    (results,) = tmp_path.glob(".keystone/runs/*/results.json")
    document = json.loads(results.read_text("utf-8"))
    assert (document["verdict"], document["sandbox"]["kind"]) == ("pass", "docker")
    assert watch.made([document["run_id"]])
    assert watch.left([document["run_id"]]) == []
