"""Which agent an AgenticAssure suite is run with, and the folder that its module is found in (spec.md 5.5).

The original takes `--adapter`, else `adapter` of agenticassure.yaml or .toml in the working directory, and imports by
the working directory. Here the file is looked for beside the suite and upwards, and so is the module.
"""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keystone_action.dialects.agenticassure.fields import NAME, NAMES, SuiteFields
from keystone_action.dialects.nodes import FileFindings
from keystone_action.errors import UsageError
from keystone_action.spec.loading.author_files import read_author_text
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, nearest, show_value
from keystone_action.spec.loading.entrypoints import module_file, names_instead
from keystone_action.spec.loading.yaml_loader import build_data, parse_yaml
from keystone_action.spec.walking import walk

if TYPE_CHECKING:
    from keystone_action.spec.loading.spec_source import TranslationSource

NOT_CODE = (".git", ".hg", ".keystone", ".venv", "venv", "node_modules", "__pycache__", ".tox", ".nox", ".mypy_cache")
"""Folders beside the modules that hold no code of the author's: the folder is often the whole repository."""
_SOURCE_BYTES = 1 << 20
FILES = ("agenticassure.yaml", "agenticassure.toml")
WAYS_OUT = "write `adapter: module.Class` into agenticassure.yaml beside or above it, or call with --agent module:Class"
_COLON = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*):([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)")
_DOTTED = re.compile(r"([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*)\.([A-Za-z_]\w*)")
_KNOWN = {"adapter": NAME, "scorers": NAMES, "env": NAMES}
"""`scorers` and `env` are ours."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class NamedAdapter:
    """An adapter as somebody named it."""

    text: str
    where: str
    """Where it was named."""
    start: Path
    """The directory in which its module is looked for first."""
    scorers: tuple[str, ...] = ()
    """Modules that register scorers."""
    env: tuple[str, ...] = ()
    """Variables of our environment that the adapter gets."""
    files: tuple[Path, ...] = ()


@dataclass(frozen=True, slots=True)
class Adapter:
    """An adapter that was found."""

    module: str
    name: str
    directory: Path
    """Absolute; put first on the module search path."""
    modules: tuple[str, ...]
    """Modules that may register scorers, in the order of their import; the adapter's own is the last."""
    env: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()

    @property
    def entrypoint(self) -> str:
        """`module:Class`."""
        return f"{self.module}:{self.name}"


def named_adapter(source: TranslationSource, of_suite: str | None, findings: FileFindings) -> NamedAdapter | None:
    """Who the suite is run with: `--agent`, else the suite's own, else the nearest configuration file's, which in any
    case says what else there is for it.

    None where nobody says, or after telling what is wrong with the file that does.
    """
    directory = source.path.parent.resolve()
    first = NamedAdapter(source.agent, "--agent", Path.cwd().resolve()) if source.agent is not None else None
    if first is None and of_suite is not None:
        first = NamedAdapter(of_suite, f"suite.adapter of {source.path}", directory)
    config = next(_configurations(directory, source.root), None)
    if config is None:
        return first
    try:
        found = _read_configuration(config, source, findings, required=first is None)
    except SpecError as error:
        findings.problems += error.diagnostics
        return None
    if first is None:
        return found if found.text else None
    return replace(found, text=first.text, where=first.where, start=first.start)


def _configurations(directory: Path, root: Path) -> Iterator[Path]:
    for folder in _upwards(directory, root):
        yield from (folder / name for name in FILES if (folder / name).exists())


def _upwards(directory: Path, root: Path) -> Iterator[Path]:
    yield directory
    if directory != root and directory.is_relative_to(root):
        yield from _upwards(directory.parent, root)


def _read_configuration(
    path: Path, source: TranslationSource, findings: FileFindings, *, required: bool
) -> NamedAdapter:
    """What a configuration file says; an empty text where it names no adapter, or none that is one."""
    shown_name = str(path)
    if not path.resolve().is_relative_to(source.root):
        raise SpecError([Diagnostic(shown_name, 1, 1, f"leaves {source.root}", help="nothing outside it is read")])
    text = read_author_text(path, shown_name)
    read = _toml if path.suffix == ".toml" else _yaml
    values = read(text, shown_name, findings, required)
    scorers, env = (tuple(values.get(key, ())) for key in ("scorers", "env"))
    for variable in env:
        if not _VARIABLE.fullmatch(variable):
            findings.problems.append(
                Diagnostic(shown_name, 1, 1, f"env: {show_value(variable)} is not a name of a variable")
            )
    return NamedAdapter(values.get("adapter", ""), shown_name, path.parent, scorers, env, (path.resolve(),))


def _yaml(text: str, name: str, findings: FileFindings, required: bool) -> dict[str, Any]:
    document = parse_yaml(text, name)
    data, problems = (None, []) if document is None else build_data(document)
    findings.problems += problems
    if document is None or not isinstance(data, dict):
        raise SpecError([Diagnostic(name, 1, 1, "the configuration", expected="a mapping with `adapter`")])
    fields = SuiteFields(document, findings)
    _unknown_keys(data, lambda key: fields.warning((key,), **_nobody_reads(key), key=True))
    if required and "adapter" not in data:
        fields.problem((), **_no_adapter(data), key=True)
    return {key: data[key] for key in _KNOWN if key in data and fields.fits(data[key], (key,), _KNOWN[key])}


def _toml(text: str, name: str, findings: FileFindings, required: bool) -> dict[str, Any]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError([Diagnostic(name, 1, 1, f"not readable as TOML: {error}")]) from None
    _unknown_keys(data, lambda key: findings.warnings.append(Diagnostic(name, 1, 1, **_nobody_reads(key))))
    if required and "adapter" not in data:
        findings.problems.append(Diagnostic(name, 1, 1, **_no_adapter(data)))
    for key, kind in _KNOWN.items():
        fits = key not in data or (kind.holds(data[key]) and all(map(NAME.holds, _items(data[key]))))
        if not fits:
            findings.problems.append(Diagnostic(name, 1, 1, key, expected=kind.words, found=show_value(data[key])))
            del data[key]
    return {key: data[key] for key in _KNOWN if key in data}


def _items(value: Any) -> Iterable[Any]:
    return value if isinstance(value, list) else ()


def _unknown_keys(data: dict[str, Any], tell: Any) -> None:
    for key in data:
        if key not in _KNOWN:
            tell(key)


def _nobody_reads(key: str) -> dict[str, str]:
    return {"message": f"nobody reads the key {show_value(key)}", "suggestion": nearest(key, _KNOWN)}


def _no_adapter(data: dict[str, Any]) -> dict[str, str]:
    near = nearest("adapter", data)
    return {"message": "the key 'adapter' is missing", "help": f"is it {show_value(near)}?" if near else WAYS_OUT}


def find_adapter(named: NamedAdapter, source: TranslationSource) -> Adapter:
    """The adapter with the folder that its module is found in. Raises UsageError with what was looked for where."""
    match = _COLON.fullmatch(named.text.strip()) or _DOTTED.fullmatch(named.text.strip())
    if match is None:
        raise UsageError(
            f"{named.where}: {show_value(named.text)} names no adapter", help="write module.Class or module:Class"
        )
    module, name = match[1], match[2]
    directory = source.path.parent.resolve()
    folders = _folders((named.start, directory), source.root)
    found = next((folder for folder in folders if module_file(folder, module)), None)
    if found is None:
        relative = module.replace(".", "/")
        looked = ", ".join(str(folder) for folder in folders)
        raise UsageError(
            f"{named.where}: there is no module {module} (looked for {relative}.py and {relative}/ in {looked})",
            help="name a module of this repository; one that only imports another's class will do",
        )
    missing = [one for one in named.scorers if module_file(found, one) is None]
    if missing:
        raise UsageError(f"{named.where}: there is no module {missing[0]} of scorers in {found}")
    _require_name(named, found, module, name)
    modules = tuple(dict.fromkeys((*named.scorers, module)))
    return Adapter(module, name, found, modules, named.env, named.files)


def _require_name(named: NamedAdapter, folder: Path, module: str, name: str) -> None:
    file = module_file(folder, module)
    others = None if file is None else names_instead(file, name)
    if others is not None:
        near = nearest(name, others)
        advice = f"did you mean {show_value(near)}?" if near else "name a class or function that it defines or imports"
        raise UsageError(f"{named.where}: there is no {show_value(name)} in {file}", help=advice)


def _folders(starts: Iterable[Path], root: Path) -> list[Path]:
    """Where modules are looked for: from each start upwards to the root, and in `src` beside each."""
    found: dict[Path, None] = {}
    for start in starts:
        if start.is_relative_to(root):
            for folder in _upwards(start, root):
                found.setdefault(folder)
                if (folder / "src").is_dir():
                    found.setdefault(folder / "src")
    return list(found)


@functools.cache
def registers_scorers(directory: Path) -> bool:
    """Whether some module in a folder may register scorers: by the word, since none may be imported here."""
    for folder, folders, files in walk(directory):
        folders[:] = [name for name in folders if name not in NOT_CODE]
        for name in files:
            if name.endswith(".py") and _holds_word(Path(folder) / name):
                return True
    return False


def _holds_word(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size <= _SOURCE_BYTES and b"register_scorer" in path.read_bytes()
    except OSError:
        return False
