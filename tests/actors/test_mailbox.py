"""The bounded queue by itself: order, bounds, waiting for room, its end. Cites I25 and design/SEMANTICS.md."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from trouper import _errors
from trouper.actors import ActorGone, Crashed, MailboxFull, Normal, Ref, Request, open_mailbox


async def test_messages_arrive_in_the_order_in_which_they_were_told(autojump_clock: MockClock) -> None:
    """SEMANTICS, order: first in, first out."""
    with open_mailbox("box", capacity=10) as (ref, inbox):
        for i in range(10):
            ref.tell(i)
        assert [await inbox.receive() for _ in range(10)] == list(range(10))


async def test_a_message_handed_to_a_waiting_actor_precedes_later_ones(autojump_clock: MockClock) -> None:
    """SEMANTICS, order: also when the first is on its way to a receiver that has not run yet."""
    got: list[object] = []
    with open_mailbox("box") as (ref, inbox):

        async def take_three() -> None:
            got.extend([await inbox.receive() for _ in range(3)])

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_three)
            await wait_all_tasks_blocked()
            for i in range(3):
                ref.tell(i)
    assert got == [0, 1, 2]


async def test_a_full_mailbox_refuses_and_accepts_again_when_there_is_room(autojump_clock: MockClock) -> None:
    """I25: bounded; overload is refused, never dropped silently."""
    with open_mailbox("box", capacity=2) as (ref, inbox):
        ref.tell("a")
        ref.tell("b")
        with pytest.raises(MailboxFull, match=r"'box' is full \(2 messages\).*send\(\)") as refused:
            ref.tell("c")
        assert (refused.value.name, refused.value.capacity) == ("box", 2)
        with pytest.raises(MailboxFull):
            await ref.ask("d")
        assert await inbox.receive() == "a"
        ref.tell("e")
        assert [await inbox.receive(), await inbox.receive()] == ["b", "e"]
        statistics = ref.statistics()
        assert (statistics.accepted, statistics.refused, statistics.queued) == (3, 2, 0)


async def test_send_waits_for_room_and_is_served_in_order(autojump_clock: MockClock) -> None:
    """I25: those who wait for room are served first come, first served; a tell does not overtake them."""
    with open_mailbox("box", capacity=1) as (ref, inbox):
        ref.tell(0)
        async with trio.open_nursery() as nursery:
            for i in (1, 2, 3):
                nursery.start_soon(ref.send, i)
                await wait_all_tasks_blocked()
            assert ref.statistics().senders_waiting == 3
            got = [await inbox.receive()]
            with pytest.raises(MailboxFull):
                ref.tell("overtakes")
            got += [await inbox.receive() for _ in range(3)]
        assert got == [0, 1, 2, 3]
        assert ref.statistics().accepted == 4


async def test_a_cancelled_send_has_sent_nothing(autojump_clock: MockClock) -> None:
    with open_mailbox("box", capacity=1) as (ref, inbox):
        ref.tell("first")
        with trio.move_on_after(1):
            await ref.send("never")
        ref_statistics = ref.statistics()
        assert (ref_statistics.senders_waiting, ref_statistics.accepted) == (0, 1)
        assert await inbox.receive() == "first"
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()


async def test_what_arrived_together_is_taken_without_waiting(autojump_clock: MockClock) -> None:
    with open_mailbox("box") as (ref, inbox):
        ref.tell(1)
        ref.tell(2)
        assert (inbox.receive_nowait(), inbox.receive_nowait()) == (1, 2)
        with pytest.raises(trio.WouldBlock):
            inbox.receive_nowait()


async def test_two_tasks_cannot_receive_from_one_inbox(autojump_clock: MockClock) -> None:
    with open_mailbox("box") as (ref, inbox):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(inbox.receive)
            await wait_all_tasks_blocked()
            with pytest.raises(_errors.UsageError, match="two tasks receive from the inbox of actor 'box'"):
                await inbox.receive()
            ref.tell("for the first")


async def test_the_end_refuses_everything_and_says_why(autojump_clock: MockClock) -> None:
    """SEMANTICS, errors: after the end every use of the reference is ActorGone, with the reason."""
    with open_mailbox("box", capacity=1) as (ref, _):
        ref.tell("unread")
    assert ref.exit == Normal()
    for use in (lambda: ref.send("x"), lambda: ref.ask("x")):
        with pytest.raises(ActorGone, match="'box' returned; ") as gone:
            await use()
        assert (gone.value.exit, gone.value.taken) == (Normal(), False)
    with pytest.raises(ActorGone):
        ref.tell("x")
    assert await ref.wait_exit() == Normal()


async def test_a_block_that_fails_is_the_reason_of_the_end(autojump_clock: MockClock) -> None:
    boom = ValueError("boom")
    with pytest.raises(ValueError, match="boom"):
        with open_mailbox("box") as (ref, _):
            raise boom
    assert ref.exit == Crashed(boom)


async def test_those_who_wait_for_room_are_told_of_the_end(autojump_clock: MockClock) -> None:
    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:

            async def send_late(i: int) -> None:
                with pytest.raises(ActorGone):
                    await ref.send(i)

            with open_mailbox("box", capacity=1) as (ref, _):
                ref.tell(0)
                nursery.start_soon(send_late, 1)
                nursery.start_soon(send_late, 2)
                await wait_all_tasks_blocked()


async def test_a_cancelled_receive_loses_no_message(autojump_clock: MockClock) -> None:
    with open_mailbox("box") as (ref, inbox):
        with trio.move_on_after(1):
            await inbox.receive()
        ref.tell("kept")
        with trio.CancelScope() as scope:
            scope.cancel()
            await inbox.receive()
        assert scope.cancelled_caught
        assert await inbox.receive() == "kept"


async def test_messages_are_compared_by_identity_when_a_question_is_withdrawn(autojump_clock: MockClock) -> None:
    """A message whose own __eq__ raises does no harm in the queue."""

    class Prickly:
        def __eq__(self, other: object) -> bool:
            raise AssertionError("nobody may compare messages")

        __hash__ = None  # type: ignore[assignment]

    with open_mailbox("box", capacity=3) as (ref, inbox):
        ref.tell(Prickly())
        with trio.move_on_after(1):
            await ref.ask("question")
        ref.tell("after")
        assert isinstance(await inbox.receive(), Prickly)
        assert await inbox.receive() == "after"


async def test_a_withdrawn_question_makes_room_for_one_who_waits(autojump_clock: MockClock) -> None:
    with open_mailbox("box", capacity=1) as (ref, inbox):
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as asking:
                nursery.start_soon(_send_then_cancel, ref, asking)
                await ref.ask("withdrawn")
            assert asking.cancelled_caught
            assert await inbox.receive() == "sent"


async def _send_then_cancel(ref: Ref[Any, Any], asking: trio.CancelScope) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ref.send, "sent")
        await wait_all_tasks_blocked()
        asking.cancel()


async def test_a_question_withdrawn_on_its_way_to_a_waiting_actor_is_not_seen(autojump_clock: MockClock) -> None:
    """SEMANTICS, ask: the actor had been woken for it and had not run yet; it goes on waiting."""
    with open_mailbox("box") as (ref, inbox):
        got: list[object] = []

        async def take_one() -> None:
            got.append(await inbox.receive())

        async with trio.open_nursery() as nursery:
            nursery.start_soon(take_one)
            await wait_all_tasks_blocked()
            with trio.CancelScope() as asking:
                asking.cancel()
                await ref.ask("withdrawn")
            await wait_all_tasks_blocked()
            assert got == []
            ref.tell("seen")
        assert got == ["seen"]
        assert ref.statistics().accepted == 1


def test_a_mailbox_without_room_is_refused() -> None:
    with pytest.raises(_errors.UsageError, match="'box' cannot hold 0 messages"):
        with open_mailbox("box", capacity=0):
            pass


async def test_references_to_one_actor_are_equal(autojump_clock: MockClock) -> None:
    with open_mailbox("a") as (ref, inbox), open_mailbox("a") as (other, _):
        assert ref == inbox.ref
        assert hash(ref) == hash(inbox.ref)
        assert ref != other
        assert repr(ref) == "<Ref 'a': accepts messages>"


async def test_a_question_shows_its_payload(autojump_clock: MockClock) -> None:
    with open_mailbox("a") as (ref, inbox):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(ref.ask, "what?")
            request = await inbox.receive()
            assert isinstance(request, Request)
            assert repr(request) == "Request('what?')"
            assert request.reply("that")
