"""`resources.readable`: what nobody may show an agent is refused by its real place; the rest is shown."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from keystone_action.errors import UsageError
from keystone_action.invariants.registry import CheckTypes
from keystone_action.options.model import Options
from keystone_action.runner.preflight import readable_folders
from keystone_action.spec.loading.loader import load

SPEC = """\
version: 1
id: readable
task: {{prompt: do it}}
agent: {{type: none}}
resources: {{readable: ["{folder}"]}}
invariants: {{script: {{check: {{type: custom, script: hidden/check.py}}}}}}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout, a HOME with keys, a runner's folders and some tools, side by side."""
    for name in ("checkout/.git/objects", "checkout/hidden", "checkout/.keystone", "home/.ssh/keys", "home/tools"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("temporary", "runner", "keys", "opt/tools/bin", "shelf"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "checkout" / "hidden" / "check.py").touch()
    (tmp_path / "shelf" / "link").symlink_to(tmp_path / "home" / ".ssh")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    return tmp_path


def readable(machine: Path, folder: str) -> tuple[Path, ...]:
    checkout = machine / "checkout"
    spec = checkout / "keystone.yaml"
    spec.write_text(SPEC.format(folder=folder.format(machine=machine)), "utf-8")
    environ = {
        "HOME": str(machine / "home"),
        "RUNNER_TEMP": str(machine / "runner"),
        "GOOGLE_APPLICATION_CREDENTIALS": str(machine / "keys"),
    }
    return readable_folders(load(spec, CheckTypes()), Options.of(specs=(), directory=checkout, environ=environ))


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("/", "would show the checkout"),
        ("{machine}", "would show the checkout"),
        (".", "would show the checkout"),
        ("..", "would show the checkout"),
        ("hidden", "would show a file that this spec withholds"),
        ("{machine}/temporary", "would show the files of this run"),
        ("{machine}/home", "would show credentials"),
        ("~/.ssh", "would show credentials"),
        ("{machine}/shelf/link", "would show credentials"),
        ("{machine}/keys", "would show credentials"),
        ("~/.ssh/keys", "lies in credentials"),
        ("{machine}/runner", "would show the runner's files"),
        (".keystone", "would show the results"),
        (".git/objects", "lies in a repository's own folder"),
        ("/proc/self", "lies in what belongs to the machine"),
        ("hidden/check.py", "is not a folder"),
        ("nothing", "there is no such folder"),
    ],
)
def test_what_nobody_may_show_is_refused(machine: Path, folder: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        readable(machine, folder)
    assert said in refused.value.message


@pytest.mark.parametrize("folder", ["{machine}/opt/tools", "../opt/tools/bin", "~/tools", "{machine}/shelf"])
def test_what_lies_beside_that_is_shown(machine: Path, folder: str) -> None:
    (found,) = readable(machine, folder)
    assert found.is_dir()
    assert not found.is_relative_to(machine / "checkout")
