"""What a step leaves for its post step, which cleans up after it: saved before anything is started, since nobody can
save anything after a SIGKILL. The runner hands `name=value` in GITHUB_STATE back as the variable `STATE_name`."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from keystone_action.github.outputs import write_outputs

_RUN_ID = re.compile(r"[0-9]{1,20}-[0-9]{1,20}-[0-9a-f]{8}")


@dataclass(frozen=True, slots=True)
class StepState:
    """run_id: marks all that the run makes. left: files and folders that the workspace's owner is to have."""

    run_id: str
    left: tuple[Path, ...] = ()

    def save(self, environ: Mapping[str, str]) -> None:
        """Raises OutputError when the runner's file can't be written; nothing where there is none."""
        if path := environ.get("GITHUB_STATE"):
            left = json.dumps([str(path) for path in self.left])
            write_outputs(Path(path), {"run": self.run_id, "left": left})

    @classmethod
    def load(cls, environ: Mapping[str, str]) -> StepState | None:
        """What the step saved; None when it ended before that, or when this is not a state of ours."""
        run_id = environ.get("STATE_run", "")
        if not _RUN_ID.fullmatch(run_id):
            return None
        try:
            left = json.loads(environ.get("STATE_left", "[]"))
        except (ValueError, RecursionError):
            left = []
        paths = left if isinstance(left, list) else []
        return cls(run_id, tuple(Path(path) for path in paths if isinstance(path, str) and "\0" not in path))


def run_id_of_step(environ: Mapping[str, str]) -> str:
    """An id that tells its workflow run and attempt, and is this step's alone."""
    numbers = (environ.get("GITHUB_RUN_ID", ""), environ.get("GITHUB_RUN_ATTEMPT", ""))
    parts = [number if re.fullmatch("[0-9]{1,20}", number) else "0" for number in numbers]
    return "-".join((*parts, secrets.token_hex(4)))
