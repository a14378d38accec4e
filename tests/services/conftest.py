"""Real servers, one a session."""

from support.containers import containers, shared_containers
from support.databases import cell, mariadb, portal, postgres, sandboxes
from support.docker_engine import engine

__all__ = ["cell", "containers", "engine", "mariadb", "portal", "postgres", "sandboxes", "shared_containers"]
