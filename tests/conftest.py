"""What all tests share. Its place makes `tests/` importable: helpers are `support.…`."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from support.docker_engine import engine
from support.images import image
from support.pytest_packages import packages

__all__ = ["engine", "image", "packages"]

# A slow machine is no defect: hypothesis' own time limits would be timing assertions.
settings.register_profile("keystone", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("keystone")
