"""The service kind `postgres`: an image on the container engine, or the embedded server."""

from __future__ import annotations

import secrets

from keystone_action.errors import UsageError
from keystone_action.services.base import RunningService, ServiceKind, Surroundings
from keystone_action.spec.models.services import ContainerService, PostgresService


class Postgres(ServiceKind[PostgresService | ContainerService]):
    """The embedded server serves what names no image, and stands in for an image where no engine is."""

    @classmethod
    def build(cls, definition: PostgresService | ContainerService, surroundings: Surroundings) -> RunningService:
        """See ServiceKind."""
        if definition.image is not None and surroundings.containers is not None:
            from keystone_action.services.postgres.container import PostgresContainer

            return PostgresContainer(definition, surroundings.containers, watches_writes=surroundings.watches_writes)
        from keystone_action.services.postgres.embedded import EmbeddedPostgres

        provider = surroundings.provider
        directory = provider.root / f"postgres-{secrets.token_hex(6)}"
        return EmbeddedPostgres(
            definition, directory, provider, surroundings.mocks.thread, watches_writes=surroundings.watches_writes
        )

    @classmethod
    def refuse_unsupported(cls, definition: PostgresService | ContainerService, *, engine: bool) -> None:
        """See ServiceKind: fields that mean something to a container only."""
        if definition.image is not None and engine:
            return
        for field, is_given in (
            ("command", definition.command is not None),
            ("isolation: container", definition.isolation == "container"),
        ):
            if is_given:
                raise UsageError(
                    f"service {definition.name}: {field} needs a container engine; the embedded PostgreSQL, which"
                    " stands in for an image where there is none, has nothing like it",
                    help=f"Start Docker (or set DOCKER_HOST), or leave {field} out; `keystone doctor` says what there"
                    " is.",
                )
