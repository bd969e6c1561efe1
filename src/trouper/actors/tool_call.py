"""One tool call: run the tool under its hard time-out and say how it ended. What the tool raises never leaves here.

A `ToolError` is the model's to read. Anything unexpected is told to the model as one fixed sentence; the whole chain goes to the journal,
and from there, without secrets, to the log (L20).
"""

from __future__ import annotations

import logging
import math
import traceback
from collections.abc import Awaitable, Callable
from functools import partial

from trouper.actors.foreign import alone, from_outside
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

logger = logging.getLogger("trouper.tools")

INTERNAL = "The tool failed because of an internal error. It is not your fault; do not repeat the call unchanged."
TIMED_OUT = "The tool did not end within {seconds:g} s and was cancelled; it may have done part of its work."
#: Of an internal error's text, what the journal keeps.
INTERNAL_CHARS = 8_000
_NOTHING = Shaped(None)


def _told(error: BaseException) -> str | None:
    """What the model is told of it; `None` if it is internal."""
    if not isinstance(error, ToolError | ConnectionRequired):
        return None
    try:
        return str(error)
    except Exception:  # A message that is no text, and has none.
        return None


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
    started = running.clock()
    internal: str | None = None
    outcome, shaped = Outcome.TIMEOUT, _NOTHING
    images: tuple[Media, ...] = ()
    result: ToolResult | None = None
    saved_as = f"outputs/{call}.txt" if keep is not None else None
    persist = heavy = False
    with running.until(started + timeout_s):
        try:
            result = await (tool.run_background if background else tool.run)(arguments, context)
        except BaseException as caught:
            outside = from_outside(caught)
            if outside is caught:
                raise
            # Cut after redaction: half a secret would not be known as one.
            internal = redact("".join(traceback.format_exception(caught)))[-INTERNAL_CHARS:]
            if outside is not None:
                logger.warning("tool %r failed while it was cancelled: %s", tool.name, internal)
                raise outside from None
            outcome, told = Outcome.ERROR, _told(alone(caught))
            if told is not None:
                internal = None
                result = ToolResult(told, is_error=True)
            else:
                shaped = Shaped(INTERNAL)
        else:
            outcome = Outcome.ERROR if result.is_error else Outcome.OK
            persist = bool(tool.hints.persist_output)
            images = result.images
        if result is not None:
            heavy = is_heavy(result)
            shape = partial(
                shape_output, result, limit=output_bytes, saved_as=saved_as, persist=persist, redact=redact, heavy=heavy
            )
            if heavy:
                # The tool has done its work: what is left is not to be held against its time. It can still be stopped.
                running.extend(math.inf)
                shaped = await off_loop(shape)
            else:
                shaped = shape()
    if running.cancelled_caught:
        if running.stopped:
            return None
        outcome, images = Outcome.TIMEOUT, ()
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
                anew = partial(shape_output, result, limit=output_bytes, not_kept=not_kept, redact=redact, heavy=heavy)
                shaped = await off_loop(anew) if heavy else anew()
    return DeliverResult(
        call=call,
        outcome=outcome,
        at=now(),
        content=shaped.content,
        images=images,
        latency_ms=round((running.clock() - started) * 1000, 3),
        full_output=full_output,
        internal=internal,
    )
