"""The tools of a simulated run: one of each kind that matters to recovery, and those of whoever tests some. Each notes what is wrong with how it is run (I2, I4)."""

from __future__ import annotations

import trio

from trouper import codec
from trouper.core.events import CallStarted
from trouper.core.messages import Json
from trouper.foreign import alone, from_outside
from trouper.testing.crash_disk import PowerCut
from trouper.testing.world import World
from trouper.tools.context import Question, ToolContext
from trouper.tools.contract import Invoke, Tool
from trouper.tools.define import tool
from trouper.tools.errors import ConnectionRequired, ToolError
from trouper.tools.results import as_result


def own_tools(world: World) -> tuple[Tool, ...]:
    """One tool of each kind that matters to recovery."""

    def begin(context: ToolContext, once: bool = False) -> None:
        _begin(world, context, once)

    @tool(readonly=True)
    async def pure(context: ToolContext, n: int = 0) -> int:
        """Looks at something."""
        begin(context)
        return n

    @tool(readonly=True, open_world=False, background=True)
    async def unnoticed(n: int = 0) -> int:
        """Begins ahead of the disk: it knows nobody whom it could tell of it."""
        await trio.sleep(n * 0.003)
        return n

    @tool(idempotent=True, background=True)
    async def careful(context: ToolContext, n: int = 0) -> dict[str, int]:
        """May be repeated."""
        begin(context)
        await trio.sleep(n * 0.4)
        return {"n": n}

    @tool(concurrency_class="once")
    async def once(context: ToolContext, n: int = 0) -> str:
        """May run once only."""
        begin(context, once=True)
        await trio.sleep(n * 0.1)
        return "x" * n * 400

    @tool(background=True)
    async def slow(context: ToolContext, n: int = 0) -> str:
        """Takes its time, and tidies up slowly when it is cancelled."""
        begin(context, once=True)
        try:
            await trio.sleep(n * 3.0)
        finally:
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 0.3):
                await trio.sleep(0.1)
        return "done"

    @tool(background=True)
    async def talkative(context: ToolContext, n: int = 0) -> str:
        """Says what it does, asks, listens, and fails now and then."""
        begin(context, once=True)
        context.report_progress(n, 5, "steps", "on the way")
        context.output("stdout", "a line\n")
        context.say("still here")
        context.link("order", str(n))
        context.add_artifact(f"report-{n}.txt")
        await trio.sleep(n * 0.2)
        if n == 1:
            await context.ask_user(Question("go on?"), timeout_s=10.0)
        if n == 2:
            with trio.move_on_after(5.0):
                return await context.receive_message()
        if n == 3:
            raise ToolError("it cannot be done")
        return "said and done"

    @tool(background=True)
    async def stubborn(context: ToolContext, n: int = 0) -> str:
        """Does not stop in time when it is told to."""
        begin(context, once=True)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + n * 2.0):
            await trio.sleep_forever()
        return "done all the same"

    @tool(policy="requires_approval")
    async def guarded(context: ToolContext, n: int = 0) -> int:
        """Needs somebody's word."""
        begin(context, once=True)
        return n

    @tool(policy="client_side")
    async def elsewhere(n: int = 0) -> int:
        """The host carries it out."""
        raise AssertionError("it is not for the runtime to run")

    @tool
    async def raises(context: ToolContext, n: int = 0) -> str:
        """Fails in one way or another."""
        begin(context, once=True)
        if n == 0:
            raise ToolError("try something else")
        if n == 1:
            raise RuntimeError("a bug in the tool")
        if n == 2:
            await trio.sleep(100.0)
        return "fine"

    return (pure, unnoticed, careful, once, slow, talkative, stubborn, guarded, elsewhere, raises)


def _begin(world: World, context: ToolContext, once: bool) -> None:
    _check_intent(world, context)
    if once:
        key = f"{context.session_id}/{context.call_id}"
        world.executions[key] += 1
        if world.executions[key] > 1:
            world.wrong(f"I4: {key} ran {world.executions[key]} times")


def watched_tool(world: World, mine: Tool) -> Tool:
    """Somebody's tool, as it is; what it does wrong is noted."""

    def around(invoke: Invoke) -> Invoke:
        async def watched(arguments: dict[str, Json], context: ToolContext) -> object:
            _begin(world, context, once=mine.side_effect == "at_most_once")
            shown = f"tool {mine.name!r} of {context.session_id}/{context.call_id}, called with {arguments!r},"
            world.tell(f"{trio.current_time():.2f} {shown} runs")
            try:
                returned = await invoke(arguments, context)
                as_result(returned, mine.name)
            except BaseException as error:
                # What a nursery of the tool's own wraps is told to the model like any other.
                if isinstance(alone(error), ToolError | ConnectionRequired | PowerCut):
                    raise
                # Also what would end a whole program: with us it ends the call, and is no less a mistake of the tool's.
                if from_outside(error) is None:
                    world.wrong(f"{shown} raised {error!r}", error)
                raise
            return returned

        return watched

    background = None if mine.invoke_background is None else around(mine.invoke_background)
    return mine.with_(invoke=around(mine.invoke), invoke_background=background)


def _check_intent(world: World, context: ToolContext) -> None:
    """I2: the intent is on the disk before the tool runs."""
    if context.task_id is not None:
        return
    assert world.runtime is not None
    log = world.runtime._log
    wanted = context.call_id.encode()
    for raw in log.records(stream=context.session_id):
        if wanted not in raw.payload or b"CallStarted" not in raw.payload:
            continue
        for event in codec.decode_events(raw.payload, raw.seq)[2]:
            if isinstance(event, CallStarted) and event.call == context.call_id and raw.seq <= log.durable:
                return
    world.wrong(f"I2: {context.call_id} of {context.session_id} runs before its intent is durable")
