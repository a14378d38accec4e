"""Real servers and containers, one a session."""

from support.containers import containers, shared_containers
from support.databases import cell, mariadb, portal, postgres, sandboxes
from support.docker_engine import engine
from support.images import image

__all__ = ["cell", "containers", "engine", "image", "mariadb", "portal", "postgres", "sandboxes", "shared_containers"]
