"""Real databases, one server a session."""

from support.containers import session_containers
from support.database_worlds import world
from support.databases import cell, mariadb, portal, postgres, sandboxes

__all__ = ["cell", "mariadb", "portal", "postgres", "sandboxes", "session_containers", "world"]
