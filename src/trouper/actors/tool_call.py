"""One tool call: run the tool under its hard time-out and say how it ended. What the tool raises never leaves here.

A `ToolError` is the model's to read. Anything unexpected is told to the model as one fixed sentence; the whole chain goes to the journal,
and from there, without secrets, to the log (L20).
"""

from __future__ import annotations

import math
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

import trio

from trouper.actors.running import Running
from trouper.core.commands import DeliverResult
from trouper.core.ids import CallId
from trouper.core.messages import Media, Outcome
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.errors import ConnectionRequired, ToolError
from trouper.tools.off_loop import off_loop
from trouper.tools.output import Shaped, is_heavy, shape_output
from trouper.tools.results import ToolResult

INTERNAL = "The tool failed because of an internal error. It is not your fault; do not repeat the call unchanged."
TIMED_OUT = "The tool did not end within {seconds:g} s and was cancelled; it may have done part of its work."
#: Of an internal error's text, what the journal keeps.
INTERNAL_CHARS = 8_000
_NOTHING = Shaped(None)


def alone(error: BaseException) -> BaseException:
    """The error itself, out of the groups that a tool's nurseries put around a single one."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    return error


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
    keep: Callable[[str, str], Awaitable[str | None]] | None = None,
    redact: Callable[[str], str] = str,
    background: bool = False,
) -> DeliverResult | None:
    """Run to the end, in the scope of `running`; `None` if the work was stopped. `keep` stores an output that had to be cut, under the session's files, or says why it does not; `redact` takes the secrets out of it before it is cut."""
    started = trio.current_time()
    internal: str | None = None
    outcome, shaped = Outcome.TIMEOUT, _NOTHING
    images: tuple[Media, ...] = ()
    result: ToolResult | None = None
    saved_as = f"outputs/{call}.txt" if keep is not None else None
    persist = False

    def shape(result: ToolResult) -> Shaped:
        return shape_output(result, limit=output_bytes, saved_as=saved_as, persist=persist, redact=redact)

    with running.renew(started + timeout_s) as scope:
        try:
            result = await (tool.run_background if background else tool.run)(arguments, context)
        # A library that gives up for the whole process ends its own call only.
        except (Exception, SystemExit) as caught:
            outcome = Outcome.ERROR
            match alone(caught):
                case ToolError() as error:
                    result = ToolResult(str(error), is_error=True)
                case ConnectionRequired() as error:
                    shaped = Shaped(str(error))
                case _:
                    shaped = Shaped(INTERNAL)
                    # Cut after redaction: half a secret would not be known as one.
                    internal = redact("".join(traceback.format_exception(caught)))[-INTERNAL_CHARS:]
        else:
            outcome = Outcome.ERROR if result.is_error else Outcome.OK
            persist = bool(tool.hints.persist_output)
            images = result.images
        if result is not None:
            if is_heavy(result):
                # The tool has done its work: what is left is not to be held against its time. It can still be stopped.
                running.extend(math.inf)
                shaped = await off_loop(partial(shape, result))
            else:
                shaped = shape(result)
    if scope.cancelled_caught:
        if running.stopped:
            return None
        result, shaped = None, Shaped(TIMED_OUT.format(seconds=timeout_s))
    full_output: str | None = None
    if keep is not None and saved_as is not None and result is not None:
        whole = result.raw_output if result.raw_output is not None else shaped.full_text
        if whole is not None:
            not_kept = await keep(saved_as, whole)
            if not_kept is None:
                full_output = saved_as
            elif shaped.full_text is not None:
                # A note that leads nowhere is replaced by one that says why.
                told = partial(shape_output, result, limit=output_bytes, not_kept=not_kept, redact=redact)
                shaped = await off_loop(told) if is_heavy(result) else told()
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
