"""Count what makes the house easy or hard to walk through.

    python -m tools.house_figures [CHECKOUT]

Prints a Markdown table of the rooms (files, lines, files per 1,000 lines), then one of figures over the whole package:
modules that only one other imports, public names that mean two things, the longest function, records with many
fields, and how many files and functions one trivial cell runs through. CHECKOUT is the root of a checkout with an
environment in `.venv`; without it, this one. `keystone_action/dialects/agenticassure/libraries/` keeps another
project's modules and is not counted.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

LEFT_OUT = "libraries"
MANY_FIELDS = 12
SMALL = 120
"""Lines: a smaller module that only one other imports is part of that one."""
FOUND_BY_NAME = ("invariants/types/", "agents/presets/", "evidence/trace_readers/", "services/", "gateway/")
"""Folders in which a registry finds modules by their names, so that nothing has to import them."""

SPEC = """\
version: 1
id: trivial
task: {prompt: "Make a file"}
agent: {type: command, command: "touch made.txt"}
invariants: {made: {check: {type: file_exists, path: made.txt}}}
"""
TRACER = """
import json, os, sys, threading
seen, result = set(), sys.argv.pop()
def profile(frame, event, arg):
    if event == "call" and "/keystone_action/" in frame.f_code.co_filename and frame.f_code.co_name != "<module>":
        seen.add((frame.f_code.co_filename, frame.f_code.co_qualname))
threading.setprofile(profile)
sys.setprofile(profile)
def write(code):
    if os.getpid() == own:
        sys.setprofile(None)
        json.dump(sorted(seen), open(result, "w"))
    leave(code)
leave, os._exit, own = os._exit, write, os.getpid()
from keystone_action.__main__ import main
try:
    main()
except SystemExit as ended:
    write(ended.code)
"""


@dataclass(frozen=True, slots=True)
class Module:
    """One file of the package."""

    path: str
    """Relative to the package, with slashes."""
    source: str
    tree: ast.Module

    @property
    def room(self) -> str:
        """The folder at the top, or the file's own name for a loose module."""
        return self.path.partition("/")[0] if "/" in self.path else "(loose)"

    @property
    def name(self) -> str:
        """As imports have it."""
        return "keystone_action." + self.path.removesuffix(".py").replace("/", ".")

    @property
    def lines(self) -> int:
        """All of them, comments and blank lines too."""
        return len(self.source.splitlines())


def modules_of(package: Path) -> list[Module]:
    """The modules of a package, in the order of their paths."""
    paths = [path for path in sorted(package.rglob("*.py")) if LEFT_OUT not in path.parts]
    sources = [(path.relative_to(package).as_posix(), path.read_text("utf-8")) for path in paths]
    return [Module(path, source, ast.parse(source)) for path, source in sources]


def imported_names(module: Module) -> set[str]:
    """What a module imports, wherever the import stands; `from a import b` counts as `a` and `a.b`."""
    named = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.ImportFrom):
            named |= {str(node.module), *(f"{node.module}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Import):
            named |= {alias.name for alias in node.names}
    return named


def single_importers(modules: list[Module]) -> dict[str, str]:
    """The modules that exactly one other imports, with that one's path."""
    importers: defaultdict[str, list[str]] = defaultdict(list)
    known = {module.name: module.path for module in modules if not module.path.endswith("__init__.py")}
    for module in modules:
        for name in imported_names(module) & known.keys():
            importers[known[name]].append(module.path)
    return {path: by[0] for path, by in importers.items() if len(by) == 1}


def small_single_importers(modules: list[Module]) -> dict[str, str]:
    """Those of `single_importers` that are below 120 lines, and that no registry finds by name."""
    lines = {module.path: module.lines for module in modules}
    found = single_importers(modules).items()
    return {path: by for path, by in found if lines[path] < SMALL and not path.startswith(FOUND_BY_NAME)}


def public_definitions(module: Module) -> Iterator[str]:
    """The public names that a module defines itself: classes, functions and aliases of types."""
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node.name


def names_twice(modules: list[Module]) -> dict[str, list[str]]:
    """Public names that more than one module defines, with the modules' paths."""
    places: defaultdict[str, list[str]] = defaultdict(list)
    for module in modules:
        for name in public_definitions(module):
            places[name].append(module.path)
    return {name: paths for name, paths in sorted(places.items()) if len(paths) > 1}


def records(modules: list[Module]) -> dict[str, int]:
    """The number of fields of each dataclass and pydantic model, by `path:Name`; inherited fields are not counted."""
    found = {}
    for module in modules:
        for node in ast.walk(module.tree):
            if isinstance(node, ast.ClassDef):
                fields = sum(isinstance(part, ast.AnnAssign) for part in node.body)
                found[f"{module.path}:{node.name}"] = fields
    return found


def longest_function(modules: list[Module]) -> tuple[int, str]:
    """(lines, `path:name`) of the longest function."""
    return max(
        ((node.end_lineno or node.lineno) - node.lineno + 1, f"{module.path}:{node.name}")
        for module in modules
        for node in ast.walk(module.tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


def touched_by_a_trivial_cell(checkout: Path) -> tuple[int, int]:
    """(files, functions) whose code runs in our process when one command agent makes one file.

    The launcher and supervisors of the sandbox are processes of their own and are not followed. Raises
    CalledProcessError when the run does not end by itself.
    """
    with tempfile.TemporaryDirectory() as place:
        spec, found = Path(place, "keystone.yaml"), Path(place, "found.json")
        spec.write_text(SPEC, "utf-8")
        command = [checkout / ".venv/bin/python", "-c", TRACER, "run", spec, "--output", Path(place, "out"), found]
        subprocess.run(command, cwd=checkout, check=True, capture_output=True)
        functions = json.loads(found.read_text("utf-8"))
    return len({file for file, _ in functions}), len(functions)


def rooms_table(modules: list[Module]) -> str:
    """Markdown: a row for each room and one for all."""
    files, lines = Counter(module.room for module in modules), Counter[str]()
    for module in modules:
        lines[module.room] += module.lines
    rows = [(room, files[room], lines[room]) for room in sorted(files)]
    rows.append(("all", sum(files.values()), sum(lines.values())))
    table = ["| room | files | lines | files per 1,000 lines |", "|---|---|---|---|"]
    table += [f"| {room} | {count} | {size:,} | {1000 * count / size:.1f} |" for room, count, size in rows]
    return "\n".join(table)


def figures_table(modules: list[Module], checkout: Path) -> str:
    """Markdown: a row for each figure over the whole package."""
    single, small, twice = single_importers(modules), small_single_importers(modules), names_twice(modules)
    large = {name: count for name, count in records(modules).items() if count > MANY_FIELDS}
    longest, where = longest_function(modules)
    files, functions = touched_by_a_trivial_cell(checkout)
    most = ", ".join(f"{name.partition(':')[2]} {large[name]}" for name in sorted(large, key=lambda n: -large[n])[:5])
    rows = {
        "modules that exactly one other imports": f"{len(single)}, of which {len(small)} below {SMALL} lines",
        "modules below 100 lines": str(sum(module.lines < 100 for module in modules)),
        "public names defined in two modules or more": f"{len(twice)}",
        "longest function": f"{longest} lines, {where}",
        f"records with more than {MANY_FIELDS} fields": f"{len(large)} ({most})",
        "files that a trivial cell runs through": str(files),
        "functions that a trivial cell runs through": f"{functions:,}",
    }
    return "\n".join(["| figure | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())])


def main() -> None:
    """Print both tables, and the lists behind the figures that a change can mend."""
    checkout = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parent.parent).resolve()
    modules = modules_of(checkout / "keystone_action")
    print(rooms_table(modules), figures_table(modules, checkout), sep="\n\n")
    print("\nBelow 120 lines, with one importer:")
    print(*(f"  {path} <- {by}" for path, by in sorted(small_single_importers(modules).items())), sep="\n")
    print("\nNames defined twice:")
    print(*(f"  {name}: {', '.join(paths)}" for name, paths in names_twice(modules).items()), sep="\n")


if __name__ == "__main__":
    main()
