"""What the agent finds in its environment, besides the PATH, HOME, LANG and TMPDIR of the sandbox (spec 1.1)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from keystone_action.errors import HarnessError
from keystone_action.evidence.model import Address

PROMPT_VARIABLE_LIMIT = 100 << 10
"""Bytes: a longer prompt is in KEYSTONE_PROMPT_FILE only (spec 5.2; the kernel's limit for one variable is 128 KiB)."""


def agent_environment(
    *,
    prompt: str,
    prompt_file: Path,
    workspace: str,
    agent_directory: Path | None = None,
    services: Mapping[str, Address] | None = None,
    seed: int | None = None,
    model_variables: Mapping[str, str] | None = None,
    setup_env: Mapping[str, str] | None = None,
    agent_env: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """The variables, later ones winning: KEYSTONE_*, the seed, those of models, `setup.env`, `agent.env`.

    prompt_file and workspace as code inside the sandbox sees them. Raises HarnessError for a variable that no process
    can be given (a NUL character, an empty name).
    """
    variables = {
        "KEYSTONE_PROMPT": prompt,
        "KEYSTONE_PROMPT_FILE": str(prompt_file),
        "KEYSTONE_WORKSPACE": workspace,
        **service_environment(services or {}),
    }
    if len(prompt_bytes(prompt)) > PROMPT_VARIABLE_LIMIT or "\0" in prompt:
        del variables["KEYSTONE_PROMPT"]
    if agent_directory is not None:
        variables["KEYSTONE_AGENT_DIR"] = str(agent_directory)
    if seed is not None:
        variables |= {"KEYSTONE_SEED": str(seed), "PYTHONHASHSEED": str(seed % 2**32)}
    variables |= {**(model_variables or {}), **(setup_env or {}), **(agent_env or {})}
    for name, value in variables.items():
        if not name or "=" in name or "\0" in name + value:
            raise HarnessError(
                f"the environment variable {name!r} can't be given to a process",
                help="names hold no `=`, and neither names nor values hold NUL characters",
            )
    return variables


def service_environment(services: Mapping[str, Address]) -> dict[str, str]:
    """KEYSTONE_SERVICE_<NAME>_{HOST,PORT,URL}, names in upper case with dashes as `_`; what a service has not is
    left out."""
    variables: dict[str, str] = {}
    for name, address in services.items():
        prefix = f"KEYSTONE_SERVICE_{name.upper().replace('-', '_')}"
        known = {"HOST": address.host, "PORT": address.port, "URL": address.url}
        variables |= {f"{prefix}_{key}": str(value) for key, value in known.items() if value not in (None, "")}
    return variables


def prompt_bytes(prompt: str) -> bytes:
    """The prompt as it is written to a file or to stdin."""
    return prompt.encode("utf-8", "replace")
