"""Containers, for the gateway in a cell's network."""

from support.containers import containers
from support.databases import portal

__all__ = ["containers", "portal"]
