"""The recordings of examples/, made anew by a model that follows a script, for when the agent's requests or the form of
recordings change.

Usage: PYTHONPATH=tests:. python -m support.recorded_examples [FOLDER]     FOLDER: a copy of examples/, else that itself
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from support.model_agents import REAL_KEY
from support.scripted_models import ScriptedModel, Turn
from support.scripted_provider import provider

EXAMPLES = Path(__file__).parents[2] / "examples"
ADDS_UP = "awk -F, 'NR > 1 {sum += $2} END {printf \"%.2f\\n\", sum}' prices.csv > total.txt"
DONE = Turn(text="The total is in total.txt.", read=900, written=12)


def runs(*commands: str) -> list[Turn]:
    return [Turn(calls=[("bash", {"command": command})], read=600, written=40) for command in commands]


SCRIPTS: Mapping[str, Sequence[Turn]] = {
    "recorded/keystone.yaml": [*runs("cat prices.csv", ADDS_UP), DONE],
    "recorded/broken.keystone.yaml": [*runs("echo 40.00 > total.txt"), DONE],
    "forbidden/keystone.yaml": [*runs("cat prices.csv", ADDS_UP), DONE],
    "forbidden/broken.keystone.yaml": [
        *runs(ADDS_UP, "curl --version > /dev/null", "echo tea,1.00 >> prices.csv", 'echo "$SHOP_PASSWORD"'),
        DONE,
    ],
    "budget/keystone.yaml": [*runs("cat prices.csv", ADDS_UP), DONE],
    "budget/broken.keystone.yaml": runs("cat prices.csv"),
    "loop/keystone.yaml": [
        Turn(calls=[("read", {"path": "prices.csv"}), ("bash", {"command": ADDS_UP})], read=900, written=60),
        *runs("cat total.txt"),
        DONE,
    ],
    "loop/broken.keystone.yaml": [Turn(calls=[("write", {"path": "total.txt", "content": "40.00\n"})]), DONE],
}
"""What the model answers, by the spec's path; the last answer again and again."""

REPLAYED = ("recorded", "forbidden", "budget", "loop")
"""The folders of these specs."""


def record(examples: Path, spec: str) -> None:
    """Raises CalledProcessError when nothing was recorded."""
    with tempfile.TemporaryDirectory() as folder, provider(ScriptedModel(SCRIPTS[spec]).answer) as behind:
        environ = {**os.environ, "ANTHROPIC_API_KEY": REAL_KEY, "ANTHROPIC_BASE_URL": behind.url}
        words = ["run", spec, "--gateway", "record", "--output", f"{folder}/out", "--fail-on", "error"]
        subprocess.run([sys.executable, "-m", "keystone_action", *words], cwd=examples, env=environ, check=True)


if __name__ == "__main__":
    for name in SCRIPTS:
        record(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLES, name)
