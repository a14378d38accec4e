"""Addresses of pages on GitHub, made of the runner's variables."""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import quote

from keystone_action.report.addresses import DOCS

FORKS = f"{DOCS}/forks.md"
TEMPLATES = f"{DOCS}/templates.md"
_SERVER = re.compile(r"https?://[A-Za-z0-9.:-]+")
_REPOSITORY = re.compile(r"[A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+")
_NUMBER = re.compile(r"[0-9]{1,20}")


def run_url(environ: Mapping[str, str], *, run_id: str | None = None, attempt: str | None = None) -> str:
    """The page of a workflow run's attempt; of this one unless told otherwise. Empty when a variable does not fit into
    an address."""
    server = environ.get("GITHUB_SERVER_URL", "").rstrip("/")
    repository = environ.get("GITHUB_REPOSITORY", "")
    run = environ.get("GITHUB_RUN_ID", "") if run_id is None else run_id
    number = (environ.get("GITHUB_RUN_ATTEMPT") or "1") if attempt is None else attempt
    if not _SERVER.fullmatch(server) or not _REPOSITORY.fullmatch(repository):
        return ""
    if not _NUMBER.fullmatch(run) or not _NUMBER.fullmatch(number):
        return ""
    return f"{server}/{repository}/actions/runs/{run}/attempts/{number}"


def file_url(environ: Mapping[str, str], sha: str, path: str) -> str:
    """The page of a file of this repository in a commit. Empty when a variable does not fit into an address."""
    server = environ.get("GITHUB_SERVER_URL", "").rstrip("/")
    repository = environ.get("GITHUB_REPOSITORY", "")
    if not _SERVER.fullmatch(server) or not _REPOSITORY.fullmatch(repository):
        return ""
    return f"{server}/{repository}/blob/{sha}/{quote(path, safe='/')}"
