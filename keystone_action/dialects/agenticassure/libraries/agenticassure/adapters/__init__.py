"""Adapters: what is between a suite and an agent."""

from __future__ import annotations

from .base import AgentAdapter

__all__ = ["AgentAdapter"]
