"""Real servers, one a session."""

from support.databases import cell, mariadb, portal, postgres, sandboxes

__all__ = ["cell", "mariadb", "portal", "postgres", "sandboxes"]
