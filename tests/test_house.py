"""The shape of the house: data goes one way, imports never go up (docs/architecture.md)."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tools import house_figures

PACKAGE = Path(__file__).parent.parent / "keystone_action"
ARCHITECTURE = PACKAGE.parent / "docs" / "architecture.md"
ROOMS = {
    "system": set(),
    "spec": {"system"},
    "dialects": {"spec"},
    "files": {"spec", "system"},
    "evidence": {"spec", "files"},
    "engine": {"spec", "system", "files"},
    "network": {"spec", "system", "files", "evidence", "engine"},
    "sandbox": {"spec", "system", "files", "engine", "network"},
    "services": {"spec", "system", "files", "engine", "network", "sandbox", "evidence"},
    "pricing": set(),
    "gateway": {"spec", "system", "files", "pricing", "evidence", "network", "services"},
    "agents": {"spec", "system", "files", "sandbox", "evidence", "gateway"},
    "judge": {"spec", "pricing"},
    "invariants": {"spec", "system", "files", "evidence", "sandbox", "judge"},
    "scoring": {"spec"},
    "options": {"spec", "scoring"},
    "runner": {
        "options",
        "system",
        "network",
        "spec",
        "files",
        "evidence",
        "engine",
        "sandbox",
        "services",
        "pricing",
        "gateway",
        "agents",
        "judge",
        "invariants",
        "scoring",
    },
    "gate": {"spec", "system", "files", "agents", "scoring", "runner", "options"},
    "report": {"system", "scoring", "evidence"},
    "github": {"spec", "system", "files", "scoring", "report", "gate", "options"},
}
"""Which rooms the files of a room may import, besides their own."""
ANYWHERE = {"errors", "__init__"}
FRONT_DOORS = {"__main__", "cli", "action", "runs"}
FILES_IN_A_ROOM = 20
"""Besides `__init__.py`."""
LISTS = {PACKAGE / "invariants" / "types"}
"""Rooms with a file for each entry of a list: who adds a check type must not have to move the others."""


MOST_FILES = 5.0
"""For each 1,000 lines of the package."""
MOST_FILES_OF_A_ROOM = 7.0
SMALL_ON_PURPOSE = {"report/page/render.py"}
"""Modules below 120 lines that one other imports, and that are right as they are, five at most. The page is a room,
and this is its way in."""
NAMED_TWICE = {"main"}
"""Public names that several modules may define; no more than five. Each program of ours begins at its `main`."""
SAYS_NOTHING = re.compile(r"(base|utils?|helpers?|common|misc|core|under_way|telling)\.py")
"""Names of files that say nothing of what is in them."""


@cache
def imports_of(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("keystone_action"):
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {alias.name.split(".")[1] for alias in node.names if alias.name.startswith("keystone_action.")}
    return found - ANYWHERE - {"__version__"}


@cache
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
        path.relative_to(PACKAGE).as_posix(): imports_of(path) - allowed
        for name, path in files()
        if name == room and imports_of(path) - allowed
    }
    assert wrong == {}


def named_by_imports(source: str) -> set[str]:
    """What a file imports, wherever the import stands: in functions and for type checkers too."""
    named = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "a relative import"
            named |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    return named


@cache
def imports_between_files() -> dict[str, set[str]]:
    """The modules that each module imports. Packages are left out: their own file imports nothing of ours."""
    ours = [path for _, path in files() if path.name != "__init__.py" and "libraries" not in path.parts]
    modules = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in ours}
    return {name: named_by_imports(path.read_text("utf-8")) & modules.keys() for name, path in modules.items()}


def circle(imports: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_files_import_each_other_in_a_circle() -> None:
    assert circle(imports_between_files()) == []


def test_no_rooms_import_each_other_in_a_circle() -> None:
    rooms: dict[str, set[str]] = {}
    for name, imported in imports_between_files().items():
        room = name.split(".")[1]
        rooms.setdefault(room, set()).update({one.split(".")[1] for one in imported} - {room})
    assert circle(rooms) == []


def test_the_file_of_a_package_imports_nothing() -> None:
    packages = [path for _, path in files() if path.name == "__init__.py" and "libraries" not in path.parts]
    found = {str(path): named_by_imports(path.read_text("utf-8")) for path in packages}
    assert {path for path, named in found.items() if any(name.startswith("keystone_action") for name in named)} == set()


def test_a_circle_is_found_wherever_an_import_stands() -> None:
    b = "import os\nif TYPE_CHECKING:\n    from package import c\n"
    c = "def late():\n    import a\n"
    honest = {"a": named_by_imports("from b import name") & {"b"}, "b": named_by_imports(b) & {"package.c"}}
    assert circle(honest) == []
    assert set(circle(honest | {"package.c": named_by_imports(c)})) == {"a", "b", "package.c"}


def test_a_room_is_a_folder_that_fits_on_a_screen():
    rooms = [folder for folder in PACKAGE.rglob("*") if folder.is_dir() and folder not in LISTS]
    sizes = {folder: len([*folder.glob("[!_]*.py")]) for folder in rooms}
    assert {str(folder) for folder, size in sizes.items() if size > FILES_IN_A_ROOM} == set()


@cache
def modules() -> list[house_figures.Module]:
    return house_figures.modules_of(PACKAGE)


def test_a_room_has_few_files_for_its_lines() -> None:
    files, lines = Counter[str](), Counter[str]()
    for module in modules():
        files[module.room] += 1
        lines[module.room] += module.lines
    assert 1000 * files.total() / lines.total() <= MOST_FILES
    many = {room: round(1000 * files[room] / lines[room], 1) for room in files if room != "(loose)"}
    assert {room: share for room, share in many.items() if share > MOST_FILES_OF_A_ROOM} == {}


def test_a_small_module_that_one_other_imports_is_part_of_that_one() -> None:
    assert len(SMALL_ON_PURPOSE) <= 5
    assert house_figures.small_single_importers(modules()).keys() - SMALL_ON_PURPOSE == set()


def test_one_name_means_one_thing() -> None:
    assert len(NAMED_TWICE) <= 5
    twice = house_figures.names_twice(modules())
    assert {name: paths for name, paths in twice.items() if name not in NAMED_TWICE} == {}


def test_a_file_is_called_by_what_it_holds() -> None:
    assert [module.path for module in modules() if SAYS_NOTHING.fullmatch(Path(module.path).name)] == []


def test_a_room_says_what_lives_there_what_comes_in_and_what_goes_out():
    words = ("What lives here: ", "What comes in: ", "What goes out: ")
    for folder in (PACKAGE, *PACKAGE.rglob("*")):
        if (
            folder.is_dir()
            and folder != PACKAGE
            and (folder / "__init__.py").exists()
            and "libraries" not in folder.parts
        ):
            text = ast.get_docstring(ast.parse((folder / "__init__.py").read_text("utf-8"))) or ""
            assert [word for word in words if f"\n{word}" not in text] == [], folder


def test_every_file_is_in_a_known_room():
    assert {name for name, _ in files()} == {*ROOMS, *FRONT_DOORS, *ANYWHERE}


def test_spec_knows_no_check_type():
    for name, path in files():
        if name == "spec":
            assert "invariants" not in imports_of(path), path


def test_nobody_asks_which_dialect_a_spec_is_in():
    for name, path in files():
        if name != "dialects":
            compared = [node for node in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(node, ast.Compare)]
            texts = {one.value for node in compared for one in ast.walk(node) if isinstance(one, ast.Constant)}
            assert not texts & {"touchstone", "agenticassure"}, path


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


def test_the_page_on_architecture_is_true_to_the_tree() -> None:
    page = ARCHITECTURE.read_text("utf-8")
    named = set(re.findall(r"`([a-z_/]+(?:\.py|/))`", page))
    missing = {name for name in named if not ((PACKAGE / name).exists() or (PACKAGE.parent / name).exists())}
    assert missing == set()
    rooms = {path.parent.relative_to(PACKAGE).as_posix() + "/" for path in PACKAGE.rglob("__init__.py")}
    assert {room for room in rooms if room != "./" and "/libraries/" not in room} - named == set()


def test_the_table_on_that_page_is_the_one_that_is_held() -> None:
    rows = re.findall(r"^\| `(\w+)(?:/|\.py)`.*\| ([^|]+) \|$", ARCHITECTURE.read_text("utf-8"), re.MULTILINE)
    above: set[str] = set()
    for room, allowed in rows:
        if room in ROOMS:
            said = set() if allowed == "nothing of ours" else set(allowed.split(", "))
            assert (above if said & {"all above", "the above"} else said) >= ROOMS[room], room
            above.add(room)
    assert above == set(ROOMS)


def test_each_file_of_tests_has_a_name_of_its_own() -> None:
    """pytest takes two of one name in folders that are not packages for the same module, and runs neither."""
    names = [path.name for path in Path(__file__).parent.rglob("test_*.py")]
    assert sorted(name for name in set(names) if names.count(name) > 1) == []
