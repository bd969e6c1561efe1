"""A session's model calls: the request from its state, and what the answer makes of it."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Sequence
from typing import Any

from trouper import checks
from trouper.actors.draft import Draft
from trouper.actors.ground import Outfit, WorkHost
from trouper.actors.model_call import Connecting, Failed, ModelCall
from trouper.actors.recording import is_rehearsed, rehearse
from trouper.actors.running import Running
from trouper.actors.structured import mismatch
from trouper.core import compaction
from trouper.core.calls import Preparation
from trouper.core.commands import (
    Command,
    DeliverFault,
    DeliverReply,
    DeliverSummary,
    EndTurn,
    Interrupt,
    NoteBudget,
)
from trouper.core.events import CompactionStarted
from trouper.core.history import repaired
from trouper.core.ids import call_id
from trouper.core.messages import NO_USAGE, Fault, Json, Message, Text, Usage
from trouper.core.tokens import estimate_json, estimate_text
from trouper.core.values import changed
from trouper.models.protocol import ModelRequest, name_of

#: Part of a reply that somebody interrupts.
_HALF_SAID = Message("assistant", (Text("So far"),))

logger = logging.getLogger("trouper.session")


class Asking:
    """Steps and summaries. One model call at a time; `said` tells what it has said so far."""

    __slots__ = ("_about", "_call", "_host", "_summary")

    def __init__(self, host: WorkHost) -> None:
        self._host = host
        #: The model call of the turn's last step, and which one that is.
        self._call: ModelCall | None = None
        self._about = (0, 0)
        #: The model call of the last summary, and the compaction that it is for.
        self._summary: tuple[CompactionStarted, ModelCall] | None = None

    def said(self, turn: int, step_number: int) -> tuple[Message | None, Usage]:
        """What can be kept of a step's reply that the session has not taken in, and what it has cost: it may be complete, and on its way."""
        if self._call is None or self._about != (turn, step_number):
            return None, NO_USAGE
        return self._call.draft.partial(), self._call.usage

    def spent_on(self, compaction: CompactionStarted) -> Usage:
        """What the summary for this compaction has cost so far, which the session has not taken in."""
        if self._summary is None or self._summary[0] is not compaction:
            return NO_USAGE
        return self._summary[1].usage

    def forget(self) -> None:
        """The reply is part of the state, or the turn is over: nobody will ask what was said."""
        self._call = None

    async def call_model(self, turn: int, step_number: int, running: Running) -> Command | None:
        spending, held = self._host.ground.spending, None
        if spending.is_capped:
            if (held := await self._hold(running, may_call=bool(self._host.specs))) is None:
                return None
            spent = spending.begin_step(held)
            self._warn()
            if spent is not None:
                spending.release(held)
                return EndTurn(turn, "budget", self._host.now(), spent, unasked=True)
        outfit = self._host.turn_outfit
        connecting = Connecting(outfit.limits.deadlines)
        request = self._request(outfit, turn, step_number, connecting)
        host = self._host
        jitter, redact = host.ground.environment.random, host.redact_text
        call = ModelCall(outfit.model, request, connecting, outfit.limits, jitter, redact, host, bool(outfit.hooks))

        def finish(finished: Draft | Failed) -> Awaitable[Command]:
            if isinstance(finished, Draft):
                if held is not None:
                    used = finished.usage + call.retried
                    spending.replied(held, used.total or 0, len(finished.open_calls))
                return self._reply(outfit, turn, step_number, finished, call.retried)
            return self._failure(turn, step_number, call, finished.fault)

        if not is_rehearsed(Interrupt):
            # Whoever interrupts for the first time would wait ten times as long as for the second.
            rehearse(self._host.state, changed(Interrupt(self._host.now()), partial=_HALF_SAID, usage=NO_USAGE))
        self._call, self._about = call, (turn, step_number)
        notes = self._host.ground.notes
        notes.add(call)
        command: Command | None = None
        try:
            command = await call.run(running, finish)
        finally:
            notes.discard(call)
            if command is None and held is not None:
                spending.release(held)  # Else when it is recorded: until then nobody knows what it has cost.
        return command

    async def _hold(self, running: Running, *, may_call: bool) -> Any:
        """What the next request is expected to cost, as soon as it fits in beside those of other sessions; `None` if it was stopped before."""
        spending, held = self._host.ground.spending, None
        with running.until():
            held = await spending.hold(self._host.session, self._expected_tokens(), may_call=may_call)
        if running.stopped and held is not None:
            spending.release(held)
            return None
        return held

    def _warn(self) -> None:
        # Before the end, also where one step has spent what was left.
        for what, used, cap in self._host.ground.spending.warnings():
            self._host.tell(NoteBudget(what, used, cap))

    def _expected_tokens(self) -> int:
        """What the next request will cost to send. What the provider has reported once includes all that goes along with the messages."""
        state = self._host.state
        if state.reported is not None:
            return state.tokens
        told = state.system if state.turn is None else state.turn.system
        specs = self._host.specs
        along = sum(estimate_text(each.description) + estimate_json(dict(each.parameters)) for each in specs)
        return state.tokens + along + estimate_text(told or "")

    async def _reply(self, outfit: Outfit, turn: int, step_number: int, draft: Draft, retried: Usage) -> DeliverReply:
        arguments: list[Json] = []
        preparations: list[Preparation] = []
        done = draft.done
        assert done is not None
        if draft.usage.total is None and self._host.state.spent.steps == 1:
            self._tell_unreported(outfit)
        calls = draft.open_calls
        if calls and outfit.hooks:
            await self._host.hooks_begun()
        last = calls[-1] if calls and done.stop_reason == "max_tokens" else None
        for index, call in enumerate(calls):
            # Only hooks want to know it; what they see before a call is of the same name afterwards.
            id = call_id(turn, step_number, index) if outfit.hooks else ""
            shown, preparation = await outfit.preparer.prepare(call, self._host, id, may_break_off=call is last)
            arguments.append(shown)
            preparations.append(preparation)
        message = draft.message(turn, step_number, arguments)
        schema = self._host.state.turn.options.schema if self._host.state.turn is not None else None
        # By position, here and where an outcome is told: by their names, so many fields take twice the time, in every step.
        return DeliverReply(
            turn,
            step_number,
            message,
            done.stop_reason,
            self._host.now(),
            draft.usage,
            done.detail,
            tuple(preparations),
            tuple(draft.cuts),
            mismatch(message.text, schema, outfit.shape, self._host.redact_text)
            if schema is not None and not preparations
            else None,
            outfit.limits.approval_s,
            retried,
        )

    def _tell_unreported(self, outfit: Outfit) -> None:
        """A budget that nothing is counted against holds nobody back, and that should not come as a surprise (L24, L25). Told at a session's first step."""
        if outfit.budget.tokens is not None or self._host.ground.spending.caps_tokens:
            logger.warning(
                "session %s has a budget of tokens, and its model %s reports none: nothing counts against it; set Budget.steps as well",
                self._host.session,
                name_of(outfit.model),
            )

    async def _failure(self, turn: int, step_number: int, call: ModelCall, fault: Fault) -> DeliverFault:
        draft = call.draft
        partial = draft.partial() if draft.progressed else None
        return DeliverFault(
            turn, step_number, self._brief(fault), self._host.now(), partial, call.usage, draft.progressed
        )

    def _brief(self, fault: Fault) -> Fault:
        """A client may put a whole page into its error."""
        told = checks.brief(fault.message, self._host.redact_text)
        return fault if told is fault.message else changed(fault, message=told)

    def _request(self, outfit: Outfit, turn: int, step_number: int, connecting: Connecting) -> ModelRequest:
        history = self._host.state.history
        messages: Sequence[Message] = history.messages
        if not history.ready:
            logger.warning("session %s: the history had to be repaired before a request", self._host.session)
            messages = repaired(messages)
        running = self._host.state.turn
        return ModelRequest(
            messages=messages,
            system=running.system if running is not None else self._host.state.system,
            tools=self._host.specs,
            parallel_tool_calls=outfit.limits.parallel_tool_calls,
            response_schema=running.options.schema if running is not None else None,
            session=self._host.session,
            idle_s=outfit.limits.deadlines.idle_s,
            turn=turn,
            step=step_number,
            connected=connecting,
        )

    async def summarise(self, split: int, running: Running) -> Command | None:
        """A summary by the model; whatever goes wrong, the core falls back to something that needs none (L31)."""
        turn = self._host.state.turn
        spending, held, spent = self._host.ground.spending, None, None
        if spending.is_capped:
            if (held := await self._hold(running, may_call=False)) is None:
                return None
            if turn is not None:  # Each warning is given once, and between turns nobody would hear it.
                self._warn()
            if (spent := spending.spent_out()) is not None:
                spending.release(held)
        if spent is not None:
            now = self._host.now()
            return (
                DeliverSummary(split, now, fault=spent) if turn is None else EndTurn(turn.number, "budget", now, spent)
            )
        outfit = self._host.turn_outfit if turn is not None else self._host.outfit
        connecting = Connecting(outfit.limits.deadlines)
        ask = Message("user", (Text(compaction.HAND_OVER_PROMPT),), "note")
        request = ModelRequest(
            messages=(*repaired(self._host.state.history.messages[:split]), ask),
            system=turn.system if turn is not None else self._host.state.system,
            tools=self._host.specs or outfit.specs(),
            session=self._host.session,
            idle_s=outfit.limits.deadlines.idle_s,
            turn=self._host.state.turns,
            purpose="compaction",
            connected=connecting,
        )

        jitter, redact = self._host.ground.environment.random, self._host.redact_text
        call = ModelCall(outfit.model, request, connecting, outfit.limits, jitter, redact)
        if self._host.state.compacting is not None:
            self._summary = (self._host.state.compacting, call)

        async def finish(finished: Draft | Failed) -> Command:
            if isinstance(finished, Failed):
                fault = self._brief(finished.fault)
                return DeliverSummary(split, self._host.now(), usage=call.usage, fault=fault)
            if finished.open_calls:
                fault = Fault("other", "the model called a tool instead of writing a summary")
                return DeliverSummary(split, self._host.now(), usage=call.usage, fault=fault)
            if finished.done is not None and finished.done.stop_reason == "refusal":
                # What it says is why, and no summary of anything.
                fault = Fault("other", "the model refused to write a summary")
                return DeliverSummary(split, self._host.now(), usage=call.usage, fault=fault)
            return DeliverSummary(split, self._host.now(), finished.text, call.usage)

        command: Command | None = None
        try:
            command = await call.run(running, finish)
        finally:
            if command is None and held is not None:
                spending.release(held)
        return command
