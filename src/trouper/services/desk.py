"""The services of one session, put together (T7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING

import attrs

from trouper.services.memory import MemoryKeeper
from trouper.services.places import Places
from trouper.services.questions import Questions
from trouper.services.runs import Calendar, Notifying, Spawning, TaskBook
from trouper.tools.context import Services
from trouper.tools.registry import Registry

if TYPE_CHECKING:
    from trouper.session import Session

#: Always there; the others need a place.
_ALWAYS = ("memory", "notifications", "background", "tasks", "schedules", "asker", "registry", "clock")
_PLACED = ("files", "kv", "secrets")


def provided(places: Places) -> frozenset[str]:
    """The needs of tools that a runtime with these places meets: known before any session is there."""
    return frozenset((*_ALWAYS, *(_PLACED if places.is_there else ())))


class Desk:
    """Made once per session handle; cheap to ask."""

    def __init__(self, session: Session, places: Places, memory: MemoryKeeper, clock: Callable[[], datetime]) -> None:
        self.session = session
        secrets = places.secrets_of(session.id)
        self.calendar = Calendar(session)
        self.tasks = TaskBook(session)
        self.spawning = Spawning(session, self.calendar)
        self.questions = Questions(session, secrets)
        self._services = Services(
            files=places.files_of(session.id),
            memory=memory,
            kv=places.key_values_of(session.id),
            secrets=secrets,
            notifications=Notifying(session),
            background=self.spawning,
            tasks=self.tasks,
            schedules=self.calendar,
            asker=self.questions,
            clock=clock,
        )

    def services(self, registry: Registry) -> Services:
        if self._services.registry is not registry:
            self._services = attrs.evolve(self._services, registry=registry)
        return self._services
