"""What a session's state waits for, carried out: each piece of work from its start to the command that tells the session how it ended.

The session's actor starts and stops work; a scope stops it, and only an event records that it stopped.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Sequence

import trio

from trouper.actors.allowance import Allowance
from trouper.actors.asking import Asking
from trouper.actors.gate import Gate
from trouper.actors.ground import Started, WorkHost
from trouper.actors.preparing import admitted
from trouper.actors.recording import rehearse
from trouper.actors.running import Lane, Running
from trouper.actors.runs import Runs
from trouper.actors.sink import LiveSink
from trouper.actors.tool_call import run_tool
from trouper.core import task_text
from trouper.core.calls import Call
from trouper.core.commands import (
    ActFire,
    Command,
    DeliverDue,
    DeliverResult,
    DeliverResults,
    Deny,
    EndTurn,
    LapseCall,
    NoteBudget,
    Spill,
    SpillCalls,
)
from trouper.core.decisions import UNAPPROVED
from trouper.core.ids import CallId, SessionId, TaskId
from trouper.core.messages import Json, Outcome
from trouper.core.notification import DeliverBatch
from trouper.core.outstanding import (
    AwaitAnswer,
    AwaitApproval,
    AwaitDeadline,
    AwaitWarning,
    CallModel,
    RunCall,
    Summarise,
    TakeQueued,
    Work,
)
from trouper.core.schedule import REBASE_AFTER_S, ActOnFire, AwaitDue, ClaimFires, ScheduledRun
from trouper.core.session import WALL_TIME
from trouper.core.settings import WARN_SHARE
from trouper.core.steps import TIME_IS_UP
from trouper.core.task import AwaitTaskStopped, RunTask
from trouper.core.task_record import Link, NewTask
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.errors import ToolError

#: A task lets the others run after so many pieces of work in a row: that is a millisecond, if none of them waits for anything.
RELAYS_MAX = 16
#: Runs that end within this time of each other are told to the model together.
_GATHER_S = 0.1
_RETELL_MAX_S = 60.0
_LOOK_AT_CLOCK_S = 60.0
#: What is further off than this is looked for less often.
_FAR_OFF_S = 3_600.0
_LOOK_SELDOM_S = 600.0
#: For tools that do not look at theirs.
_NO_CONTEXT = ToolContext()


class Worker:
    """Does the work of one session. New with each start of its actor: what ran before ended with it."""

    __slots__ = ("_abreast", "_gathered", "_host", "_runs", "asking")

    def __init__(self, host: WorkHost) -> None:
        self._host = host
        self.asking = Asking(host)
        # Made only for a session that has some.
        self._runs: Runs | None = None
        #: How many pieces of work were begun at once, and have not ended since.
        self._abreast = 0
        #: Results that come at this moment; who was the first to come tells them all.
        self._gathered: list[DeliverResult] | None = None

    @property
    def runs(self) -> Runs:
        if self._runs is None:
            self._runs = Runs(self._host, self.let_go)
        return self._runs

    async def run(self, work: Work, running: Running, gate: Gate | None = None) -> None:
        """Do the work, tell the session, and go on with what it wants next, if it has something for this task. Who waits at the `gate` may begin now."""
        if gate is not None:
            gate.leave()
        door = self._host.ground.door
        with Lane(self._host.ground.deadlines) as lane:
            relayed = 0
            while True:
                # A result that comes although nobody wants it any more is recorded as late (I9).
                command = await self._outcome(work, running, lane)
                if self._abreast > 1 and type(command) is DeliverResult:
                    command = await self._with_others(command)
                if command is None:
                    return
                if door.is_crowded:
                    # Shielded, here and below: what the session has to hear, and the work that follows, belong to us by now.
                    with trio.CancelScope(shield=True):
                        await door.give_way()
                if not (started := await self._host.relay(command)):
                    return
                self._abreast = len(started)
                if self._abreast > 1:
                    await self._begin(started[1:])
                work, running = started[0]
                relayed += 1
                if relayed % RELAYS_MAX == 0:
                    # A model and tools that never wait must not keep everybody else waiting.
                    await trio.lowlevel.cancel_shielded_checkpoint()

    async def _with_others(self, result: DeliverResult) -> DeliverResult | DeliverResults | None:
        """Calls that run side by side often end side by side: then they are told together. `None`: another one tells this result with his own."""
        if self._gathered is not None:
            self._gathered.append(result)
            return None
        gathered = self._gathered = [result]
        # Shielded: they belong to the session by now. Whoever else has ended by this moment comes before us.
        await trio.lowlevel.cancel_shielded_checkpoint()
        self._gathered = None
        self._abreast -= len(gathered)
        return result if len(gathered) == 1 else DeliverResults(tuple(gathered))

    async def _begin(self, started: Sequence[Started]) -> None:
        """Calls of one step begin one right after the other, however many turns reach theirs at this moment: their budgets run out together."""
        door = self._host.ground.door
        if door.is_shut:
            with trio.CancelScope(shield=True):
                await door.give_way_once_more()
        self._host.spawn(started)
        door.hurry()

    async def let_go(self, allowance: Allowance) -> None:
        """The turn has waited long enough for these calls: say so, and go on with what follows, which is to ask the model (B2)."""
        host = self._host
        if not allowance.calls:
            return  # They have ended in the last moment.
        ids = host.ground.environment.ids
        for run in allowance.calls.values():
            run.spilling = True
        spills = tuple([Spill(call, TaskId(ids.new("task_"))) for call in allowance.calls])
        if started := await host.relay_first(self._spill(spills, allowance.budget_s)):
            if len(started) > 1:
                await self._begin(started[1:])
            await self.run(*started[0])

    def _spill(self, spills: tuple[Spill, ...], budget_s: float) -> SpillCalls:
        host = self._host
        return SpillCalls(spills, host.owner, host.now(), round(budget_s * 1000), limits=host.task_limits())

    async def _outcome(self, work: Work, running: Running, lane: Lane) -> Command | None:
        command: Command | None = None
        try:
            # If it was stopped before it began, it never does: a tool without a checkpoint would run to its end in a cancelled scope (I8).
            if running.begin(lane):
                # By the very class: of the patterns of a `match`, each costs a look-up that every step would pay for.
                if type(work) is CallModel:
                    command = await self.asking.call_model(work.turn, work.step, running)
                elif type(work) is RunCall:
                    command = await self._run_call(work.call, running)
                elif type(work) is Summarise:
                    command = await self.asking.summarise(work.split, running)
                elif type(work) is RunTask:
                    command = await self._run_task(work.task_id, work.attempt, running)
                else:
                    with running.until():
                        command = await self._perform(work)
        finally:
            running.end()
        if command is None and running.stopped:
            command = await self.runs.after_stop(work)
        return command

    def _run_call(self, call: Call, running: Running) -> Awaitable[Command | None]:
        # Not async itself: it would stay on the stack for as long as the tool runs, and add nothing.
        outfit = self._host.turn_outfit
        request = call.request
        tool = outfit.registry.get(request.name)
        if tool is None:
            # Only after a restart: the call was allowed by a process that had this tool.
            return self._not_run(request.id, Outcome.ERROR, outfit.registry.unknown(request.name))
        if self._host.taken_over and self._is_denied_by_now(tool, call):
            return self._not_run(request.id, Outcome.DENIED, "Permission was denied by policy.")
        timeout_s = call.preparation.timeout_s
        if timeout_s is None:
            timeout_s = outfit.limits.tool_timeout_s
        timeout_s = timeout_s or math.inf  # 0: never.
        budget_s = call.preparation.budget_s
        if budget_s is not None:
            if self._runs is None:
                rehearse(self._host.state, self._spill((Spill(request.id, TaskId("task_0")),), budget_s))
            return self.runs.run_call(tool, call, running, timeout_s=timeout_s, budget_s=budget_s)
        return run_tool(
            tool,
            request.id,
            request.arguments,
            self._context(call) if tool.takes_context else _NO_CONTEXT,
            running,
            self._host,
            timeout_s=timeout_s,
            output_bytes=outfit.limits.tool_output_bytes,
        )

    def _context(self, call: Call) -> ToolContext:
        host = self._host
        return ToolContext(
            session_id=SessionId(host.session),
            call_id=call.id,
            services=host.ground.services(host.session),
            sink=LiveSink(call.id, host.publish_live, host.redact_text),
            attempt=call.attempt,
            home=host.ground.home,
        )

    def _is_denied_by_now(self, tool: Tool, call: Call) -> bool:
        """Whether a call of a turn that another process began is one that the rules of today forbid (T4)."""
        host, turn = self._host, self._host.state.turn
        arguments = call.request.arguments
        return (
            turn is not None and turn.number == host.taken_over and host.turn_outfit.preparer.is_denied(tool, arguments)
        )

    async def _not_run(self, call: CallId, outcome: Outcome, told: str) -> Command:
        return DeliverResult(call, outcome, self._host.now(), content=told)

    async def _run_task(self, task_id: TaskId, attempt: int, running: Running) -> Command | None:
        found = self._host.state.tasks.live.get(task_id)
        tool = None if found is None else self._host.outfit.registry.get(found.about.tool)
        return await self.runs.run_task(tool, task_id, attempt, running)

    async def _perform(self, work: Work) -> Command | None:
        """Work that needs no more of its scope than to be stopped by it."""
        match work:
            case AwaitDeadline(turn, at):
                await trio.sleep(max(0.0, at - self._host.now()))
                return EndTurn(turn, "budget", self._host.now(), TIME_IS_UP)
            case AwaitWarning(turn, at, wall_s):
                await trio.sleep(max(0.0, at - self._host.now()))
                return NoteBudget(WALL_TIME, WARN_SHARE * wall_s, wall_s, turn)
            case AwaitApproval(call_id, expires_at):
                await trio.sleep(max(0.0, expires_at - self._host.now()))
                return Deny(call_id, self._host.now(), UNAPPROVED)
            case AwaitAnswer(call_id, expires_at):
                await trio.sleep(max(0.0, expires_at - self._host.now()))
                return LapseCall(call_id, self._host.now())
            case DeliverBatch():
                await self._wait_deliverable()
                return DeliverDue(self._host.now(), self._host.outfit.turn_options(), self._host.notification_limits())
            case TakeQueued():
                return DeliverDue(self._host.now(), self._host.outfit.turn_options())
            case AwaitDue():
                return await self._await_due(work)
            case ActOnFire():
                return await self._fire(work)
            case AwaitTaskStopped(task_id, attempt):
                # By trio's clock, which nobody sets; a process that ends meanwhile leaves it to the next one's recovery.
                await trio.sleep(self._host.limits.grace_s)
                return await self.runs.after_grace(task_id, attempt)
            case _:
                raise AssertionError(work)  # The others have a scope of their own: see `run`.

    async def _await_due(self, work: AwaitDue) -> Command:
        """Until it is due by the wall clock; which may be set, and then the schedules have to hear of it (B18)."""
        while True:
            now = self._host.now()
            if now >= work.at:
                return ClaimFires(now, self._host.schedule_limits())
            found = self._host.state.schedules.active.get(work.schedule_id)
            if found is not None and found.seen_at - now > REBASE_AFTER_S:
                await self._host.deliver(ClaimFires(now, self._host.schedule_limits()))
            left = work.at - now
            await trio.sleep(min(left, _LOOK_AT_CLOCK_S if left <= _FAR_OFF_S else _LOOK_SELDOM_S))

    async def _wait_deliverable(self) -> None:
        """Let what ends together be told together; after a failure wait longer and longer, unless something new comes; and not while somebody types (B14, B15)."""
        since = trio.current_time()
        while failures := self._host.state.notifications.failures:
            with trio.move_on_at(since + min(_RETELL_MAX_S, 2.0 ** min(failures, 9))) as waiting:
                await self._host.watches.wait_notified()
            if waiting.cancelled_caught:
                break
        else:
            await trio.sleep(_GATHER_S)
        await self._host.notification_holds.wait_released()

    async def _fire(self, work: ActOnFire) -> ActFire:
        action = work.action
        new: NewTask | None = None
        refusal = ""
        if isinstance(action, ScheduledRun):
            try:
                new = await self.admit(
                    action.tool,
                    action.arguments,
                    title=action.title,
                    signal_on_completion=action.signal_on_completion,
                    links=(Link("schedule", work.schedule_id),),
                )
            except ToolError as error:
                refusal = str(error)
        return ActFire(
            work.schedule_id,
            work.fire,
            self._host.now(),
            new,
            self._host.owner,
            refusal,
            limits=self._host.task_limits(),
        )

    async def admit(
        self,
        tool: str,
        arguments: Json,
        *,
        title: str = "",
        call: CallId | None = None,
        signal_on_completion: bool = True,
        links: tuple[Link, ...] = (),
        by: str = "",
    ) -> NewTask:
        """The record of a run that may start: its tool is there and can run so, its arguments fit, policy and hooks allow it. Else a `ToolError` (B6)."""
        if self._host.outfit.hooks:
            await self._host.hooks_begun()
        arguments, found = await admitted(self._host.outfit.preparer, self._host, tool, arguments)
        ids = self._host.ground.environment.ids
        return task_text.spawned_task(
            TaskId(ids.new("task_")),
            ids.new("bg_"),
            SessionId(self._host.session),
            call,
            tool,
            arguments,
            reattachable=found.side_effect != "at_most_once",
            title=title,
            signal_on_completion=signal_on_completion,
            links=links,
            by=by,
        )
