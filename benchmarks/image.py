"""The action's image: what it weighs, and how long `docker run … --version` takes beside containers that do nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from benchmarks.engine import BASE, LABEL, Missing, action_image, client
from benchmarks.measure import Row, command, interleaved

MEGABYTE = 10**6
SIZE_BUDGET = 200
"""Megabytes above its base, unpacked."""
VERSION_BUDGET = 1.3
"""Times `true` of its base."""


def image(rounds: int) -> list[Row | str]:
    """The rows, or a line that says why there are none."""
    try:
        engine = client(BASE)
        tag = action_image(engine)
    except Missing as missing:
        return [f"the image: not measured ({missing})"]
    size, below = (engine.images.get(name).attrs["Size"] / MEGABYTE for name in (tag, BASE))
    engine.close()
    with tempfile.TemporaryDirectory(prefix="keystone-bench-") as name:
        run = ["docker", "run", "--rm", "--label", LABEL]
        samples = interleaved(
            {
                "true": command([*run, BASE, "true"], Path(name)),
                "python": command([*run, BASE, "python3", "-c", "pass"], Path(name)),
                "version": command([*run, tag, "--version"], Path(name)),
            },
            rounds,
        )
    version, true, python = (samples[key].median for key in ("version", "true", "python"))
    more, least = ((seconds - true) * 1000 for seconds in (version, python))
    kept = "yes" if size - below <= SIZE_BUDGET else "NO"
    weight = f"{size - below:7.0f}MB {SIZE_BUDGET:7.0f}MB  {kept:<3} {size / below:8.2f} × its base ({below:.0f} MB)"
    return [
        f"{'the image above its base':<38} {weight}",
        Row("docker run … --version", version, "docker run <base> true", true, VERSION_BUDGET * true),
        Row("docker run … --version", version, "docker run <base> python3 -c pass", python, None),
        f"  of it above `true` of its base: {more:.0f} ms (python3 -c pass: {least:.0f} ms)",
    ]
