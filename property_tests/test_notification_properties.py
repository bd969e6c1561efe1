"""I30, I31: at least once until acknowledged, never after; one batch per idle window. With interrupts, crashes and hosts that take their own."""

from __future__ import annotations

from functools import reduce

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from trouper._errors import CommandRejected
from trouper.core import notification as n
from trouper.core.ids import NotificationId

UNLIMITED = n.NotificationLimits(attempts=0, queue=30, batch=5)


class Pump(RuleBasedStateMachine):
    """A session that is idle or carries a batch in its turn; and a process that may die at any point."""

    def __init__(self) -> None:
        super().__init__()
        self.state = n.Notifications()
        self.records: list[tuple[n.NotificationEvent, ...]] = []
        self.carried: tuple[NotificationId, ...] = ()
        self.made = 0
        self.turns = 0
        self.seen: dict[NotificationId, int] = {}
        self.acknowledged: set[NotificationId] = set()
        self.clock = 0.0

    def step(self, command: n.NotificationCommand) -> tuple[n.NotificationEvent, ...]:
        events = n.decide(self.state, command)
        assert n.decide(self.state, command) == events
        self.records.append(events)
        self.state = reduce(n.evolve, events, self.state)
        for event in events:
            if isinstance(event, n.NotificationsDelivered):
                for key in event.ids:
                    assert key not in self.acknowledged  # I30: never after.
                    self.seen[key] = self.seen.get(key, 0) + 1
            if isinstance(event, n.NotificationsAcknowledged):
                self.acknowledged |= set(event.ids)
        return events

    @rule(
        kind=st.sampled_from(["generic", "task_failed", "schedule"]),
        key=st.sampled_from([None, None, "a", "b"]),
        wake=st.booleans(),
    )
    def queue(self, kind: n.Kind, key: str | None, wake: bool) -> None:
        self.clock += 1
        self.made += 1
        command = n.QueueNotification(
            NotificationId(f"ntf_{self.made}"), kind, "t", "b", self.clock, dedupe_key=key, wake=wake, limits=UNLIMITED
        )
        try:
            self.step(command)
        except CommandRejected:
            assert kind == "generic" and len(self.state.pending) >= UNLIMITED.queue  # I25

    @precondition(lambda self: not self.carried)
    @rule()
    def fall_idle(self) -> None:
        wanted = n.outstanding(self.state, UNLIMITED)
        if not wanted:
            return
        ((_, work),) = wanted.items()
        (event,) = self.step(n.DeliverNotifications(self.clock, limits=UNLIMITED))
        assert isinstance(event, n.NotificationsDelivered)
        assert (event.ids, event.delivery) == (work.ids, work.delivery)
        assert list(event.ids) == sorted(
            event.ids, key=lambda key: int(key[4:])
        )  # Oldest first, requeued ones included.
        self.turns += 1
        self.carried = event.ids

    @precondition(lambda self: self.carried)
    @rule()
    def complete_turn(self) -> None:
        self.step(n.AcknowledgeNotifications(self.carried, self.clock))
        self.carried = ()

    @precondition(lambda self: self.carried)
    @rule()
    def interrupt(self) -> None:
        self.step(n.RequeueNotifications(self.carried, "interrupted", self.clock, UNLIMITED))
        self.carried = ()

    @rule()
    def crash(self) -> None:
        self.state = reduce(n.evolve, (event for record in self.records for event in record), n.Notifications())
        self.carried = ()
        self.step(n.RecoverNotifications(self.clock, UNLIMITED))
        assert n.decide(self.state, n.RecoverNotifications(self.clock, UNLIMITED)) == ()  # J12
        assert not self.state.delivered

    @precondition(lambda self: self.state.queued)
    @rule(data=st.data())
    def host_takes_one(self, data: st.DataObject) -> None:
        """B16."""
        chosen = data.draw(st.sampled_from(self.state.queued)).id
        self.step(n.DeliverNotifications(self.clock, ids=(chosen,)))
        if data.draw(st.booleans()):
            self.step(n.AcknowledgeNotifications((chosen,), self.clock))
        else:
            self.step(n.RequeueNotifications((chosen,), "host would not", self.clock, UNLIMITED))

    @invariant()
    def nothing_is_lost(self) -> None:
        queued = {
            event.notification.id
            for record in self.records
            for event in record
            if isinstance(event, n.NotificationQueued)
        }
        assert queued == set(self.state.pending) | self.acknowledged
        assert not set(self.state.pending) & self.acknowledged
        assert all(self.seen.get(key, 0) >= 1 for key in self.acknowledged)
        keys = [(item.kind, item.dedupe_key) for item in self.state.pending.values() if item.dedupe_key]
        assert len(keys) == len(set(keys))

    @invariant()
    def whatever_wants_to_wake_is_outstanding(self) -> None:
        """No lost wake-up: as long as one is queued that wakes, a batch is owed (B15)."""
        assert bool(n.outstanding(self.state, UNLIMITED)) == any(item.wake for item in self.state.queued)

    def teardown(self) -> None:
        """With faults off, everything that wakes is delivered and settled; n of them take no more turns than batches (I26, I31)."""
        if self.carried:
            self.complete_turn()
        before, left = self.turns, len(self.state.queued)
        while n.outstanding(self.state, UNLIMITED):
            self.fall_idle()
            self.complete_turn()
        assert not any(item.wake for item in self.state.pending.values())
        assert self.turns - before <= -(-left // UNLIMITED.batch)
        self.nothing_is_lost()


TestPump = Pump.TestCase
TestPump.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
