"""The shape of the house: data goes one way, imports never go up (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "keystone_action"
ROOMS = {
    "spec": set(),
    "plan": {"spec"},
    "evidence": {"spec"},
    "sandbox": {"spec", "evidence"},
    "judge": {"spec"},
    "scoring": {"spec"},
    "services": {"spec", "sandbox", "evidence"},
    "agents": {"spec", "sandbox", "evidence"},
    "invariants": {"spec", "evidence", "sandbox", "judge"},
    "runner": {"spec", "plan", "evidence", "sandbox", "judge", "scoring", "services", "agents", "invariants"},
    "report": {"scoring"},
    "github": {"report", "scoring", "spec"},
}
ANYWHERE = {"errors", "signals", "__init__"}
FRONT_DOORS = {
    "__main__",
    "environment",
    "cli",
    "arguments",
    "commands",
    "action",
    "evaluate",
    "doctor",
    "scaffold",
    "clean",
    "after",
    "shards",
    "compared_with",
    "streams",
}


def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("keystone_action"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("keystone_action.")}
    return found - ANYWHERE - {"__version__"}


def files() -> list[tuple[str, Path]]:
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        relative = path.relative_to(PACKAGE)
        found.append((relative.parts[0] if len(relative.parts) > 1 else path.stem, path))
    return found


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_imports_never_go_up(room):
    allowed = ROOMS[room] | {room}
    wrong = {
        str(path.relative_to(PACKAGE)): sorted(imports_of(path) - allowed)
        for name, path in files()
        if name == room and imports_of(path) - allowed
    }
    assert wrong == {}


def test_every_file_is_in_a_known_room():
    assert {name for name, _ in files()} == {*ROOMS, *FRONT_DOORS, *ANYWHERE}


def test_spec_knows_no_check_type():
    for name, path in files():
        if name == "spec":
            assert "invariants" not in imports_of(path), path


def test_front_doors_are_not_imported_from_inside():
    for name, path in files():
        if name in ROOMS:
            assert not imports_of(path) & FRONT_DOORS, path


def test_no_message_sends_anybody_to_a_file_of_our_repository() -> None:
    """Whoever reads it has the action or a wheel, not our checkout: `github/links.py` has addresses."""
    strings = re.compile(r"""["'](?:[^"'\n]*[ (`;:])?(?:docs|examples)/[a-z_-]+\.(?:md|yml)""")
    found = {
        str(path.relative_to(PACKAGE))
        for path in [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.j2")]
        if strings.search(path.read_text("utf-8"))
    }
    assert found == set()
