"""What must hold before anything starts: exit 2 with a sentence, never a policy that silently has no effect.

In this order: what the cells of a run will run in, and what can't be kept there; the container engine;
`resources.readable`; the scorers of authors that specs name.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio

from keystone_action.errors import SandboxError, UsageError
from keystone_action.files.paths import is_within, real_path
from keystone_action.runner.cell.clock import find_library
from keystone_action.runner.roots import make_readable
from keystone_action.spec.loading.diagnostics import Diagnostic, SpecError, listing, nearest, show_value
from keystone_action.spec.loading.loaded_spec import LoadedSpec
from keystone_action.spec.models.services import ServerBase
from keystone_action.system.command import CommandLimits
from keystone_action.system.environment import DEFAULT_PATH, own_search_path

if TYPE_CHECKING:
    from pathlib import Path

    from keystone_action.engine.client import EngineClient
    from keystone_action.options.model import Options
    from keystone_action.scoring.differences import SpecChanges

    # was an import of itself
    from keystone_action.spec.loading.loaded_spec import LoadedSpec, OwnScorers
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.plan import Plan


@dataclass(frozen=True, slots=True)
class GatedSpecs:
    """The specs to run, and what the change does to them."""

    specs: list[LoadedSpec]
    changes: SpecChanges | None = None
    """None where there was nothing to compare."""


def preflight(specs: Sequence[LoadedSpec], planned: Plan, options: Options) -> Facilities:
    """What the cells will run in. Refuses what this machine or this version can't do: raises UsageError."""
    planned_ids = {cell.loaded.spec.id for cell in planned.cells}
    wanted = [loaded for loaded in specs if loaded.spec.id in planned_ids]
    facilities = find_facilities(wanted, options)
    try:
        for loaded in wanted:
            _refuse_without_gateway(loaded, options)
            _refuse_without_clock(loaded)
            if loaded.spec.services:
                from keystone_action.services.service import refuse_unsupported

                refuse_unsupported(loaded.spec.services, engine=facilities.client is not None)
            if loaded.spec.id in facilities.images:
                _refuse_what_containers_lack(loaded)
            else:
                _refuse_what_processes_lack(loaded, options)
    except BaseException:
        facilities.close()
        raise
    return facilities


def _refuse_without_gateway(loaded: LoadedSpec, options: Options) -> None:
    if (option := options.needs_gateway) and loaded.spec.gateway == "off":
        raise UsageError(
            f"{loaded.path}: {option} needs what `gateway: off` switches off",
            help=f"leave `gateway` out of the spec, or the option away (in the action: the input {option[2:]})",
        )


def _refuse_without_clock(loaded: LoadedSpec) -> None:
    if loaded.spec.determinism.clock is not None and find_library() is None:
        raise UsageError(
            f"{loaded.path}: determinism.clock needs libfaketime, which is not installed",
            help="install it (Debian and Ubuntu: apt-get install libfaketime), or leave determinism.clock out",
        )


def _refuse_what_containers_lack(loaded: LoadedSpec) -> None:
    resources = loaded.spec.resources
    if resources.readable:
        raise UsageError(
            f"{loaded.path}: resources.readable shows folders of this machine, and this spec runs in an image",
            help="install what the agent needs in the image (`base`), or by setup.packages and setup.commands",
        )
    if resources.strict and resources.disk is not None:
        raise UsageError(
            f"{loaded.path}: resources.strict: true can't be kept for disk: a container is stopped once it is seen"
            " above the limit, the engine does not enforce it",
            help="leave disk or strict out; cpu, memory and pids are enforced",
        )


def _refuse_what_processes_lack(loaded: LoadedSpec, options: Options) -> None:
    spec = loaded.spec
    if spec.resources.readable:
        # was an import of itself

        readable_folders(loaded, options)
    if spec.resources.strict:
        raise UsageError(
            f"{loaded.path}: resources.strict: true can't be kept: the process sandbox watches limits and stops"
            " what exceeds them, it does not enforce them",
            help="leave strict out, or set base to run in a container, where limits are enforced",
        )
    if spec.network.egress.allow and spec.network.egress.default == "deny":
        raise UsageError(
            f"{loaded.path}: network.egress.allow can't be kept by the process sandbox: with deny it reaches the"
            " services, mocks and models of the cell alone",
            help="set base to run in a container, whose network has a proxy for these hosts, or leave allow out",
        )


def substituted_services(specs: Sequence[LoadedSpec]) -> tuple[str, ...]:
    """What runs in place of an image that was asked for where there is no engine, a sentence each."""
    return tuple(
        f"service {service.name} of {loaded.spec.id}: {instead}{_without_effect(service)}"
        for loaded in specs
        for service in loaded.spec.services
        if isinstance(service, ServerBase) and (instead := _instead_of_image(service))
    )


def _instead_of_image(service: ServerBase) -> str:
    """Empty where nothing stands in for an image."""
    if service.kind == "postgres" and service.image:
        return f"embedded PostgreSQL instead of the image {service.image}"
    if service.kind == "mysql" and not service.image:
        from keystone_action.services.mysql.local_server import find_program
        from keystone_action.services.mysql.service import DEFAULT_IMAGE

        program = find_program()
        return f"{program.name} of this machine instead of the image {DEFAULT_IMAGE}" if program is not None else ""
    return ""


def _without_effect(service: ServerBase) -> str:
    given = [name for name in ("ports", "wait_for") if getattr(service, name)]
    return f"; {' and '.join(given)} have no effect on it" if given else ""


DEFAULT_BASE = "python:3.12-slim"
"""For `--sandbox docker` where a spec names no `base`."""
_WAYS_OUT = (
    "Start Docker (or set DOCKER_HOST); without it leave `base` out and use type postgres, sqlite, http_mock or"
    " external, which run here; `keystone doctor` says what there is"
)


@dataclass(frozen=True)
class Facilities:
    """What the cells of a run run in."""

    images: Mapping[str, str] = field(default_factory=dict)
    """By spec id, for the specs whose sandbox is a container."""
    client: EngineClient | None = None
    """None where an engine is not there, or not needed."""
    notices: tuple[str, ...] = ()
    """For the head of every report."""

    def close(self) -> None:
        """Give the connection back. Twice does no harm."""
        if self.client is not None:
            self.client.close()


def find_facilities(specs: Sequence[LoadedSpec], options: Options) -> Facilities:
    """The engine, where one of these specs needs or wants it: a container sandbox, an image that nothing stands in for,
    or `--sandbox docker` can't do without one; `image: postgres:*` would rather have one, and without it the embedded
    server stands in (contract, 5.2). Raises UsageError when one is needed and none answers."""
    images = {loaded.spec.id: image for loaded in specs if (image := _image(loaded, options)) is not None}
    needed = next((need for loaded in specs for need in _needs(loaded, options)), None)
    wanted = needed is not None or any(wants_engine(loaded.spec) for loaded in specs)
    if not wanted:
        return Facilities(images)
    from keystone_action.engine.connect import connect

    try:
        client = connect(options.caller.environ)
    except SandboxError as error:
        if needed is None:
            return Facilities(images, None, (f"no Docker engine: {error.message}; embedded services are used",))
        raise UsageError(
            f"{needed}, and there is none: {error.message}", help=_join_sentences(error.help, _WAYS_OUT)
        ) from None
    notices = tuple(
        f"spec {loaded.spec.id} names no base; it runs in {DEFAULT_BASE} (--sandbox docker)"
        for loaded in specs
        if loaded.spec.id in images and loaded.spec.base is None
    )
    return Facilities(images, client, notices)


def wants_engine(spec: Spec) -> bool:
    """Whether services of a spec run on an engine where there is one."""
    return any(needs_image(service) for service in spec.services)


def needs_image(service: Any) -> bool:
    """Whether a service is a container where an engine is there."""
    return isinstance(service, ServerBase) and (service.image is not None or service.kind == "mysql")


def _image(loaded: LoadedSpec, options: Options) -> str | None:
    base = loaded.spec.base
    if options.running.sandbox == "docker":
        return base or DEFAULT_BASE
    if base is not None and options.running.sandbox == "process":
        raise UsageError(
            f"{loaded.path}: base: {base} asks for a container, and --sandbox process for none",
            help="leave --sandbox out, or `base`",
        )
    return base


def _needs(loaded: LoadedSpec, options: Options) -> Iterator[str]:
    """What can't do without an engine, a sentence's beginning each."""
    if options.images.docker_network is not None:
        yield f"docker-network: {options.images.docker_network} needs a Docker engine"
    if loaded.spec.base is not None:
        yield f"{loaded.path}: base: {loaded.spec.base} needs a Docker engine"
    elif options.running.sandbox == "docker":
        yield "--sandbox docker needs a Docker engine"
    for service in loaded.spec.services:
        image = getattr(service, "image", None)
        if image and needs_image(service) and service.kind != "postgres":
            yield f"{loaded.path}: service {service.name} (image: {image}) needs a Docker engine"


def _join_sentences(first: str, second: str) -> str:
    return f"{first.rstrip('.')}. {second}" if first else second


_NEVER_INSIDE = ("/proc", "/sys", "/dev", "/github", "/run", "/var/run")
_CREDENTIALS = (
    ".ssh", ".gnupg", ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".docker", ".kube", ".aws", ".azure",
    ".config/git", ".config/gh", ".config/gcloud", ".config/containers", ".anthropic", ".claude", ".claude.json",
    ".codex", ".gemini", ".cargo/credentials.toml", ".local/share/keyrings", ".password-store",
)  # fmt: skip
"""Below HOME."""
_NAMED = ("DOCKER_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "KUBECONFIG", "GIT_ASKPASS", "AWS_SHARED_CREDENTIALS_FILE")
"""Variables that say where credentials are."""


def readable_folders(loaded: LoadedSpec, options: Options) -> tuple[Path, ...]:
    """The real places of a spec's `resources.readable`: folders of this machine that agent and checks may read, by the
    author's word (contract, 5.2). No spec may show the checkout, results, files that a spec withholds, credentials of
    ours, or `/proc`. The real place decides, since that is what a sandbox shows.

    Raises UsageError, naming the folder and why, for one that is not there, is not a folder, or would show what nobody
    may see."""
    return tuple(_folder(text, loaded, options) for text in loaded.spec.resources.readable)


def with_search_path(variables: Mapping[str, str], folders: Sequence[Path]) -> Mapping[str, str]:
    """The variables of a sandbox with the programs of these folders on its PATH, after its own: what our own PATH names
    in them, the folders themselves and their `bin`."""
    if not folders:
        return variables
    ours = [Path(place) for place in own_search_path().split(":")]
    places = [place for place in ours if any(is_within(real_path(place), folder) for folder in folders)]
    places += [place for folder in folders for place in (folder, folder / "bin") if place.is_dir()]
    path = [variables.get("PATH", DEFAULT_PATH), *dict.fromkeys(map(str, places))]
    return {**variables, "PATH": ":".join(path)}


def _folder(text: str, loaded: LoadedSpec, options: Options) -> Path:
    home = options.caller.environ.get("HOME", "")
    named = Path(home, text[2:]) if text.startswith("~/") and home else loaded.code_directory / text
    real = real_path(named)
    where = f"{loaded.path}: resources.readable: {text}"
    if not real.exists():
        raise UsageError(f"{where}: there is no such folder", help=f"looked for at {real}")
    if not real.is_dir():
        raise UsageError(f"{where} is not a folder", help=f"name the folder that it is in: {real.parent}")
    for what, place in _secret_places(loaded, options):
        if is_within(place, real):
            raise UsageError(
                f"{where} would show {what} ({place}) to the agent",
                help="name a folder below it that holds no more than the agent needs",
            )
    git = (("a repository's own folder", real_path(place / ".git")) for place in _checkouts(loaded, options))
    for what, place in (*_closed_places(options), *git):
        if is_within(real, place):
            raise UsageError(f"{where} lies in {what} ({place}), which no agent may see")
    return real


def _secret_places(loaded: LoadedSpec, options: Options) -> Iterator[tuple[str, Path]]:
    """What a folder must not hold."""
    yield from (("the checkout", real_path(place)) for place in _checkouts(loaded, options))
    yield from (("a file that this spec withholds", real_path(path)) for path in loaded.withheld)
    yield "this spec", real_path(loaded.path)
    # Hidden tests and other cells are there; where all run as one user, only Landlock keeps them from an agent.
    yield "the files of this run", real_path(Path(tempfile.gettempdir()))
    yield from _closed_places(options)


def _closed_places(options: Options) -> Iterator[tuple[str, Path]]:
    """What a folder must neither hold nor lie in."""
    yield (
        "the results",
        real_path(options.reports.output or options.caller.directory / ".keystone"),
    )
    yield from (("what belongs to the machine or the runner", Path(place)) for place in _NEVER_INSIDE)
    environ = options.caller.environ
    if home := environ.get("HOME"):
        yield from (("credentials", real_path(Path(home, name))) for name in _CREDENTIALS)
    yield from (
        ("credentials", real_path(Path(environ[name]))) for name in _NAMED if environ.get(name, "").startswith("/")
    )
    if temporary := environ.get("RUNNER_TEMP"):
        yield "the runner's files", real_path(Path(temporary))


def _checkouts(loaded: LoadedSpec, options: Options) -> Iterator[Path]:
    yield options.caller.directory
    yield loaded.directory
    yield loaded.code_directory
    if workspace := options.caller.environ.get("GITHUB_WORKSPACE"):
        yield Path(workspace)
    # The repository's own root, wherever in it the command was called.
    yield from (folder for folder in (loaded.directory, *loaded.directory.parents) if (folder / ".git").exists())


_SECONDS = 60.0
"""For the import of a suite's modules."""


async def check_scorers(specs: Sequence[LoadedSpec], planned: Plan, facilities: Facilities) -> None:
    """Refuse suites with a scorer that none of their modules registers, or with one in the place of a built-in one.
    Which scorers there are is only known by importing these modules, which happens in a sandbox, never here.

    Modules that can't be imported are left to the cells, which tell what they raise; so are suites that run in
    containers, since other packages are there. Raises SpecError with every wrong name, SandboxError.
    """
    wanted = {cell.loaded.spec.id for cell in planned.cells} - set(facilities.images)
    suites = [
        (loaded, loaded.own_scorers) for loaded in specs if loaded.spec.id in wanted and loaded.own_scorers is not None
    ]
    if not suites:
        return
    from keystone_action.sandbox.processes import sandboxes as process
    from keystone_action.spec.loading.loaded_spec import enclosing_root

    hidden = sorted({enclosing_root(one) for suite, _ in suites for one in (suite.directory, suite.code_directory)})
    provider = await process.start(hidden=hidden)
    try:
        problems = [
            problem
            for number, (loaded, own) in enumerate(suites)
            for problem in _unknown(
                own, await _read_registered(provider, loaded, own, provider.root / f"suite-{number}")
            )
        ]
    finally:
        with anyio.CancelScope(shield=True):
            await provider.close()
    if problems:
        raise SpecError(problems)


async def _read_registered(provider: Any, loaded: LoadedSpec, own: OwnScorers, place: Path) -> Mapping[str, Any] | None:
    """What the modules of a suite register; None when they can't be asked."""
    from keystone_action.files.workspace import copy_tree
    from keystone_action.invariants.own_scorers import NotAnswered, Scorers, ask_scorer

    workspace, code = place / "workspace", place / "code"

    def lay_out() -> None:
        place.mkdir(mode=0o755)
        place.chmod(0o711)
        workspace.mkdir()
        source = loaded.directory / own.directory
        copy_tree(source, code, withheld=loaded.withheld, ignore=loaded.agent_left_out)
        make_readable(code)

    await anyio.to_thread.run_sync(lay_out)
    sandbox = await provider.open(workspace, limits=CommandLimits(), readable=(code,))
    try:
        order = {"scorer": None}
        scorers = Scorers(own.modules, loaded.library(), directory=str(code))
        answer, _ = await ask_scorer(sandbox, scorers, order, environment=loaded.spec.setup.env, timeout=_SECONDS)
    except NotAnswered:
        return None
    finally:
        await sandbox.close()
    return answer


def _unknown(own: OwnScorers, answer: Mapping[str, Any] | None) -> Iterator[Diagnostic]:
    if answer is None:
        return
    # The modules that were asked have the answer in their hands: what they say is data.
    told = (answer.get(key) for key in ("names", "replaced"))
    names, replaced = ([str(name) for name in one] if isinstance(one, list) else [] for one in told)
    modules = " and ".join(own.modules)
    for name, at in own.places.items():
        if name not in names:
            yield Diagnostic.at(
                at,
                f"unknown scorer {show_value(name)}",
                expected=f"one of {listing(sorted(names))}",
                suggestion=nearest(name, names),
                help=f"{modules} registers no scorer of that name",
            )
        elif name in replaced:
            message = f"{modules} registers another scorer as {show_value(name)}, which is built in"
            yield Diagnostic.at(at, message, help="give it a name of its own")
