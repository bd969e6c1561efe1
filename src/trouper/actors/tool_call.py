"""One tool call: run the tool under its hard time-out and say how it ended. What the tool raises never leaves here.

A `ToolError` is the model's to read. Anything unexpected is told to the model as one fixed sentence; the whole chain goes to the journal,
and from there, without secrets, to the log (L20).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Protocol

from trouper.actors.running import Running
from trouper.core.commands import DeliverResult
from trouper.core.ids import CallId
from trouper.core.messages import Json, Media, Outcome
from trouper.foreign import alone, chain_of, from_outside
from trouper.tools.context import ToolContext
from trouper.tools.contract import Tool
from trouper.tools.errors import ConnectionRequired, ToolError
from trouper.tools.off_loop import off_loop
from trouper.tools.output import Shaped, is_heavy, is_plain, shape_output
from trouper.tools.results import ToolResult, as_result, is_large

logger = logging.getLogger("trouper.tools")

INTERNAL = "The tool failed because of an internal error. It is not your fault; do not repeat the call unchanged."
UNEXPLAINED = "The tool could not do what was asked, and gave no reason."
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
    told: str | None = None
    output: _Output | None = None
    persist = False
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
            told = _told(alone(caught)) if outside is None else None
            if told is None:
                # Cut after redaction: half a secret would not be known as one.
                internal = chain_of(caught, host.redact_text)[-INTERNAL_CHARS:]
            if outside is not None:
                logger.warning("tool %r failed while it was cancelled: %s", tool.name, internal)
                raise outside from None
            outcome = Outcome.ERROR
            if told is not None:
                result = ToolResult(told, is_error=True)
            else:
                shaped = Shaped(INTERNAL)
        if result is not None:
            output = _Output(call, result, host, output_bytes, persist=persist)
            if output.heavy:
                # The tool has done its work: what is left is not to be held against its time. It can still be stopped.
                running.extend(math.inf)
            shaped = await output.shape()
            if told is not None and not str(shaped.content).strip():
                # Of what a terminal would show of it there is no word.
                shaped = Shaped(UNEXPLAINED)
    if running.cancelled_caught:
        if running.stopped:
            return None
        outcome, images = Outcome.TIMEOUT, ()
        output, shaped = None, Shaped(TIMED_OUT.format(seconds=timeout_s))
    full_output: str | None = None
    if output is not None:
        shaped, full_output = await output.keep(shaped)
    latency_ms = round((read_clock() - started) * 1000, 3)
    return DeliverResult(call, outcome, host.now(), shaped.content, images, latency_ms, full_output, internal)


async def within_limits(call: CallId, result: ToolResult, host: CallHost, output_bytes: int) -> tuple[Json, str | None]:
    """What the model is to see of a result that somebody else has made, and where the whole of it is kept, if it is not all (T9)."""
    if is_plain(result.content, output_bytes):
        return result.content, None
    output = _Output(call, result, host, output_bytes)
    shaped, kept = await output.keep(await output.shape())
    return shaped.content, kept


class _Output:
    """A result on its way to the model: cut to what that may see, then kept in full if that is not all (T9)."""

    def __init__(self, call: CallId, result: ToolResult, host: CallHost, limit: int, *, persist: bool = False) -> None:
        self._raw = result.raw_output
        self._keep = host.keep
        self._saved_as = f"outputs/{call}.txt"
        #: Whether shaping it is work for a thread.
        self.heavy = is_heavy(result)
        self._shape = partial(
            shape_output,
            result,
            limit=limit,
            saved_as=self._saved_as if self._keep is not None else None,
            persist=persist,
            redact=host.redact_text,
            heavy=self.heavy,
        )

    async def shape(self, not_kept: str | None = None) -> Shaped:
        shape = partial(self._shape, not_kept=not_kept)
        return await off_loop(shape) if self.heavy else shape()

    async def keep(self, shaped: Shaped) -> tuple[Shaped, str | None]:
        """What the model is to see, and where the whole is."""
        whole = self._raw if self._raw is not None else shaped.full_text
        if whole is None or self._keep is None:
            return shaped, None
        not_kept = await self._keep(self._saved_as, whole)
        if not_kept is None:
            return shaped, self._saved_as
        # A note that leads nowhere is replaced by one that says why.
        return (shaped if shaped.full_text is None else await self.shape(not_kept)), None
