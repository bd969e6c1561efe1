"""Hooks (T5): a host's own functions around sessions, turns and tool calls.

    async def no_friday_deploys(call: BeforeTool) -> Deny | None:
        if call.tool == "deploy" and is_friday():
            return Deny("Nothing is deployed on a Friday.")

    open_runtime(..., hooks=[Hooks(before_tool=no_friday_deploys)])

A before-hook may let a call pass (`None` or `Allow()`), deny it, or rewrite its arguments, which are then validated again. One that raises, hangs or returns
something else denies: a guard that is broken guards nothing. An after-hook only looks on; one that raises is logged. `after_tool` sees denied calls too, and the
ends of background runs: of a call that goes on in the background it is told twice, when it is let go and when it has ended. `session_started` looks on too: it begins
before anything else is told of the session. Hooks that look on begin in the order in which things happened, and nobody waits for their end. Plain functions will do
where nothing is waited for.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias, TypeVar

import trio
from attrs import field

from trouper import codec
from trouper._errors import ConfigError
from trouper.core.messages import Json
from trouper.core.values import changed, frozen
from trouper.foreign import Redact, chain_of, from_outside
from trouper.tools.contract import Tool
from trouper.tools.structure import fresh

_log = logging.getLogger(__name__)
#: How long a hook may take. Generous, since a hook may well ask somebody.
HOOK_TIMEOUT_S = 300.0
_BROKEN = "Permission was denied: a check that guards this call failed."
_UNEXPLAINED = "Permission was denied by a check that gave no reason."


@frozen
class Allow:
    """Let the call run."""


@frozen
class Deny:
    """Refuse the call."""

    #: For the model to read.
    reason: str


@frozen
class Rewrite:
    """Let the call run with other arguments, which are checked again."""

    arguments: Mapping[str, Json]


@frozen
class SessionStarted:
    """A session was made, or opened again."""

    session: str
    #: Whether the journal knew the session already.
    resumed: bool = False


@frozen
class SessionEnded:
    """A session is closed for good. One that only stops with its runtime is not."""

    session: str


@frozen
class BeforeTurn:
    """A user's words are about to start a turn, or to steer the one that runs. Turns that a session starts by itself, for its notifications, are seen by `after_turn` alone."""

    session: str
    text: str


@frozen
class AfterTurn:
    """A turn has ended, also one that a session has started by itself."""

    session: str
    stop_reason: str
    text: str = ""


@frozen
class BeforeTool:
    """A call, or a background run, is about to start."""

    session: str
    tool: str
    #: A copy: to change it, return `Rewrite`.
    arguments: dict[str, Json]
    #: As in `AfterTool`; empty for a background run that is about to start, which has no call.
    call_id: str = ""


@frozen
class AfterTool:
    """A call has ended, or was let go to go on in the background, or has ended there."""

    session: str
    tool: str
    #: A copy, as the content is.
    arguments: dict[str, Json]
    #: ok, error, cancelled, timeout, denied, unknown: after-hooks see denied calls too.
    outcome: str
    #: What the model is given. Of a run whose result is longer than 4,096 characters that is a text: its beginning, and the path to the whole in the session's files.
    content: Json = None
    call_id: str = ""
    #: The background run that has ended: of a call that was let go (with its `call_id`), or one that was spawned or scheduled (without). Empty where a call has ended.
    task_id: str = ""


Before: TypeAlias = Allow | Deny | Rewrite | None


@frozen
class Verdict:
    """What a before-hook came to. Neither field set: go on."""

    denied: str | None = None
    rewritten: dict[str, Json] | None = None


PASS = Verdict()


def _checked_hook(hooks: Hooks, attribute: Any, hook: object) -> None:
    if hook is not None and not callable(hook):
        raise ConfigError(f"{attribute.name}={hook!r} is no function; write an async function of one event")
    # As an object, by what calling it runs.
    for call in (hook, type(hook).__call__):
        if inspect.isasyncgenfunction(call) or inspect.isgeneratorfunction(call):
            raise ConfigError(
                f"{attribute.name}={hook!r} is a generator, of which nothing would run; leave out its `yield`"
            )


def _checked_seconds(hooks: Hooks, attribute: Any, seconds: object) -> None:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
        raise ConfigError(f"hooks have timeout_s={seconds!r}; give seconds, more than 0")


_E = TypeVar("_E")
_A = TypeVar("_A")
Hook: TypeAlias = Callable[[_E], Awaitable[_A] | _A]


@frozen
class Hooks:
    """One set of hooks; all optional."""

    session_started: Hook[SessionStarted, None] | None = field(default=None, validator=_checked_hook)
    session_ended: Hook[SessionEnded, None] | None = field(default=None, validator=_checked_hook)
    before_turn: Hook[BeforeTurn, Before] | None = field(default=None, validator=_checked_hook)
    after_turn: Hook[AfterTurn, None] | None = field(default=None, validator=_checked_hook)
    before_tool: Hook[BeforeTool, Before] | None = field(default=None, validator=_checked_hook)
    after_tool: Hook[AfterTool, None] | None = field(default=None, validator=_checked_hook)
    timeout_s: float = field(default=HOOK_TIMEOUT_S, validator=_checked_seconds)

    async def ask_before_tool(
        self, session: str, tool: Tool, arguments: dict[str, Json], call_id: str = "", redact: Redact = str
    ) -> Verdict:
        """The verdict on a call. A rewrite has still to be put through `tool.prepare`. `redact`: for what is logged, as in the others."""
        if self.before_tool is None:
            return PASS
        return await self._ask(self.before_tool, BeforeTool(session, tool.name, fresh(arguments), call_id), redact)

    async def ask_before_turn(self, session: str, text: str, redact: Redact = str) -> Verdict:
        """The verdict on a turn: it passes, or it is denied."""
        if self.before_turn is None:
            return PASS
        verdict = await self._ask(self.before_turn, BeforeTurn(session, text), redact)
        if verdict.rewritten is not None:
            _log.error("hook %r rewrote a turn, which has no arguments; it is denied", _named(self.before_turn))
            return Verdict(denied=_BROKEN)
        return verdict

    async def tell(self, event: SessionStarted | SessionEnded | AfterTurn | AfterTool, redact: Redact = str) -> None:
        """Lets the after-hook for this event look on. Never raises."""
        hook: Any
        match event:
            case SessionStarted():
                hook = self.session_started
            case SessionEnded():
                hook = self.session_ended
            case AfterTurn():
                hook = self.after_turn
            case AfterTool():
                hook = self.after_tool
                if hook is not None:
                    # Each hook has copies of its own, or it could change what the history says (I10).
                    event = changed(event, arguments=fresh(event.arguments), content=fresh(event.content))
        if hook is None:
            return
        try:
            with trio.move_on_after(self.timeout_s) as scope:
                await _answer(hook, event)
            if scope.cancelled_caught:
                _log.error("hook %r took more than %s s and was stopped", _named(hook), self.timeout_s)
        except BaseException as raised:
            if (outside := from_outside(raised)) is not None:
                raise outside from None
            _log.error("hook %r raised: %s", _named(hook), chain_of(raised, redact))

    async def _ask(self, hook: Hook[Any, Before], event: BeforeTool | BeforeTurn, redact: Redact) -> Verdict:
        try:
            with trio.fail_after(self.timeout_s):
                answer: object = await _answer(hook, event)
            if isinstance(answer, Rewrite):
                if codec.has_no_number(answer.arguments):
                    # It would become null, and null the tool's own default: a value that no hook has chosen.
                    raise ValueError(
                        "a rewrite holds NaN or an infinity, which JSON does not have; give a finite number"
                    )
                # As the journal will hold them: a host may have put anything into them.
                answer = Rewrite(codec.loads(codec.dumps(answer.arguments)))
        except BaseException as raised:
            if (outside := from_outside(raised)) is not None:
                raise outside from None
            told = chain_of(raised, redact)
            _log.error("hook %r raised or hung; what it guards is denied: %s", _named(hook), told)
            return Verdict(denied=_BROKEN)
        match answer:
            case None | Allow():
                return PASS
            case Deny(str(reason)):
                return Verdict(denied=reason if reason.strip() else _UNEXPLAINED)
            case Rewrite(Mapping() as arguments):
                return Verdict(rewritten=dict(arguments))
            case _:
                _log.error(
                    "hook %r returned a %s; return None, Allow(), Deny(reason) or Rewrite(arguments): a text, a mapping",
                    _named(hook),
                    type(answer).__name__,
                )
                return Verdict(denied=_BROKEN)


async def _answer(hook: Hook[Any, Any], event: object) -> object:
    answer = hook(event)
    return await answer if inspect.isawaitable(answer) else answer


def _named(hook: object) -> str:
    return getattr(hook, "__qualname__", type(hook).__qualname__)
