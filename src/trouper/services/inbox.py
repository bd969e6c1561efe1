"""Notifications for a host that takes them itself (B16): while somebody iterates, nothing is delivered to the model.

    async for notification in session.notifications():
        show(notification)
        await session.acknowledge(notification.id)

Each one is recorded as delivered before it is handed out. What was taken and is neither acknowledged nor requeued when the iterating ends goes back into the
queue: at least once until acknowledged (I30).
"""

from __future__ import annotations

import weakref
from types import TracebackType
from typing import TYPE_CHECKING

import trio

from trouper._errors import UsageError
from trouper.actors.errors import ActorGone
from trouper.core.ids import NotificationId
from trouper.core.notification import (
    DeliverNotifications,
    ExpireNotifications,
    Notification,
    NotificationState,
    RequeueNotifications,
)

if TYPE_CHECKING:
    from trouper.actors.session import SessionActor
    from trouper.session import Session


class _Hold:
    """Keeps the pump off for one iteration; apart from the inbox, so that an inbox that is just dropped lets go too."""

    def __init__(self, actor: SessionActor) -> None:
        #: With the delivery that it was: what was requeued may be somebody else's by now.
        self.taken: dict[NotificationId, int] = {}
        self._actor = actor
        self._held = True
        actor.notification_holds.hold()

    def release(self) -> None:
        if not self._held:
            return
        self._held = False
        actor = self._actor
        actor.notification_holds.release()
        pending = actor.state.notifications.pending
        out = tuple(
            id
            for id, attempt in self.taken.items()
            if id in pending and (pending[id].state, pending[id].attempts) == (NotificationState.DELIVERED, attempt)
        )
        if out:
            command = RequeueNotifications(out, "nobody acknowledged it", actor.now(), actor.notification_limits())
            if not actor.post(command):
                actor.start(actor.deliver, command)  # When there is room.


class Inbox:
    """Iterate it with `async for`; or open it with `with`, to be sure when it ends."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._hold: _Hold | None = None

    def __enter__(self) -> Inbox:
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __aiter__(self) -> Inbox:
        self._begin()
        return self

    async def __anext__(self) -> Notification:
        hold = self._begin()
        session = self._session
        while session._ref.exit is None and not session._actor.watches.over:
            queued = session._state.notifications.queued
            if queued:
                first = queued[0]
                now, limits = session._now(), session._actor.notification_limits()
                try:
                    if session._state.notifications.lapsed(now, limits):
                        # Given up, as they would be if the model were to be told of them (B14).
                        await session._ask(ExpireNotifications(now, limits))
                        continue
                    # Shielded: what was delivered to nobody would wait for somebody's acknowledgement for ever.
                    taken = await session._ask(DeliverNotifications(now, (first.id,), limits), shielded=True)
                except UsageError as refusal:
                    if isinstance(refusal.__cause__, ActorGone):
                        break  # It is stopping, and takes nothing more, however long it still is until it has ended.
                    continue  # Somebody else was faster.
                notification: Notification | None = taken.state.notifications.get(first.id)
                assert notification is not None
                hold.taken[first.id] = notification.attempts
                return notification
            await session._actor.watches.wait_notified()
        raise StopAsyncIteration

    def close(self) -> None:
        """Let the session deliver by itself again."""
        if self._hold is not None:
            self._hold.release()
            self._hold = None

    def _begin(self) -> _Hold:
        self._session._ground.home.check()
        if self._hold is None:
            hold = self._hold = _Hold(self._session._actor)
            token = trio.lowlevel.current_trio_token()
            # Dropped without `close`: whichever thread finds out, the release happens in trio's.
            weakref.finalize(self, _release_soon, token, hold).atexit = False
        return self._hold


def _release_soon(token: trio.lowlevel.TrioToken, hold: _Hold) -> None:
    try:
        token.run_sync_soon(hold.release)
    except trio.RunFinishedError:
        return
