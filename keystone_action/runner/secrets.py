"""Resolving what `secrets` of a spec names (spec 1.4), once for a run, before anything of it starts.

Values come from our own environment, the author's files and commands, or are made here. Nothing is ever taken from
what the runner of a workflow sets for itself, and nothing is silently empty.
"""

from __future__ import annotations

import contextlib
import os
import secrets as random_source
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from keystone_action.errors import SecretError
from keystone_action.evidence.masking import MINIMUM
from keystone_action.invariants.check import Check
from keystone_action.spec.expressions import ExpressionError, interpolate, leaves, references
from keystone_action.spec.limits import HIDDEN_VARIABLES
from keystone_action.spec.loading.author_files import POINTER, POINTER_ADVICE, is_pointer

if TYPE_CHECKING:
    from keystone_action.options.model import Options
    from keystone_action.spec.loading.loaded_spec import LoadedSpec
    from keystone_action.spec.models.spec import Spec
    from keystone_action.spec.models.task import SecretEntry

GENERATED_BYTES = 32
COMMAND_SECONDS = 60.0
SECRET_LIMIT = 1 << 20
"""Bytes of a file or of a command's output that can be a secret."""

KEY_ENDINGS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "CREDENTIALS")
"""How names of variables end that hold what nobody else may read."""


@dataclass(frozen=True, slots=True)
class SpecSecrets:
    """The secrets of a spec."""

    values: Mapping[str, str] = field(repr=False)
    warnings: tuple[str, ...]
    """Sentences for the report's head."""
    missing: Mapping[str, str]
    """Why those could not be resolved that only judges use, by name."""
    error: SecretError | None
    """Why one of the others could not be resolved: every cell of the spec tells it."""


@dataclass(frozen=True, slots=True)
class SecretValues:
    """Secrets that were resolved."""

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    """By name; "" for an optional secret that isn't there."""
    warnings: tuple[str, ...] = ()
    """Sentences for the report's head."""


class _Unresolved(Exception):  # noqa: N818 - turned into a SecretError that names the secret
    """Why there is no value, and what to do about it."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.remedy = remedy


def resolve_secrets(loaded: LoadedSpec, options: Options) -> SpecSecrets:
    """The secrets of a spec. One that only judges use and that can't be resolved lets those judges skip; any other is
    the error of every cell (contract, 5.1)."""
    judges_only = secrets_of_judges(loaded.spec) if loaded.has_expressions else frozenset()

    def values_of(secrets: Sequence[SecretEntry]) -> SecretValues:
        return resolve_values(
            secrets,
            environ=options.caller.environ,
            directory=loaded.directory,
            no_secrets_reason=options.caller.no_secrets_reason,
            otherwise=loaded.advice_on_missing_variable,
        )

    try:
        needed, error = values_of([s for s in loaded.spec.secrets if s.name not in judges_only]), None
    except SecretError as problem:
        needed, error = SecretValues(), problem
    values, missing = dict(needed.values), {}
    for secret in loaded.spec.secrets:
        if secret.name in judges_only:
            try:
                values.update(values_of([secret]).values)
            except SecretError as problem:
                missing[secret.name] = problem.message
    return SpecSecrets(values, needed.warnings, missing, error)


def secrets_of_judges(spec: Spec) -> frozenset[str]:
    """The secrets that are named by judges and by nothing else."""
    judges: set[str] = set()
    others: set[str] = set()
    for leaf in leaves(spec):
        used = {one.parts[1] for one in references(leaf.value, ("request",)) if one.parts[0] == "secrets"}
        by_judge = (
            leaf.path[0] == "invariants"
            and isinstance(check := spec.invariants[str(leaf.path[1])].check, Check)
            and check.skips_without_secrets
        )
        (judges if by_judge else others).update(used)
    return frozenset(judges - others)


def resolve_values(
    secrets: Sequence[SecretEntry],
    *,
    environ: Mapping[str, str],
    directory: Path,
    no_secrets_reason: str = "",
    otherwise: str = "",
) -> SecretValues:
    """The values of all secrets of a spec; blocking, a command may take a minute.

    environ: our own environment. directory: the spec's, which `file:` is relative to and `command:` runs in.
    no_secrets_reason: why this run gets none (a fork, Dependabot), said with every one that is missing. otherwise: what
    to do instead of setting a variable, in a spec of another tool. Raises one SecretError for all that can't be
    resolved, each named with its source and what to do.
    """
    values: dict[str, str] = {}
    warnings: list[str] = []
    problems: list[tuple[str, str]] = []
    for secret in secrets:
        try:
            value = _value(secret, environ, directory, otherwise)
        except _Unresolved as problem:
            if not secret.optional:
                problems.append((f"secret {secret.name} can't be resolved: {problem}", problem.remedy))
            value = ""
        values[secret.name] = value
        if 0 < len(value) < MINIMUM:
            warnings.append(
                f"secret {secret.name} has fewer than {MINIMUM} characters and is not masked in what is written"
            )
    if problems:
        remedies = list(dict.fromkeys(remedy for _, remedy in problems))
        if no_secrets_reason:
            remedies.insert(0, no_secrets_reason.rstrip(".") + ".")
        raise SecretError("; ".join(reason for reason, _ in problems), help=" ".join(remedies))
    return SecretValues(values, tuple(warnings))


def handed_out(loaded: LoadedSpec) -> list[str]:
    """The names of variables of ours that `{{ env.NAME }}` gives an agent."""
    if not loaded.has_expressions or loaded.spec.agent is None:
        return []
    used = (one.parts for leaf in leaves(loaded.spec.agent) for one in references(leaf.value))
    return sorted({parts[1] for parts in used if len(parts) == 2 and parts[0] == "env"})


def is_key(name: str) -> bool:
    """Whether a variable's name says that its value is a secret."""
    return name.upper().endswith(KEY_ENDINGS)


def keys_handed_out(loaded: LoadedSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    """The values of variables of ours that an agent is given and whose name says that it is a key: they are masked like
    secrets (contract, 5.1)."""
    return tuple(environ[name] for name in handed_out(loaded) if is_key(name) and environ.get(name))


def _value(secret: SecretEntry, environ: Mapping[str, str], directory: Path, otherwise: str) -> str:
    if secret.from_ is not None:
        return _value_of(secret.name, _fill(secret.from_, environ))
    kind, _, rest = _fill(secret.source or "env", environ).partition(":")
    if kind == "env":
        otherwise = otherwise or f"give {secret.name} `optional: true`"
        return _from_environment(rest or secret.name, environ, otherwise)
    if kind == "file":
        return _from_file(rest, environ, directory)
    if kind == "command":
        return _from_command(rest, environ, directory)
    raise _Unresolved(f"its source {kind!r} is unknown", "Use env, env:OTHER, file:<path> or command:<shell>.")


def _fill(text: str, environ: Mapping[str, str]) -> str:
    """With `{{ env.NAME }}`, the only names that secrets may use: nothing else is known this early."""
    try:
        return interpolate(text, {"env": environ})
    except ExpressionError as error:
        variable = error.name.removeprefix("env.")
        raise _Unresolved(f"the environment variable {variable} is not set", f"Set {variable}.") from None


def _value_of(name: str, origin: str) -> str:
    if origin == "generated":
        return random_source.token_hex(GENERATED_BYTES)
    value = origin.removeprefix("static://")
    if not value:
        raise _Unresolved("static:// holds no text", f"Write the value after static://, or make {name} optional.")
    return value


def _from_environment(variable: str, environ: Mapping[str, str], otherwise: str) -> str:
    if variable.upper().startswith(HIDDEN_VARIABLES):
        raise _Unresolved(
            f"{variable} belongs to the workflow's runner and is never a secret's source",
            "Pass the value to the step under another name.",
        )
    value = environ.get(variable, "")
    if value.strip():
        return value
    state = "empty" if variable in environ else "not set"
    raise _Unresolved(
        f"the environment variable {variable} is {state}",
        f"Set {variable} (in a workflow: under `env:` of the step, and name it in the input `env`), or {otherwise}.",
    )


def _from_file(path: str, environ: Mapping[str, str], directory: Path) -> str:
    home = environ.get("HOME", "")
    full = Path(home) / path[1:].lstrip("/") if home and (path == "~" or path.startswith("~/")) else Path(path)
    remedy = f"Write the value to {path}, or name another file (relative to the spec's directory)."
    try:
        full = directory / full
        if not full.is_file():
            raise _Unresolved(f"the file {path} {'is not a file' if full.exists() else 'does not exist'}", remedy)
        with full.open("rb") as file:
            content = file.read(SECRET_LIMIT + 1)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name can't be used"
        raise _Unresolved(f"the file {path} can't be read: {why}", remedy) from None
    if is_pointer(content):
        raise _Unresolved(f"the file {path} is {POINTER}", f"{POINTER_ADVICE.capitalize()}.")
    return _text(content, f"the file {path}", remedy)


def _from_command(command: str, environ: Mapping[str, str], directory: Path) -> str:
    """On the host, with our own environment: the command is the author's, as a step of the workflow would be."""
    shown = command.strip().splitlines()[0][:80] if command.strip() else ""
    remedy = f"Run `{shown}` by hand in the spec's directory: it must print the value and exit with 0."
    try:
        code, output = _run(command, environ, directory)
    except subprocess.TimeoutExpired:
        raise _Unresolved(f"its command `{shown}` took longer than {COMMAND_SECONDS:g} s", remedy) from None
    except (OSError, ValueError) as error:
        raise _Unresolved(f"its command `{shown}` can't be run: {error}", remedy) from None
    if code != 0:
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        raise _Unresolved(f"its command `{shown}` ended with {how}", remedy)
    return _text(output, f"the output of `{shown}`", remedy)


def _run(command: str, environ: Mapping[str, str], directory: Path) -> tuple[int, bytes]:
    """(exit code, stdout). What the command started is gone after a time-out. Raises TimeoutExpired, OSError."""
    with subprocess.Popen(
        ["/bin/sh", "-c", command],
        cwd=directory,
        env=dict(environ),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # may hold the secret; the remedy says how to see it
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=COMMAND_SECONDS)
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output


def _text(content: bytes, what: str, remedy: str) -> str:
    if len(content) > SECRET_LIMIT:
        raise _Unresolved(f"{what} is larger than {SECRET_LIMIT >> 20} MiB", remedy)
    try:
        value = content.decode().strip()
    except UnicodeDecodeError:
        raise _Unresolved(f"{what} is not text: its bytes are not UTF-8", remedy) from None
    if "\0" in value:
        raise _Unresolved(f"{what} holds a NUL character, which no variable can", remedy)
    if not value:
        raise _Unresolved(f"{what} is empty", remedy)
    return value
