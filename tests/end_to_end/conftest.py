"""What the tests of the built image share."""

from __future__ import annotations

from support.action_image import action_base, action_image
from support.action_job import github_of_job, job
from support.engine_watch import watch

__all__ = ["action_base", "action_image", "github_of_job", "job", "watch"]
