"""Which step of which job of a workflow run this is: it tells our comment and status from those of other jobs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping

from keystone_action.github.reader import variable
from keystone_action.report.comment.jobs import Job

_NUMBER = re.compile(r"[0-9]{1,20}")
_TELLING = ("comment-key", "status-context", "spec", "params", "tags", "working-directory")
"""Inputs that tell the jobs of a matrix apart, which have one id: their index is no variable, but it is in the
defaults of the first two, and what differs between them is in the others."""


def job_of(environ: Mapping[str, str]) -> Job:
    """Never raises: without the runner's numbers there is nothing to tell apart."""
    run, attempt = environ.get("GITHUB_RUN_ID", ""), environ.get("GITHUB_RUN_ATTEMPT") or "1"
    if not _NUMBER.fullmatch(run) or not re.fullmatch("[1-9][0-9]{0,4}", attempt):
        return Job()
    parts = [environ.get(name, "") for name in ("GITHUB_JOB", "GITHUB_ACTION", *map(variable, _TELLING))]
    digest = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    return Job(run, int(attempt), digest[:12])
