"""A session that is in memory: its actor, and who holds on to it from outside. One that nobody would miss can be put to rest."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any

from trouper.actors.reference import Ref
from trouper.actors.session import SessionActor
from trouper.services.desk import Desk
from trouper.session import Session

if TYPE_CHECKING:
    from trouper.ground import RuntimeGround


class Resident:
    """What a runtime keeps of an open session. Handles it knows only weakly, so that it can see whether anybody has one."""

    __slots__ = ("_desk", "_ground", "_handle", "_inside", "actor", "ref")

    def __init__(self, ground: RuntimeGround, actor: SessionActor, ref: Ref[Any, Any]) -> None:
        self.actor = actor
        self.ref = ref
        self._ground = ground
        #: What users are given: one for all of them.
        self._handle: weakref.ref[Session] | None = None
        #: What the session's services are given: apart, since the desk is kept here, and would keep the users' handle.
        self._inside: weakref.ref[Session] | None = None
        self._desk: Desk | None = None

    @property
    def handle(self) -> Session:
        """For whoever asks for the session."""
        found = _held(self._handle)
        if found is None:
            found = Session(self._ground, self)
            self._handle = weakref.ref(found)
        return found

    @property
    def desk(self) -> Desk:
        """Its services, for its tools and for its handle."""
        if self._desk is None:
            inside = _held(self._inside)
            if inside is None:
                inside = Session(self._ground, self)
                self._inside = weakref.ref(inside)
            self._desk = self._ground.desk_for(inside)
        return self._desk

    @property
    def is_missed(self) -> bool:
        """Whether anybody would notice if it were put to rest: it has work, or a listener, or somebody holds its handle or one of its services."""
        return _held(self._handle) is not None or not self.actor.could_rest or self._is_served()

    def _is_served(self) -> bool:
        if self._desk is not None:
            desk = weakref.ref(self._desk)
            # Ours does not count. What stays there without it is somebody else's.
            self._desk = None
            self._desk = desk()
        return _held(self._inside) is not None


def _held(handle: weakref.ref[Session] | None) -> Session | None:
    return None if handle is None else handle()
