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
from typing import Protocol

from trouper.actors.running import Running
from trouper.core.commands import DeliverResult
from trouper.core.ids import CallId
from trouper.core.messages import Json, Media, Outcome
from trouper.foreign import alone, from_outside
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.errors import ConnectionRequired, ToolError
from trouper.tools.off_loop import off_loop
from trouper.tools.output import Shaped, is_heavy, is_plain, shape_output
from trouper.tools.results import ToolResult, as_result, is_large

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


class CallHost(Protocol):
    """What a call under way needs of its session. One reference instead of several: there may be a thousand calls, and the garbage collector visits what each holds."""

    def now(self) -> float: ...
    def redact_text(self, text: str) -> str:
        """Without the secrets in it (J8)."""

    @property
    def keep(self) -> Callable[[str, str], Awaitable[str | None]] | None:
        """Stores an output that had to be cut, under the session's files, or says why it does not."""


async def run_tool(
    tool: Tool,
    call: CallId,
    arguments: dict[str, object],
    context: ToolContext,
    running: Running,
    host: CallHost,
    *,
    timeout_s: float,
    output_bytes: int,
    background: bool = False,
) -> DeliverResult | None:
    """Run to the end, in the scope of `running`; `None` if the work was stopped. What only the end needs is made at the end: a call may last for hours."""
    read_clock = running.clock
    started = read_clock()
    internal: str | None = None
    outcome, shaped = Outcome.TIMEOUT, _NOTHING
    images: tuple[Media, ...] = ()
    result: ToolResult | None = None
    keep: Callable[[str, str], Awaitable[str | None]] | None = None
    saved_as: str | None = None
    persist = heavy = False
    with running.until(started + timeout_s):
        try:
            invoke = tool.invoke_background if background and tool.invoke_background is not None else tool.invoke
            returned = await invoke(arguments, context)
            if is_plain(returned, output_bytes) and not tool.hints.persist_output:
                outcome, shaped = Outcome.OK, Shaped(returned)
            else:
                if is_large(returned):
                    result = await off_loop(partial(as_result, returned, tool.name, large=True))
                else:
                    result = as_result(returned, tool.name, large=False)
                outcome = Outcome.ERROR if result.is_error else Outcome.OK
                persist = bool(tool.hints.persist_output)
                images = result.images
        except BaseException as caught:
            running.close_left_open()
            outside = from_outside(caught)
            if outside is caught:
                raise
            # Cut after redaction: half a secret would not be known as one.
            internal = host.redact_text("".join(traceback.format_exception(caught)))[-INTERNAL_CHARS:]
            if outside is not None:
                logger.warning("tool %r failed while it was cancelled: %s", tool.name, internal)
                raise outside from None
            outcome, told = Outcome.ERROR, _told(alone(caught))
            if told is not None:
                internal = None
                result = ToolResult(told, is_error=True)
            else:
                shaped = Shaped(INTERNAL)
        if result is not None:
            keep = host.keep
            saved_as = f"outputs/{call}.txt" if keep is not None else None
            heavy = is_heavy(result)
            shape = partial(
                shape_output,
                result,
                limit=output_bytes,
                saved_as=saved_as,
                persist=persist,
                redact=host.redact_text,
                heavy=heavy,
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
                anew = partial(shape, not_kept=not_kept)
                shaped = await off_loop(anew) if heavy else anew()
    latency_ms = round((read_clock() - started) * 1000, 3)
    return DeliverResult(call, outcome, host.now(), shaped.content, images, latency_ms, full_output, internal)


async def within_limits(call: CallId, result: ToolResult, host: CallHost, output_bytes: int) -> tuple[Json, str | None]:
    """What the model is to see of a result that somebody else has made, and where the whole of it is kept, if it is not all (T9)."""
    if is_plain(result.content, output_bytes):
        return result.content, None
    saved_as = f"outputs/{call}.txt" if host.keep is not None else None
    heavy = is_heavy(result)
    shape = partial(shape_output, result, limit=output_bytes, saved_as=saved_as, redact=host.redact_text, heavy=heavy)
    shaped = await off_loop(shape) if heavy else shape()
    if shaped.full_text is None or host.keep is None or saved_as is None:
        return shaped.content, None
    not_kept = await host.keep(saved_as, shaped.full_text)
    if not_kept is None:
        return shaped.content, saved_as
    anew = partial(shape, not_kept=not_kept)
    return (await off_loop(anew) if heavy else anew()).content, None
