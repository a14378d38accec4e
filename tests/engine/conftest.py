"""Services on the real engine, whose calls are looked at here."""

from support.containers import containers
from support.databases import portal

__all__ = ["containers", "portal"]
