"""AgenticAssure suites with the adapters that answer them, written where a test wants them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from support.command_line import Called, keystone

CONFIG = "adapter: my_agent.MyAgent\n"
ADAPTER = '''"""Answers by a table: input → the fields of an AgentResult."""

import json
from pathlib import Path

from agenticassure.results import AgentResult, ToolCall

ANSWERS = json.loads((Path(__file__).parent / "answers.json").read_text())


class MyAgent:
    def run(self, input, context=None):
        return AgentResult(**ANSWERS[input])
'''


def write_files(directory: Path, files: dict[str, str]) -> None:
    """Write files by their paths relative to a directory."""
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")


def answering(answers: dict[str, Any]) -> dict[str, str]:
    """The files of an adapter that answers by a table."""
    return {"agenticassure.yaml": CONFIG, "my_agent.py": ADAPTER, "answers.json": json.dumps(answers)}


def adapter(body: str) -> dict[str, str]:
    """The files of an adapter whose `run` has this body; `input` and what `agenticassure.results` has are there."""
    lines = "\n".join(f"        {line}" for line in body.splitlines())
    head = "from agenticassure.results import AgentResult, ScoreResult, ToolCall\n\n\nclass MyAgent:\n"
    return {"agenticassure.yaml": CONFIG, "my_agent.py": f"{head}    def run(self, input, context=None):\n{lines}\n"}


def run_suite(directory: Path, suite: str, files: dict[str, str], *words: object) -> Called:
    """Write `scenarios/suite.yaml` and the files, and run `keystone run scenarios/` into `out`."""
    write_files(directory, {"scenarios/suite.yaml": suite, **files})
    return keystone("run", "scenarios/", "--output", "out", *words, directory=directory)
