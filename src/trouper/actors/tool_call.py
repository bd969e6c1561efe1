"""One tool call: run the tool under its hard time-out and say how it ended. What the tool raises never leaves here.

A `ToolError` is the model's to read. Anything unexpected is told to the model as one fixed sentence; the whole chain goes to the journal,
and from there, without secrets, to the log (L20).
"""

from __future__ import annotations

import logging
import traceback
from collections.abc import Awaitable, Callable

import trio

from trouper.actors.foreign import alone, from_outside
from trouper.actors.running import Running
from trouper.core.commands import DeliverResult
from trouper.core.ids import CallId
from trouper.core.messages import Media, Outcome
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.errors import ConnectionRequired, ToolError
from trouper.tools.output import Shaped, shape_output
from trouper.tools.results import ToolResult

logger = logging.getLogger("trouper.tools")

INTERNAL = "The tool failed because of an internal error. It is not your fault; do not repeat the call unchanged."
TIMED_OUT = "The tool did not end within {seconds:g} s and was cancelled; it may have done part of its work."
#: Of an internal error's text, what the journal keeps.
INTERNAL_CHARS = 8_000
_NOTHING = Shaped(None)


async def run_tool(
    tool: Tool,
    call: CallId,
    arguments: dict[str, object],
    context: ToolContext,
    running: Running,
    *,
    timeout_s: float,
    output_bytes: int,
    now: Callable[[], float],
    keep: Callable[[str, str], Awaitable[bool]] | None = None,
    background: bool = False,
) -> DeliverResult | None:
    """Run to the end, in the scope of `running`; `None` if the work was stopped. `keep` stores an output that had to be cut, under the session's files."""
    started = trio.current_time()
    internal: str | None = None
    outcome, shaped = Outcome.TIMEOUT, _NOTHING
    images: tuple[Media, ...] = ()
    result: ToolResult | None = None
    saved_as = f"outputs/{call}.txt" if keep is not None else None
    with running.renew(started + timeout_s) as scope:
        try:
            result = await (tool.run_background if background else tool.run)(arguments, context)
        except BaseException as caught:
            if (outside := from_outside(caught)) is not None:
                if outside is caught:
                    raise
                logger.warning("tool %r failed while it was cancelled", tool.name, exc_info=caught)
                raise outside from None
            outcome = Outcome.ERROR
            match alone(caught):
                case ToolError() as error:
                    result = ToolResult(str(error), is_error=True)
                    shaped = shape_output(result, limit=output_bytes, saved_as=saved_as)
                case ConnectionRequired() as error:
                    shaped = Shaped(str(error))
                case _:
                    shaped = Shaped(INTERNAL)
                    internal = "".join(traceback.format_exception(caught))[-INTERNAL_CHARS:]
        else:
            outcome = Outcome.ERROR if result.is_error else Outcome.OK
            persist = bool(tool.hints.persist_output)
            shaped = shape_output(result, limit=output_bytes, saved_as=saved_as, persist=persist)
            images = result.images
    if scope.cancelled_caught:
        if running.stopped:
            return None
        result, shaped = None, Shaped(TIMED_OUT.format(seconds=timeout_s))
    full_output: str | None = None
    if keep is not None and saved_as is not None and result is not None:
        whole = result.raw_output if result.raw_output is not None else shaped.full_text
        if whole is not None:
            if await keep(saved_as, whole):
                full_output = saved_as
            elif shaped.full_text is not None:
                shaped = shape_output(result, limit=output_bytes)  # Without a note that leads nowhere.
    return DeliverResult(
        call=call,
        outcome=outcome,
        at=now(),
        content=shaped.content,
        images=images,
        latency_ms=round((trio.current_time() - started) * 1000, 3),
        full_output=full_output,
        internal=internal,
    )
