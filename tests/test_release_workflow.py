"""release.yml, played from its own file with real git and a bare repository for GitHub. What is missing here, the
engine and `gh`, are scripts that write down how they were called; the image is our code, or one that is broken."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.fake_runner import ROOT, FakeRunner, StepResult
from support.runner_rules import ReadLog
from support.workflow_play import Played, Player

from keystone_action import __version__

pytestmark = pytest.mark.command

WORKFLOW: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / "release.yml").read_text("utf-8"))
DIGEST = "sha256:" + "a" * 64
NAME = "ghcr.io/keystone-action/keystone-action"
PINNED = f"docker://{NAME}:{__version__}@{DIGEST}"
TAG, MAJOR = f"v{__version__}", f"v{__version__.partition('.')[0]}"
SPEC = """\
version: 1
id: smoke
task: {prompt: "do it"}
agent: {type: command, command: "touch done.txt"}
invariants:
  done: {check: {type: file_exists, path: NAME}}
"""
DOCKER = f"""\
#!/bin/sh
echo "docker $*" >> "$SAID"
case "$1 $2" in
"save --output") echo image > "$3" ;;
"buildx imagetools") case "$*" in *inspect*) echo '{DIGEST}' ;; esac ;;
"image inspect") printf '%s\\n' 'other.example/x@sha256:0' '{NAME}@{DIGEST}' ;;
"run --rm") case "$*" in *--version) echo "keystone {__version__}" ;; esac ;;
"pull --quiet") ! grep -q private "$ORIGIN/description" ;;
esac
"""
BUILD_WHEEL = f"""\
#!/bin/sh
mkdir "$1"
for name in .tar.gz -py3-none-any.whl; do echo x > "$1/keystone_action-{__version__}$name"; done
echo "keystone {__version__}"
"""
GH = """\
#!/bin/sh
echo "gh $*" >> "$SAID"
case "$1" in api) git ls-remote "$ORIGIN" | sed -n 's|.*\\(refs/tags/.*\\)|\\1|p' ;; esac
"""


class GitHub:
    """origin: the repository. said: what engine and `gh` were asked for, one call a line."""

    def __init__(self, root: Path) -> None:
        self.origin, self.said, self._root = root / "origin.git", root / "said", root
        self.said.touch()
        self.git("init", "--quiet", "--bare", "--initial-branch=main", str(self.origin), cwd=root)
        first = root / "first"
        names = ["pyproject.toml", "uv.lock", "action.yml", "keystone_action/__init__.py", "docs/command-line.md"]
        for source in [ROOT / name for name in names] + [
            *ROOT.glob(".github/workflows/*.yml"),
            *ROOT.glob("tools/*.py"),
        ]:
            copy = first / source.relative_to(ROOT)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)
        for name, script in (("bootstrap", "#!/bin/sh\n"), ("build-wheel", BUILD_WHEEL)):
            (first / "tools" / name).write_text(script)
            (first / "tools" / name).chmod(0o755)
        (first / "README.md").write_text("- uses: keystone-action/keystone-action@v0 # not yet\n")
        for name, wanted in (("keystone", "done.txt"), ("broken.keystone", "other.txt")):
            path = first / "examples" / "reconcile" / f"{name}.yaml"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(SPEC.replace("NAME", wanted))
        self.git("init", "--quiet", "--initial-branch=main", cwd=first)
        self.git("add", ".", cwd=first)
        self.git("commit", "--quiet", "--message=main", cwd=first)
        self.git("tag", MAJOR, cwd=first)
        self.git("push", "--quiet", str(self.origin), "main", MAJOR, cwd=first)
        self.main = self.commit_of("heads/main")

    def git(self, *arguments: str, cwd: Path) -> str:
        command = ["git", "-c", "user.name=a", "-c", "user.email=a@b.test", *arguments]
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout.strip()

    def commit_of(self, ref: str) -> str:
        """Empty when it is not there."""
        return self.git("for-each-ref", "--format=%(objectname)", f"refs/{ref}", cwd=self.origin)

    def checkout(self, workspace: Path) -> None:
        self.git("clone", "--quiet", str(self.origin), ".", cwd=workspace)

    def release(self, name: str, action: Any) -> Played:
        """As its button starts it."""
        workflow = {**WORKFLOW, True: {"workflow_call": WORKFLOW[True]["workflow_dispatch"]}}
        jobs = workflow["jobs"] = dict(WORKFLOW["jobs"])
        # CI and the site are played by themselves, and nobody here signs.
        for job, called in (("test", "ci"), ("documentation", "docs")):
            assert jobs[job]["uses"] == f"./.github/workflows/{called}.yml"
            jobs[job] = {"needs": jobs[job]["needs"], "runs-on": "x", "steps": [{"run": "true"}]}
        signing = self.leave_out(jobs, "push", "actions/attest@")
        assert [(step["with"]["subject-digest"], step["with"].get("sbom-path")) for step in signing] == [
            ("${{ steps.push.outputs.digest }}", None),
            ("${{ steps.push.outputs.amd64 }}", "sbom-amd64.json"),
            ("${{ steps.push.outputs.arm64 }}", "sbom-arm64.json"),
        ]
        assert len(self.leave_out(jobs, "publish", "pypa/gh-action-pypi-publish@")) == 1
        root = self._root / name
        root.mkdir()
        inputs = {"version": __version__}
        return Player(root, yaml.safe_dump(workflow), self.checkout, inputs=inputs, action=action).play()

    def leave_out(self, jobs: dict[str, Any], job: str, uses: str) -> list[dict[str, Any]]:
        """The steps that nobody here plays, which are then gone."""
        steps = jobs[job]["steps"]
        found = [step for step in steps if step.get("uses", "").startswith(uses)]
        jobs[job] = {**jobs[job], "steps": [step for step in steps if step not in found]}
        return found


@pytest.fixture
def github(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> GitHub:
    found, programs = GitHub(tmp_path), tmp_path / "bin"
    programs.mkdir()
    for name, text in (("docker", DOCKER), ("gh", GH)):
        (programs / name).write_text(text.replace("$SAID", str(found.said)).replace("$ORIGIN", str(found.origin)))
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    return found


def our_code(
    job: str, runner: FakeRunner, inputs: dict[str, str], env: dict[str, str], masked: tuple[str, ...]
) -> StepResult:
    """What the pinned image holds."""
    assert yaml.safe_load((runner.workspace / "action.yml").read_text())["runs"]["image"] == PINNED
    return runner.step(inputs, env=env, masked=masked)


def lets_everything_pass(*_: object) -> StepResult:
    return StepResult(0, ReadLog(), "", {"verdict": "pass"})


def breaks(*_: object) -> StepResult:
    return StepResult(3, ReadLog(), "", {"verdict": "error"})


def test_a_release_is_main_with_its_image_pinned_and_two_tags(github: GitHub) -> None:
    played = github.release("played", our_code)
    assert {name: played.result(name) for name in played.jobs} == dict.fromkeys(WORKFLOW["jobs"], "success")
    release = github.commit_of(f"tags/{TAG}")
    assert release == github.commit_of(f"tags/{MAJOR}")
    assert github.commit_of("heads/main") == github.main == github.git("rev-parse", f"{release}^", cwd=github.origin)
    assert github.git("diff", "--name-only", github.main, release, cwd=github.origin) == "action.yml"
    assert f"  image: {PINNED}\n" in github.git("show", f"{release}:action.yml", cwd=github.origin)
    shown = github.git("show", f"show-{__version__}:README.md", cwd=github.origin)
    assert shown == f"- uses: keystone-action/keystone-action@{release} # v{__version__}"
    calls = github.said.read_text().splitlines()
    first = [call for call in calls if call.split()[1] not in ("image", "login", "api", "auth")]
    assert [" ".join(call.split()[:2]) for call in first if "--version" not in call and "trivy" not in call] == [
        *("docker build", "docker save") * 2,
        *("docker load", "docker push") * 2,
        *["docker buildx"] * 2,
        *["gh attestation"] * 3,
        *["docker pull"] * 2,
        "gh release",
        "gh pr",
    ]
    both = f"{NAME}@{DIGEST} {NAME}@{DIGEST}"
    assert f"docker buildx imagetools create --tag {NAME}:{__version__} {both}" in calls
    assert sorted(played.artifacts.names) == ["dist", "image-amd64", "image-arm64", "sbom-amd64", "sbom-arm64"]
    assert f"gh release create {TAG} --verify-tag --generate-notes" in calls
    assert f"docker pull --quiet {NAME}@{DIGEST}" in calls

    again = github.release("again", our_code)
    after = {name: again.result(name) for name in WORKFLOW["jobs"] if name != "check"}
    assert (again.result("check"), set(after.values())) == ("failure", {"skipped"})
    assert github.commit_of(f"tags/{TAG}") == release


def test_a_package_that_is_not_public_stops_the_release(github: GitHub) -> None:
    (github.origin / "description").write_text("private")
    played = github.release("played", our_code)
    assert [played.result(name) for name in ("push", "try", "tag")] == ["success", "failure", "skipped"]
    assert "the package is not public yet" in "".join(step.log for step in played.jobs["try"][0].steps)


@pytest.mark.parametrize("image", [lets_everything_pass, breaks])
def test_an_image_that_does_not_tell_good_from_bad_is_not_released(github: GitHub, image: Any) -> None:
    played = github.release("played", image)
    assert [played.result(name) for name in ("push", "try", "tag")] == ["success", "failure", "skipped"]
    assert github.commit_of(f"tags/{TAG}") == ""
    assert github.commit_of(f"tags/{MAJOR}") == github.main


def test_the_push_that_is_run_again_after_a_release_writes_over_nothing(github: GitHub) -> None:
    (script,) = [step["run"] for step in WORKFLOW["jobs"]["push"]["steps"] if step.get("id") == "push"]
    github.git("tag", TAG, "main", cwd=github.origin)
    environ = {"PATH": os.environ["PATH"], "IMAGE": NAME, "VERSION": __version__, "GITHUB_REPOSITORY": "o/r"}
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=github.origin,
        env=environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, "released already" in done.stdout) == (1, True)
    assert "docker" not in github.said.read_text()


def test_no_job_writes_to_both_registry_and_repository_or_runs_the_image_with_rights() -> None:
    rights = {
        name: {scope for scope, right in job["permissions"].items() if right == "write"}
        for name, job in WORKFLOW["jobs"].items()
    }
    assert {name: scopes for name, scopes in rights.items() if scopes} == {
        "push": {"packages", "id-token", "attestations"},
        "tag": {"contents"},
        "publish": {"id-token"},
        "show": {"contents", "pull-requests"},
        "documentation": {"pages", "id-token"},
    }
    assert WORKFLOW["permissions"] == {}
    for name in ("push", "tag", "publish", "show"):
        for step in WORKFLOW["jobs"][name]["steps"]:
            assert not re.search(r"docker run|tools/bootstrap|tools/build-wheel|pip ", step.get("run", ""))
            assert step.get("uses") != "./"


def test_a_wheel_that_was_changed_on_its_way_is_not_published(github: GitHub) -> None:
    (script,) = [step["run"] for step in WORKFLOW["jobs"]["publish"]["steps"] if "run" in step]
    dist = github.origin / "dist"
    dist.mkdir()
    (dist / "a.whl").write_text("x")
    sums = subprocess.check_output(["sha256sum", "a.whl"], cwd=dist, text=True)

    def published() -> bool:
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        environ = {"PATH": os.environ["PATH"], "SUMS": sums.strip()}
        done = subprocess.run(command, cwd=dist.parent, env=environ, capture_output=True, timeout=60, check=False)
        return done.returncode == 0

    assert published()
    (dist / "b.whl").write_text("another one")
    assert not published()
    (dist / "b.whl").unlink()
    (dist / "a.whl").write_text("y")
    assert not published()
