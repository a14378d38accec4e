"""Real servers, one a session."""

from support.containers import containers, shared_containers
from support.databases import cell, mariadb, portal, postgres, sandboxes, watched_postgres
from support.docker_engine import engine
from support.images import image

__all__ = [
    "cell",
    "containers",
    "engine",
    "image",
    "mariadb",
    "portal",
    "postgres",
    "sandboxes",
    "shared_containers",
    "watched_postgres",
]
