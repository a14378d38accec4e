"""A real server and the sandboxes that reach it."""

from support.databases import mariadb, portal, postgres, sandboxes
from support.docker_engine import engine
from support.images import image

__all__ = ["engine", "image", "mariadb", "portal", "postgres", "sandboxes"]
