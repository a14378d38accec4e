"""`environment`, `container` and `setup` of a Touchstone case → `base` and `setup` of a spec."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from yaml.nodes import Node

from keystone_action.dialects.nodes import build_node
from keystone_action.dialects.touchstone.harnesses import is_outside
from keystone_action.dialects.touchstone.reading import CaseField, CaseReader
from keystone_action.spec.loading.diagnostics import show_value
from keystone_action.spec.loading.loaded_spec import Stub

_ENVIRONMENT = ("commands", "env", "kind", "requirement_files", "requirements", "timeout_s", "venv")
_NO_ENVIRONMENT = {
    "install": "put the package's directory on PYTHONPATH by environment.env, and list what it needs in requirements",
    "pip_args": "set pip's variables by environment.env (PIP_INDEX_URL, PIP_NO_BUILD_ISOLATION, …)",
    "system_site_packages": "list what is needed in requirements",
}
_LATER_CONTAINER = {
    "harness": "the harness always runs in the container",
    "backend": "containers run on the Docker engine of this machine",
    "harbor_runtime": "containers run on the Docker engine of this machine",
    "env_passthrough": "the agent gets the variables of environment.env and of its harness, nothing else of ours",
}
_COMMENT = re.compile(r"(^|\s)#.*$")
DEFAULT_SECONDS = 900.0
"""What provisioning may take where environment.timeout_s does not say."""


@dataclass(slots=True)
class CaseSetup:
    """The setup of a case, translated."""

    base: Node | None = None
    """The image's node."""
    packages: list[Any] = field(default_factory=list)
    commands: list[Any] = field(default_factory=list)
    env: dict[str, Any] = field(default_factory=dict)
    files: list[dict[str, str]] = field(default_factory=list)
    """Artifacts, as `setup.files` has them."""
    stubs: list[Stub] = field(default_factory=list)
    read: list[Path] = field(default_factory=list)
    """Files that were read; none of them is secret."""
    seconds: float = 0.0
    """How long it may take."""

    def keys(self, at: Node) -> dict[str, Any]:
        """The keys of the spec."""
        setup = {"packages": self.packages, "commands": self.commands, "files": self.files, "env": self.env}
        found: dict[str, Any] = {"base": self.base} if self.base is not None else {}
        given = {name: value for name, value in setup.items() if value}
        return {**found, "setup": build_node(given, at)} if given else found


def read_preparation(reader: CaseReader, case: Mapping[str, CaseField], directory: Path, root: Path) -> CaseSetup:
    """In Touchstone's order: the container's own setup, the environment, stubs, commands."""
    prepared = CaseSetup()
    _container(reader, case.get("container"), prepared)
    _environment(reader, case.get("environment"), prepared, directory, root)
    setup = case.get("setup")
    if setup is not None:
        fields = reader.fields(setup, ("run", "stub"), {"packages": "list them in environment.requirements"})
        prepared.stubs += [
            stub for item in reader.items(fields.get("stub")) if (stub := _stub(reader, item)) is not None
        ]
        prepared.commands += [item.node for item in reader.texts(fields.get("run"))]
    return prepared


def _container(reader: CaseReader, of: CaseField | None, prepared: CaseSetup) -> None:
    if of is None:
        return
    known = ("caches", "home", "image", "python", "setup")
    fields = reader.fields(of, known, _LATER_CONTAINER, required=("image",))
    if reader.text(fields.get("image")):
        prepared.base = fields["image"].node
    prepared.commands += [item.node for item in reader.texts(fields.get("setup"))]
    python = fields.get("python")
    if python is not None and python.value != "python3":
        reader.problem(python.key, "container.python can't be honoured here", expected="python3")
    for name in ("caches", "home"):
        if name in fields and fields[name].value:
            reader.warning(fields[name].key, f"container.{name} is not honoured: no directory is shared between cells")


def _environment(reader: CaseReader, of: CaseField | None, prepared: CaseSetup, directory: Path, root: Path) -> None:
    if of is None:
        return
    install = {**_NO_ENVIRONMENT}
    if isinstance(of.value, dict) and of.value.get("install") == "none":
        del install["install"]
    known = (*_ENVIRONMENT, "install") if "install" not in install else _ENVIRONMENT
    fields = reader.fields(of, known, install)
    kind = reader.choice(fields.get("kind"), ("pip-venv", "uv", "command"), "pip-venv")
    seconds = reader.number(fields.get("timeout_s"), DEFAULT_SECONDS)
    if not reader.boolean(fields.get("venv"), default=True) and kind != "command":
        reader.warning(fields["venv"].key, "environment.venv: false leaves out the whole environment, as in Touchstone")
        return
    prepared.seconds += seconds
    if "timeout_s" in fields:
        message = "environment.timeout_s counts towards the limit of the whole cell, and ends nothing by itself"
        reader.warning(fields["timeout_s"].key, message)
    if kind == "command":
        _only_commands(reader, of, fields)
    elif kind == "uv":
        reader.warning(fields["kind"].node, "environment.kind: uv: the packages are installed with pip")
    prepared.packages += [item.node for item in reader.texts(fields.get("requirements")) if _is_package(reader, item)]
    for item in reader.texts(fields.get("requirement_files")):
        file = reader.file(item, directory, root)
        if file is not None:
            prepared.read.append(file[0])
            prepared.packages += _requirements(reader, item, file[1])
    prepared.env |= {name: build_node(one.value, one.node) for name, one in reader.strings(fields.get("env")).items()}
    prepared.commands += [item.node for item in reader.texts(fields.get("commands"))]


def _only_commands(reader: CaseReader, of: CaseField, fields: Mapping[str, CaseField]) -> None:
    if not fields.get("commands", of).value or "commands" not in fields:
        reader.problem(of.key, "environment.kind: command needs commands")
    for name in ("requirements", "requirement_files"):
        if name in fields and fields[name].value:
            reader.problem(fields[name].key, f"environment.{name} is not for kind: command", expected="only commands")


def _is_package(reader: CaseReader, item: CaseField) -> bool:
    if not str(item.value).lstrip().startswith("-"):
        return True
    reader.problem(
        item.node, f"{item.name}: no package", found=show_value(item.value), expected="a package as pip takes it"
    )
    return False


def _requirements(reader: CaseReader, item: CaseField, text: str) -> list[Node]:
    """The packages that a file of requirements lists."""
    packages = []
    for number, line in enumerate(text.replace("\\\n", " ").splitlines(), 1):
        package = _COMMENT.sub("", line).strip()
        if package.startswith("-") or " --" in package:
            message = (
                f"{item.name}: line {number} of {show_value(item.value)} is an option of pip, which is not supported"
            )
            reader.problem(item.node, message, found=show_value(package), help="list packages only")
        elif package:
            packages.append(build_node(package, item.node))
    return packages


def _stub(reader: CaseReader, item: CaseField) -> Stub | None:
    fields = reader.fields(item, ("file", "function"), required=("file", "function"))
    file, function = reader.text(fields.get("file")), reader.text(fields.get("function"))
    if not file or not function:
        return None
    if is_outside(file):
        reader.problem(fields["file"].node, f"{item.name}.file leaves the workspace", found=show_value(file))
        return None
    if not function.isidentifier():
        message = f"{item.name}.function: no name of a function"
        reader.problem(fields["function"].node, message, found=show_value(function))
        return None
    place = reader.document.place_of(item.node)
    return Stub(file, function, f"{place.path}:{place.line}:{place.column}")
