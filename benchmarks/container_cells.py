"""What a further cell in containers costs beside the `docker` calls that it can't do without."""

from __future__ import annotations

import secrets
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.engine import BASE, LABEL, Missing, client, docker
from benchmarks.measure import KEYSTONE, Row, command, interleaved

CELLS = 4
_SPEC = """\
version: 1
id: bench
task: {{prompt: "nothing to do"}}
base: {base}
agent: {{type: command, command: ["touch", "done"]}}
parallelism: {{replicas: {replicas}, max_concurrency: 1}}
invariants:
  there: {{check: {{type: file_exists, path: done}}}}
"""


def container_cells(rounds: int) -> list[Row] | list[str]:
    """The rows, or a line that says why there are none."""
    try:
        client(BASE).close()
    except Missing as missing:
        return [f"a cell in a container: not measured ({missing})"]
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        directory = Path(name)
        samples = interleaved(
            {
                "bare": lambda: _bare(directory),
                "network": lambda: _with_network(directory),
                "one": _run(directory, 1),
                "many": _run(directory, 1 + CELLS),
            },
            rounds,
        )
    one, bare, network = (samples[key].median for key in ("one", "bare", "network"))
    further = (samples["many"].median - one) / CELLS
    return [
        Row("one cell in a container", one, "docker run", bare, None),
        Row("each further cell in a container", further, "docker run", bare, None),
        Row("each further cell in a container", further, "docker run in a network of its own", network, None),
    ]


def _run(directory: Path, replicas: int) -> Callable[[], float]:
    spec = directory / f"{replicas}.keystone.yaml"
    spec.write_text(_SPEC.format(base=BASE, replicas=replicas))

    def once() -> float:
        output = f"out-{secrets.token_hex(4)}"
        return command([*KEYSTONE, "run", spec.name, "--output", output, "--quiet"], directory)()

    return once


def _bare(directory: Path, *more: str) -> float:
    """The agent's command as whoever has no harness would run it: a workspace mounted, nobody's user."""
    workspace = directory / f"bare-{secrets.token_hex(4)}"
    workspace.mkdir(mode=0o777)
    workspace.chmod(0o777)
    mount = f"type=bind,source={workspace},target={workspace}"
    words = ["docker", "run", "--rm", "--label", LABEL, "--user", "65532:65532", "--mount", mount, *more]
    elapsed = command([*words, "--workdir", str(workspace), BASE, "touch", "done"], directory)()
    if not (workspace / "done").exists():
        raise RuntimeError("the engine does not share our file system: nothing to compare with")
    return elapsed


def _with_network(directory: Path) -> float:
    name = f"keystone-bench-{secrets.token_hex(4)}"
    started = time.perf_counter()
    docker(["network", "create", "--label", LABEL, name])
    try:
        _bare(directory, "--network", name)
    finally:
        docker(["network", "rm", name])
    return time.perf_counter() - started
