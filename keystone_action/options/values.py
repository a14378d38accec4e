"""Values of options that take more than their type to read: text in, value out."""

from __future__ import annotations

import re
from collections.abc import Mapping

from keystone_action.errors import UsageError
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.registry_names import parse_mirror

MAX_STATUS_NAME = 255
"""Characters of a commit status' name."""
DENIED_PREFIXES = (*HIDDEN_VARIABLES, "RUNNER_", "STATE_")
"""Variables of the runner itself, its tokens among them: no option can pass them on."""

PARAMETER_NAME = r"[A-Za-z_][A-Za-z0-9_.-]*"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_NETWORK = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_RUN_ID = _NETWORK
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")
_DIGITS = re.compile(r"[0-9]{1,6}")
AUTO_SHARD = (0, 0)
"""The shard that `find_shard` finds."""
_SHARD_VARIABLES = (
    ("JOB_COMPLETION_INDEX", "KEYSTONE_SHARDS", 0),
    ("CI_NODE_INDEX", "CI_NODE_TOTAL", 1),
    ("BUILDKITE_PARALLEL_JOB", "BUILDKITE_PARALLEL_JOB_COUNT", 0),
)
"""Of Kubernetes' indexed jobs, GitLab and Buildkite: index, number of shards, and the index of the first."""


class UnreadableError(ValueError):
    """A text that no value can be read from."""

    def __init__(self, expected: str, found: str | None = None) -> None:
        super().__init__(expected)
        self.expected = expected
        """What would have been right, as it follows "expected" or "is not"."""
        self.found = found
        """The part of the text that is wrong, or what may be repeated of it; None = the text itself."""


def read_shard(text: str) -> tuple[int, int]:
    """`2/3` → (2, 3), `auto` → AUTO_SHARD. Raises UnreadableError unless 1 ≤ i ≤ N."""
    if text == "auto":
        return AUTO_SHARD
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UnreadableError("i/N with i from 1 to N, for example 1/3")
    return int(match[1]), int(match[2])


def find_shard(environ: Mapping[str, str]) -> tuple[tuple[int, int], str]:
    """The shard that this job's variables name (contract, 5.8), and which they are: `CI_NODE_INDEX and CI_NODE_TOTAL`.

    Raises UsageError where there are none, one of a pair is missing, or they name no shard.
    """
    if text := environ.get("KEYSTONE_SHARD"):
        if text == "auto" or (shard := _shard_or_none(text)) is None:
            raise UsageError(f"shard auto: KEYSTONE_SHARD is {text[:40]!r}; expected i/N with i from 1 to N")
        return shard, "KEYSTONE_SHARD"
    for index_name, count_name, first in _SHARD_VARIABLES:
        index, count = environ.get(index_name, ""), environ.get(count_name, "")
        if not index and not count:
            continue
        both = f"{index_name} and {count_name}"
        if not (index and count):
            raise UsageError(
                f"shard auto: {index_name if index else count_name} is there, and {count_name if index else index_name}"
                " is not",
                help=f"give {both}, or name the shard: i/N",
            )
        shard = _shard_or_none(f"{int(index) + 1 - first}/{count}" if _DIGITS.fullmatch(index) else "")
        if shard is None:
            found = f"{index[:40]!r} and {count[:40]!r}"
            wanted = f"an index from {first} to {'their number' if first else 'one below their number'}"
            raise UsageError(f"shard auto: {both} are {found}; expected {wanted}, and the number of shards")
        return shard, both
    known = ", ".join(f"{index_name} with {count_name}" for index_name, count_name, _ in _SHARD_VARIABLES)
    raise UsageError(
        "shard auto: no variable of this job says which shard it is",
        help=f"set KEYSTONE_SHARD=i/N; also read are {known}",
    )


def _shard_or_none(text: str) -> tuple[int, int] | None:
    try:
        return read_shard(text)
    except UnreadableError:
        return None


def read_parameter(text: str) -> tuple[str, str]:
    """`model=a` → ("model", "a"). Raises UnreadableError without a name or `=`."""
    name, equals, value = text.partition("=")
    if not equals or not re.fullmatch(PARAMETER_NAME, name.strip()):
        raise UnreadableError("name=value")
    if not text.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise UnreadableError("name=value in UTF-8")
    return name.strip(), value


def read_duration(text: str) -> float:
    """`10m` → 600.0. Raises UnreadableError."""
    from pydantic_core import PydanticCustomError

    from keystone_action.spec.models.fields import parse_duration

    try:
        return parse_duration(text)
    except PydanticCustomError:
        raise UnreadableError("a duration like 90, 90s, 10m or 1h30m") from None


def read_mirror(text: str) -> str:
    """`https://mirror.example:5000/hub/` → `mirror.example:5000/hub`. Raises UnreadableError, which repeats no user."""
    if "@" in text:
        found = f"…@{text.rpartition('@')[2]}"
        raise UnreadableError("a registry without a user, which goes into registry-username", found)
    mirror = parse_mirror(text)
    if mirror is None:
        raise UnreadableError("a registry, for example mirror.example or mirror.example:5000/hub")
    return mirror


def read_network(text: str) -> str:
    """The name of a network of the engine that a container can join. Raises UnreadableError."""
    if text in ("host", "none", "bridge", "default") or text.startswith("container:"):
        raise UnreadableError("a network of the job's own, for example ${{ job.container.network }}")
    if not _NETWORK.fullmatch(text):
        raise UnreadableError("the name of a network of the Docker engine")
    return text


def read_variable(text: str) -> str:
    """The name of a variable of the environment that agents may be given. Raises UnreadableError."""
    if not _VARIABLE.fullmatch(text):
        raise UnreadableError("names of environment variables, without their values", text)
    if text.upper().startswith(DENIED_PREFIXES):
        raise UnreadableError("variables of your own; the runner's are never passed on", text)
    return text


def read_line(text: str) -> str:
    """A user or password. Raises UnreadableError."""
    if not text.isprintable():
        raise UnreadableError("one line without control characters")
    return text


def read_status_name(text: str) -> str:
    """The name of a commit status, as GitHub takes it. Raises UnreadableError."""
    if not text.isprintable() or len(text) > MAX_STATUS_NAME:
        raise UnreadableError(f"one line of at most {MAX_STATUS_NAME} characters")
    return text


def read_run_id(text: str) -> str:
    """The id of a run. Raises UnreadableError."""
    if not _RUN_ID.fullmatch(text):
        raise UnreadableError("the id of a run, such as 20260102-030405-a1b2c3")
    return text
