"""Re-makes tests/data/github: the part of GitHub's published OpenAPI description that our client is held to.

    python -m tools.github_description

Gets `@octokit/openapi`, GitHub's own description as an npm package, with npm; keeps the operations below with all that
they refer to; leaves out prose and examples. Add an operation here when the client calls one more.
"""

from __future__ import annotations

import json
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "@octokit/openapi"
VERSION = "23.0.2"
TARGET = Path(__file__).parent.parent / "tests" / "data" / "github"
OPERATIONS = (
    ("get", "/user"),
    ("get", "/repos/{owner}/{repo}/issues/{issue_number}/comments"),
    ("post", "/repos/{owner}/{repo}/issues/{issue_number}/comments"),
    ("patch", "/repos/{owner}/{repo}/issues/comments/{comment_id}"),
    ("post", "/repos/{owner}/{repo}/statuses/{sha}"),
    ("get", "/repos/{owner}/{repo}/commits/{ref}/statuses"),
    ("get", "/repos/{owner}/{repo}/contents/{path}"),
    ("get", "/repos/{owner}/{repo}/commits/{commit_sha}/pulls"),
    ("get", "/repos/{owner}/{repo}/compare/{basehead}"),
    ("get", "/repos/{owner}/{repo}/pulls"),
    ("get", "/repos/{owner}/{repo}/pulls/{pull_number}"),
    ("get", "/repos/{owner}/{repo}/actions/workflows/{workflow_id}/runs"),
    ("get", "/repos/{owner}/{repo}/actions/runs/{run_id}/artifacts"),
    ("get", "/repos/{owner}/{repo}/actions/artifacts/{artifact_id}/{archive_format}"),
)
_PROSE = frozenset({"description", "summary", "example", "examples", "externalDocs", "tags", "x-github", "x-octokit"})


def subset(description: dict[str, Any]) -> dict[str, Any]:
    """The operations, with the components that they refer to, however deep."""
    paths: dict[str, Any] = {}
    components: dict[str, dict[str, Any]] = {}
    queue: list[Any] = []
    for method, path in OPERATIONS:
        operation = _without_prose(description["paths"][path][method])
        paths.setdefault(path, {})[method] = operation
        queue.append(operation)
    while queue:
        for reference in _references(queue.pop()):
            _, _, kind, name = reference.split("/")
            if name not in components.setdefault(kind, {}):
                components[kind][name] = _without_prose(description["components"][kind][name])
                queue.append(components[kind][name])
    sorted_components = {kind: dict(sorted(found.items())) for kind, found in sorted(components.items())}
    return {"openapi": description["openapi"], "paths": paths, "components": sorted_components}


def _without_prose(node: Any, *, names: bool = False) -> Any:
    """names: the keys are of the document that is described, so that none of them is prose."""
    if isinstance(node, list):
        return [_without_prose(item) for item in node]
    if not isinstance(node, dict):
        return node
    return {
        key: _without_prose(value, names=key == "properties" and not names)
        for key, value in node.items()
        if names or key not in _PROSE
    }


def _references(node: Any) -> list[str]:
    if isinstance(node, list):
        return [reference for item in node for reference in _references(item)]
    if not isinstance(node, dict):
        return []
    own = [node["$ref"]] if isinstance(node.get("$ref"), str) else []
    return own + [reference for value in node.values() for reference in _references(value)]


def main() -> None:
    """Downloads the package and writes the subset with its licence."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["npm", "pack", "--silent", f"{PACKAGE}@{VERSION}"], cwd=folder, check=True)
        (archive,) = Path(folder).glob("*.tgz")
        with tarfile.open(archive) as files:
            files.extractall(folder, filter="data")
        package = Path(folder) / "package"
        description = json.loads((package / "generated" / "api.github.com.json").read_bytes())
        license_text = (package / "LICENSE").read_text("utf-8")
    TARGET.mkdir(parents=True, exist_ok=True)
    document = {"x-source": f"{PACKAGE} {VERSION} (MIT, see LICENSE), re-made by tools/github_description.py"}
    document |= subset(description)
    (TARGET / "openapi.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    (TARGET / "LICENSE").write_text(license_text, "utf-8")


if __name__ == "__main__":
    main()
