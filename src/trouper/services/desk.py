"""The services of one session, each made when it is first asked for: most tools ask for none (T7)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from trouper.services.memory import MemoryKeeper
from trouper.services.places import Places
from trouper.services.questions import Questions
from trouper.services.runs import Calendar, Notifying, Spawning, TaskBook
from trouper.stores.key_value import KeyValueStore
from trouper.stores.secrets import LearnedSecrets
from trouper.tools.guards.rooted import RootedFiles
from trouper.tools.registry import Registry

if TYPE_CHECKING:
    from trouper.session import Session

T = TypeVar("T")
#: Always there; the others need a place.
_ALWAYS = ("memory", "notifications", "background", "tasks", "schedules", "asker", "registry", "clock")
_PLACED = ("files", "kv", "secrets")


def provided(places: Places) -> frozenset[str]:
    """The needs of tools that a runtime with these places meets: known before any session is there."""
    return frozenset((*_ALWAYS, *(_PLACED if places.is_there else ())))


class _once(Generic[T]):
    """What a method returns, called when it is first asked for. Tools may ask in several threads: all of them get the same one."""

    def __init__(self, make: Callable[[Any], T]) -> None:
        self._make = make

    def __get__(self, desk: Any, _: type | None = None) -> T:
        made: T = desk.__dict__.setdefault(self._make.__name__, self._make(desk))
        return made


class Desk:
    """`Offered` by a runtime. One for each open session: for its tools, and for its handle."""

    def __init__(self, session: Session, places: Places, memory: MemoryKeeper, clock: Callable[[], datetime]) -> None:
        self.session = session
        self.memory = memory
        self.clock = clock
        self._places = places

    @property
    def registry(self) -> Registry:
        return self.session._actor.outfit.registry

    @property
    def subagents(self) -> None:
        return None

    @_once
    def files(self) -> RootedFiles | None:
        return self._places.files_of(self.session.id)

    @_once
    def kv(self) -> KeyValueStore | None:
        return self._places.key_values_of(self.session.id)

    @_once
    def secrets(self) -> LearnedSecrets | None:
        return self._places.secrets_of(self.session.id)

    @_once
    def notifications(self) -> Notifying:
        return Notifying(self.session)

    @_once
    def background(self) -> Spawning:
        return Spawning(self.session, self.schedules)

    @_once
    def tasks(self) -> TaskBook:
        return TaskBook(self.session)

    @_once
    def schedules(self) -> Calendar:
        return Calendar(self.session)

    @property
    def asked(self) -> Questions | None:
        """The same as `asker`, if anybody could have asked anything so far."""
        found: Questions | None = self.__dict__.get("asker")
        return found

    @_once
    def asker(self) -> Questions:
        return Questions(self.session, self.secrets)
