"""Runs of examples/reconcile as they happened, which the pictures of the README show.

To record them anew: python -m tools.github_page.recorded

Two commits of one pull request: a good agent, then one that reports work it has not done.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
FOLDER = Path(__file__).parent / "runs"
EXAMPLE = ROOT / "examples" / "reconcile"
RECORDED = {"pass": "keystone.yaml", "fail": "broken.keystone.yaml"}
"""Name → the spec of the example that does the same."""


def document(name: str) -> dict[str, Any]:
    """What results.json of that run held."""
    read: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    return read


def main() -> None:
    """Runs both, and keeps their results."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as made:
        checkout = Path(made) / "agents"
        example = checkout / "evals" / EXAMPLE.name
        shutil.copytree(EXAMPLE, example)
        _git(checkout, "init", "--quiet")
        for name in RECORDED:
            if name == "fail":
                _spoil_the_agent(example)
            _git(checkout, "add", "--all")
            _git(checkout, "commit", "--quiet", "--message", name)
            results = Path(made) / name
            keystone = [Path(sys.executable).parent / "keystone", "run", example / "keystone.yaml"]
            subprocess.run([*keystone, "--output", results], cwd=checkout, check=False)
            shutil.copy(results / "results.json", FOLDER / f"{name}.json")


def _spoil_the_agent(example: Path) -> None:
    """Gives the agent the work of its careless twin, as a pull request would that changes the agent alone."""
    agent, careless = (example / "agent" / name for name in ("agent.py", "careless_agent.py"))
    agent.rename(agent.with_name("careful.py"))
    agent.write_text(careless.read_text("utf-8").replace("from agent import", "from careful import"), "utf-8")


def _git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=Octo", "-c", "user.email=octo@example.invalid"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True)


if __name__ == "__main__":
    main()
