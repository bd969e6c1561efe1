"""A decision under way: the events so far, and the state after them."""

from __future__ import annotations

from trouper.core.session import Event, State, evolve


class Decision:
    __slots__ = ("events", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.events: list[Event] = []

    def emit(self, event: Event) -> None:
        self.state = evolve(self.state, event)
        self.events.append(event)
