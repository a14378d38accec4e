"""`setup.packages` in an image (spec 1.1): installed once as root; what they leave becomes an image of its own.

That image is named by its content, so that the next cell, run or pull request with the same packages finds it ready.
"""

from __future__ import annotations

import asyncio
import re
import shlex
from collections.abc import Mapping, Sequence
from functools import partial

from keystone_action.engine import pack as docker_pack
from keystone_action.engine.container import Run, exit_code
from keystone_action.engine.image import Image
from keystone_action.engine.layers import commit_kept, digest_of, find_layer
from keystone_action.engine.plan import ContainerPlan
from keystone_action.engine.transfers import put
from keystone_action.errors import HarnessError, SandboxError
from keystone_action.sandbox.containers.shared import SharedEngine

SCRIPT_FILE = "/.keystone-setup"
OPEN_NETWORK = "bridge"
"""The engine's own: where installers find their registries; the agent's policy does not hold for it."""
_VERSION = 2
"""Of what the script does with the same input."""
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

# The packages are the script's arguments; each list is what remains of them after one turn.
_PACKAGES = r"""
export DEBIAN_FRONTEND=noninteractive PIP_BREAK_SYSTEM_PACKAGES=1 PIP_ROOT_USER_ACTION=ignore
if command -v apt-get >/dev/null; then
  apt-get update -qq || fail "setup.packages: apt-get update failed"
  known() { apt-cache show -- "$1" >/dev/null 2>&1; }
  install() { apt-get install -y -qq --no-install-recommends -- "$@" && rm -rf /var/lib/apt/lists/*; }
elif command -v apk >/dev/null; then
  known() { [ -n "$(apk --update-cache search -qe -- "${1%%[=<>~]*}")" ]; }
  install() { apk --update-cache add --quiet -- "$@"; }
else
  known() { false; }
fi
pip() { python3 -m pip --disable-pip-version-check "$@"; }
manager() {
  case $1 in
    *==* | *">="* | *"<="* | *"~="* | *"!="* | *"["* | *@*) echo pip ;;
    *) if known "$1"; then echo system; else echo pip; fi ;;
  esac
}
python=
for package; do
  if [ "$(manager "$package")" = pip ]; then python="$python $package"; fi
done
if [ -n "$python" ] && ! pip --version >/dev/null 2>&1; then
  fail "setup.packages: the image's package manager does not know$python, and it has no pip that could"
fi
for which in pip system; do
  (
    turns=$#
    while [ "$turns" -gt 0 ]; do
      turns=$((turns - 1)) package=$1
      shift
      if [ "$(manager "$package")" = "$which" ]; then set -- "$@" "$package"; fi
    done
    [ $# -gt 0 ] || exit 0
    case $which in
      system) install "$@" ;;
      pip) pip install --quiet --no-input --no-cache-dir -- "$@" ;;
    esac || fail "setup.packages: could not install $*"
  ) || exit 1
done
"""


async def with_packages_layer(
    engine: SharedEngine,
    image: Image,
    packages: Sequence[str],
    env: Mapping[str, str],
    *,
    network: str = OPEN_NETWORK,
    timeout: float | None = None,
) -> Image:
    """The image with these packages installed, made now or found as made before.

    env reaches installers, and stays neither in the image nor in its description. timeout: seconds for all of it.
    Raises HarnessError with the end of both streams when they can't be installed; SandboxError.
    """
    if not packages:
        return image
    digest = digest_of("packages", _VERSION, image.identifier, list(packages), sorted(env.items()))
    async with engine.layers.setdefault(digest, asyncio.Lock()):
        find = partial(find_layer, engine.client, image, digest, engine.found_layers)
        found = await engine.thread(find)
        if found is not None:
            return found
        done = await engine.execute(_run(engine, image, _script(packages, env), digest, network, timeout))
        if not done.succeeded:
            told = done.failure()
            raise HarnessError(f"setup.packages could not be installed in {image.name}: {told}")
        found = await engine.thread(find)
        if found is None:
            raise SandboxError(f"what setup.packages made of {image.name} is gone again: did somebody remove images?")
        return found


def _script(packages: Sequence[str], env: Mapping[str, str]) -> bytes:
    """Removes itself first: what env holds must not stay in the image."""
    lines = [
        f"rm -f {SCRIPT_FILE}",
        "set -u",
        "export HOME=/root LANG=C.UTF-8",
        'fail() { printf "\\nkeystone: %s\\n" "$1" >&2; exit 1; }',
        *exports(env),
        f"set -- {shlex.join(packages)}",
        _PACKAGES,
    ]
    return ("\n".join(lines) + "\n").encode()


def _run(
    engine: SharedEngine,
    image: Image,
    script: bytes,
    digest: str,
    network: str,
    timeout: float | None,
) -> Run:
    plan = ContainerPlan(
        image=image.identifier,
        argv=("/bin/sh", SCRIPT_FILE),
        user=0,
        directory="/",
        labels=engine.labels,
        network=network,
        init=image.init,
    )

    def prepare(container: str) -> None:
        put(engine.client, container, docker_pack.small_file(SCRIPT_FILE.lstrip("/"), script, 0o600))

    def collect(container: str) -> None:
        if exit_code(engine.client, container) == 0:
            commit_kept(engine.client, image, container, digest)

    return Run(engine.client, plan, timeout=timeout, prepare=prepare, collect=collect)


def exports(env: Mapping[str, str]) -> list[str]:
    """Lines for a shell. It could not be told names of another form, nor would all shells hand them on."""
    return [f"export {name}={shlex.quote(value)}" for name, value in env.items() if _NAME.fullmatch(name)]
