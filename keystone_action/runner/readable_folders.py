"""`resources.readable`: folders of this machine that agent and checks may read, by the author's word (contract, 5.2).

What no spec may show: the checkout, results, files that a spec withholds, credentials of ours, and `/proc`. The real
place decides, since that is what a sandbox shows.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import UsageError
from keystone_action.files.paths import is_within, real_path
from keystone_action.system.environment import DEFAULT_PATH, own_search_path

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.spec.loading.loaded_spec import LoadedSpec

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
    """The real places of a spec's `resources.readable`. Raises UsageError, naming the folder and why, for one that is
    not there, is no folder, or would show what nobody may see."""
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
