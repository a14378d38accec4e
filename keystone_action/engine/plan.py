"""What one container is made of, and how the engine is told."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from keystone_action.command import DEFAULT_PIDS, Limits

if TYPE_CHECKING:
    from docker.types import HostConfig

    from keystone_action.engine.client import EngineClient

_HASTY_DNS = ("timeout:1", "attempts:1")
"""Where other name servers than the machine's are named, they are to fail; that takes ten seconds otherwise."""
HOST_NAME = "sandbox"
_ROOT_LACKS = ["AUDIT_WRITE", "MKNOD", "NET_BIND_SERVICE", "NET_RAW", "SYS_CHROOT"]
"""What root's containers do without, of the little that an engine leaves it: installing packages needs none of it."""

_SERVICES_LACK = ["NET_RAW", "MKNOD", "AUDIT_WRITE"]
"""Capabilities of the engine's default that no service needs. With NET_RAW a container that several cells share could
speak in the name of its neighbours' addresses."""
_SERVICE_PIDS = 4096


@dataclass(frozen=True, slots=True)
class Mount:
    """A directory of the engine's machine, under a path inside."""

    source: str
    target: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class ContainerPlan:
    """One container. user: its numeric user (and group), 0 = root. init: a process that reaps, as number 1. networks:
    further ones of the engine, which it is in besides `network` when it starts. dns: addresses of name servers in place
    of the machine's; in a network of its own, an engine still answers for names of containers itself. volumes: paths
    that are no part of its own layer, and go with it."""

    image: str
    argv: tuple[str, ...]
    user: int
    directory: str
    labels: Mapping[str, str]
    environment: Mapping[str, str] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)
    mounts: tuple[Mount, ...] = ()
    volumes: tuple[str, ...] = ()
    network: str = "none"
    networks: tuple[str, ...] = ()
    extra_hosts: Mapping[str, str] = field(default_factory=dict)
    dns: tuple[str, ...] = ()
    init: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePlan:
    """One container of a service, which its image's own user runs. name: the container's. alias: its name in its
    network. command: text as a shell would split it, a list exactly, None = the image's own. log_bytes: how much the
    engine keeps of what it prints, in each of two files."""

    name: str
    image: str
    command: str | Sequence[str] | None
    environment: Mapping[str, str]
    labels: Mapping[str, str]
    network: str
    alias: str
    extra_hosts: Mapping[str, str]
    dns: tuple[str, ...]
    log_bytes: int


def create(client: EngineClient, plan: ContainerPlan) -> str:
    """Have the engine make the container; returns its id. Raises what the client raises."""
    return client.create_container(
        plan.image,
        list(plan.argv[1:]),
        # An image's own entrypoint (`python`, a script) would get our program as its argument.
        entrypoint=[plan.argv[0]],
        user=f"{plan.user}:{plan.user}",
        environment=plan.environment,
        directory=plan.directory,
        hostname=HOST_NAME if plan.network != "host" else None,
        labels=plan.labels,
        own_health_check=False,
        host=_host_config(client, plan),
        # The proxies of our own client configuration may carry passwords.
        proxies=False,
    )


def connect(client: EngineClient, plan: ContainerPlan, container: str) -> None:
    """Put a container that was made, not started, into its further networks. Raises what the client raises."""
    for network in plan.networks:
        client.join(network, container)


def create_service(client: EngineClient, plan: ServicePlan) -> str:
    """Have the engine make the container of a service; returns its id. Raises what the client raises."""
    from docker.types import HostConfig, LogConfig

    command = plan.command if plan.command is None or isinstance(plan.command, str) else list(plan.command)
    host = HostConfig(
        client.api_version,
        network_mode=plan.network,
        extra_hosts=dict(plan.extra_hosts) or None,
        dns=list(plan.dns) or None,
        log_config=LogConfig(type="json-file", config={"max-size": str(plan.log_bytes), "max-file": "2"}),
        security_opt=["no-new-privileges:true"],
        cap_drop=_SERVICES_LACK,
        pids_limit=_SERVICE_PIDS,
        # It may be in several networks, and does not forward between them.
        sysctls={"net.ipv4.ip_forward": "0"},
    )
    return client.create_container(
        plan.image,
        command,
        name=plan.name,
        environment=plan.environment,
        labels=plan.labels,
        host=host,
        aliases={plan.network: [plan.alias]},
        proxies=True,
    )


def _host_config(client: EngineClient, plan: ContainerPlan) -> HostConfig:
    from docker.types import HostConfig, LogConfig, Ulimit
    from docker.types import Mount as EngineMount

    limits = plan.limits
    # The kernel ends a single file at the limit, however fast it grows between two looks.
    ulimits = [Ulimit(name="core", soft=0, hard=0)]
    if limits.disk is not None:
        ulimits.append(Ulimit(name="fsize", soft=limits.disk, hard=limits.disk))
    mounts = [EngineMount(m.target, m.source, type="bind", read_only=m.read_only) for m in plan.mounts]
    mounts += [EngineMount(path, None, type="volume", labels=dict(plan.labels)) for path in plan.volumes]
    return HostConfig(
        client.api_version,
        mounts=mounts,
        network_mode=plan.network,
        extra_hosts=dict(plan.extra_hosts) or None,
        dns=list(plan.dns) or None,
        dns_opt=list(_HASTY_DNS) if plan.dns else None,
        init=plan.init,
        privileged=False,
        cap_drop=["ALL"] if plan.user else _ROOT_LACKS,
        security_opt=["no-new-privileges"],
        pids_limit=limits.pids or DEFAULT_PIDS,
        nano_cpus=max(math.ceil(limits.cpu * 1e9), 1) if limits.cpu is not None else None,
        ulimits=ulimits,
        # Output goes to us alone: an engine that keeps it too would fill its disk.
        log_config=LogConfig(type="none", config={}),
        auto_remove=False,
        mem_limit=limits.memory,
        # Equal numbers = no swap beyond it.
        memswap_limit=limits.memory,
    )
