"""The commands that a session's actor takes out of its mailbox at once: they are decided together, and cost the disk one sync."""

from __future__ import annotations

from typing import Any, TypeAlias

from attrs import define

from trouper.actors.reference import Inbox
from trouper.actors.request import Reply, Request
from trouper.core.commands import Command

#: Without a command, somebody only asks for the state; without a reply, nobody waits for one.
Batch: TypeAlias = list[tuple[Command | None, Reply[Any] | None]]


@define(eq=False)
class Failure:
    """What somebody came upon who decided in the actor's place: the actor crashes of it, as if it had decided itself."""

    error: Exception


def gather(first: Any, inbox: Inbox[Any, Any]) -> Batch:
    """The first message, and what waits behind it."""
    batch = [_opened(first)]
    while inbox.has_more:
        batch.append(_opened(inbox.receive_nowait()))
    return batch


def _opened(message: Any) -> tuple[Command | None, Reply[Any] | None]:
    if type(message) is Request:
        if type(message.payload) is Failure:
            raise message.payload.error
        return message.payload, message.defer()
    return message, None
