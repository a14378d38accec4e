"""docs/tutorial.md, done by somebody with nothing at home but a clone: installed from it and the package index, run,
broken, pushed, and judged on a pull request."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
from support.command_line import ROOT
from support.fake_github import FakeGitHub
from support.fake_runner import EVENTS, FakeRunner, StepResult
from support.guides import Reader
from support.released import CACHE, missing
from support.repositories import git
from support.workflow_play import PlayedJob, Player, in_this_process

pytestmark = [pytest.mark.slow, pytest.mark.sandbox]

PAGE = ROOT / "docs" / "tutorial.md"
URL = "https://github.com/"
_OF_PIP = ("PIP_", "SSL_CERT_", "REQUESTS_CA_", "HTTPS_PROXY", "https_proxy")
"""How this machine reaches its package index."""


class GitHubOfTheReader:
    """Where the tutorial pushes to: two bare repositories, and a pull request of `friendlier`.

    environ: what leads git there.
    """

    def __init__(self, root: Path, fake: FakeGitHub) -> None:
        self._root, self._fake, self._runs = root, fake, 0
        self._repository = root / "ada" / "first-agent"
        self._repository.mkdir(parents=True)
        git(self._repository, "init", "-q", "--bare", "-b", "main")
        fake.state.repository = "octo/agents"
        self.environ = {
            **{name: value for name, value in os.environ.items() if name.startswith(_OF_PIP)},
            "PIP_CACHE_DIR": str(CACHE / "pip"),
            "PIP_NO_COMPILE": "1",
            "GIT_CONFIG_COUNT": "2",
            "GIT_CONFIG_KEY_0": f"url.{root.as_uri()}/.insteadOf",
            "GIT_CONFIG_VALUE_0": URL,
            "GIT_CONFIG_KEY_1": "safe.directory",
            "GIT_CONFIG_VALUE_1": "*",
            **{f"GIT_{role}_NAME": "Ada" for role in ("AUTHOR", "COMMITTER")},
            **{f"GIT_{role}_EMAIL": "ada@example.com" for role in ("AUTHOR", "COMMITTER")},
        }

    def judge(self) -> tuple[PlayedJob, str]:
        """Run the branch's own workflow for what was pushed to it last: the job, and the comment."""
        base, head = (git(self._repository, "rev-parse", name) for name in ("main", "friendlier"))
        self._fake.state.add_pull(17, head_sha=head, head_ref="friendlier", head_repository="octo/agents")
        payload = json.loads((EVENTS / "pull_request.json").read_text())
        payload["pull_request"]["base"]["sha"], payload["pull_request"]["head"]["sha"] = base, head
        self._runs += 1
        place = self._root / f"run-{self._runs}"
        place.mkdir()
        workflow = git(self._repository, "show", f"{head}:.github/workflows/agent.yml")

        def step(job: str, runner: FakeRunner, *rest: Any) -> StepResult:
            runner.sha = head
            return in_this_process(job, runner, *rest)

        given = {"event": "pull_request", "payload": payload, "github": self._fake, "action": step}
        (leg,) = Player(place, workflow, self._check_out, **given).play().jobs["evaluate"]
        (comment,) = self._fake.state.comments
        return leg, comment.body

    def _check_out(self, workspace: Path) -> None:
        git(workspace, "clone", "-q", "--branch", "friendlier", str(self._repository), ".")


def test_from_an_empty_folder_to_a_red_and_a_green_pull_request(tmp_path: Path) -> None:
    home, programs = tmp_path / "home", tmp_path / "bin"
    home.mkdir()
    git(tmp_path, "clone", "-q", str(ROOT), str(home / "keystone-action"))
    programs.mkdir()
    (programs / "python3").symlink_to(Path(sys.executable).resolve())
    results: list[str] = []
    with FakeGitHub() as fake:
        (tmp_path / "github").mkdir()
        github = GitHubOfTheReader(tmp_path / "github", fake)

        def comment() -> str:
            leg, body = github.judge()
            results.append(leg.result)
            return body.removeprefix("## ")

        reader = Reader(
            home,
            environ=github.environ,
            shows={"After a minute the check": comment, "The check turns green": comment},
            path=f"{programs}:/usr/local/bin:/usr/bin:/bin",
        )
        try:
            reader.follow(PAGE)
        except AssertionError as error:
            if str(error).startswith("$ pip install"):
                missing(f"the package index is not reached: {error}")
            raise
    assert results == ["failure", "success"]
    shutil.rmtree(home)
