"""`setup` in an image (spec 1.1): packages and commands run once as root; what they leave becomes an image of its own.

That image is named by its content, so that the next cell, run or pull request with the same setup finds it ready.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from keystone_action.errors import HarnessError
from keystone_action.sandbox import docker_pack
from keystone_action.sandbox.base import Completed, Limits
from keystone_action.sandbox.docker_container import Run
from keystone_action.sandbox.docker_engine import Engine
from keystone_action.sandbox.docker_errors import engine_errors
from keystone_action.sandbox.docker_image import Image, find_image
from keystone_action.sandbox.docker_plan import KIND_LABEL, OWNER_LABEL, RUN_LABEL, Plan

REPOSITORY = "keystone-setup"
SETUP_LABEL = "keystone.setup"
TAIL_CHARACTERS = 2000
"""Of each stream of a setup that failed."""
_SCRIPT_FILE = "/.keystone-setup"
_VERSION = 1
"""Of what the script does with the same input."""

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


async def with_setup_layer(
    engine: Engine,
    image: Image,
    packages: Sequence[str],
    commands: Sequence[str],
    env: Mapping[str, str],
    *,
    network: str,
    extra_hosts: Mapping[str, str],
    timeout: float | None = None,
) -> Image:
    """The image with its packages installed and its commands run, made now or found as made before.

    env reaches installers and commands, and stays neither in the image nor in its description. timeout: seconds for
    all of it. Raises HarnessError with the end of both streams when a step fails; SandboxError.
    """
    if not packages and not commands:
        return image
    digest = _digest(image, packages, commands, env)
    async with engine.layers.setdefault(digest, asyncio.Lock()):
        name = f"{REPOSITORY}:{digest}"
        found = await engine.thread(partial(_made_before, engine, name, digest))
        if found is None:
            script = _script(packages, commands, env)
            run = _run(engine, image, script, digest, network=network, extra_hosts=extra_hosts, timeout=timeout)
            done = await engine.execute(run)
            if done.exit_code != 0 or done.timed_out:
                raise HarnessError(f"setup failed in {image.name}: {_story(done)}")
            found = await engine.thread(partial(find_image, engine.api, name, engine.labels))
        found.init = image.init
        await engine.thread(found.learn)
        return found


def _digest(image: Image, packages: Sequence[str], commands: Sequence[str], env: Mapping[str, str]) -> str:
    content = [_VERSION, image.identifier, list(packages), list(commands), sorted(env.items())]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def _made_before(engine: Engine, name: str, digest: str) -> Image | None:
    """By its label too: anybody may give an image this name."""
    with engine_errors(f"can't look for the image {name}"):
        filters = {"label": [f"{SETUP_LABEL}={digest}"], "reference": REPOSITORY}
        if not any(name in (found.get("RepoTags") or []) for found in engine.api.images(filters=filters)):
            return None
    return find_image(engine.api, name, engine.labels)


def _script(packages: Sequence[str], commands: Sequence[str], env: Mapping[str, str]) -> bytes:
    """Removes itself first: what env holds must not stay in the image."""
    lines = [
        f"rm -f {_SCRIPT_FILE}",
        "set -u",
        "export HOME=/root LANG=C.UTF-8",
        'fail() { printf "\\nkeystone: %s\\n" "$1" >&2; exit 1; }',
    ]
    lines += [f"export {name}={shlex.quote(value)}" for name, value in env.items()]
    if packages:
        lines += [f"set -- {shlex.join(packages)}", _PACKAGES]
    for index, command in enumerate(commands):
        what = shlex.quote(f"setup.commands[{index}] (`{_first_line(command)}`) ended with exit code ")
        lines.append(f"sh -c {shlex.quote(command)} </dev/null || fail {what}$?")
    return ("\n".join(lines) + "\n").encode()


def _first_line(command: str) -> str:
    lines = command.strip().splitlines() or [""]
    return lines[0][:100] + (" …" if len(lines) > 1 or len(lines[0]) > 100 else "")


def _run(
    engine: Engine,
    image: Image,
    script: bytes,
    digest: str,
    *,
    network: str,
    extra_hosts: Mapping[str, str],
    timeout: float | None,
) -> Run:
    plan = Plan(
        image=image.identifier,
        argv=("sh", _SCRIPT_FILE),
        user=0,
        directory="/",
        labels=engine.labels,
        limits=Limits(),
        network=network,
        extra_hosts=extra_hosts,
        init=image.init,
    )

    def prepare(container: str) -> None:
        pieces: Iterable[bytes] = [*docker_pack.small_file(_SCRIPT_FILE.lstrip("/"), script, 0o600), docker_pack.END]
        engine.api.put_archive(container, "/", docker_pack.in_chunks(pieces))

    def collect(container: str) -> None:
        if engine.api.inspect_container(container)["State"]["ExitCode"] == 0:
            _commit(engine.api, image, container, digest)

    return Run(engine.api, plan, timeout=timeout, prepare=prepare, collect=collect)


def _commit(api: Any, image: Image, container: str, digest: str) -> None:
    """With the description of the image it was made of, but for labels that make it ours."""
    original = api.inspect_image(image.identifier).get("Config") or {}
    kept = {key: original.get(key) for key in ("Cmd", "Entrypoint", "Env", "User", "WorkingDir", "Shell")}
    labels = {
        **(original.get("Labels") or {}),
        KIND_LABEL: "setup",
        SETUP_LABEL: digest,
        RUN_LABEL: "",
        OWNER_LABEL: "",
    }
    api.commit(container, repository=REPOSITORY, tag=digest, conf={**kept, "Labels": labels})


def _story(done: Completed) -> str:
    how = f"it took longer than its time limit ({done.duration_s:.0f} s)" if done.timed_out else done.limit
    if how is None:
        how = f"exit code {done.shell_code}"
    streams = [
        f"\n{name}: {text[-TAIL_CHARACTERS:]}"
        for name, capture in (("stdout", done.stdout), ("stderr", done.stderr))
        if (text := capture.text().strip())
    ]
    return how + "".join(streams)
