"""What the tests of the built image share, and real servers that dumps are made by."""

from __future__ import annotations

from support.action_image import action_base, action_image, patient_image
from support.action_job import github_of_job, job
from support.databases import mariadb, portal, postgres, sandboxes
from support.engine_watch import watch
from support.event_steps import github_of_events

__all__ = [
    "action_base",
    "action_image",
    "github_of_events",
    "github_of_job",
    "job",
    "mariadb",
    "patient_image",
    "portal",
    "postgres",
    "sandboxes",
    "watch",
]
