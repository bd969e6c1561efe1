"""Before a call may run: parse and repair its arguments, look up the tool, ask policies and hooks (L16-L20, T4, T5).

Everything here happens before the reply is journaled, so that history, events and tool see one and the same arguments. Nothing here runs a tool.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Mapping, Sequence
from typing import Literal, Protocol, TypeAlias

from trouper import checks
from trouper.actors.draft import OpenCall
from trouper.actors.tool_call import INTERNAL
from trouper.core.calls import Preparation
from trouper.core.messages import Json, Outcome
from trouper.core.session import State
from trouper.core.settings import Budget, Limits
from trouper.core.values import changed
from trouper.foreign import chain_of, from_outside
from trouper.tools.arguments import Parsed, guarded, parse_arguments
from trouper.tools.contract import Prepared, Tool
from trouper.tools.errors import InvalidArguments, ToolError
from trouper.tools.hooks import Hooks
from trouper.tools.policy import Rule, explain_policy
from trouper.tools.registry import Registry
from trouper.tools.structure import fresh

#: Of a call that is half-built (L13): to close its brackets and run it would be to write half a file, or to forget what was to be left alone.
BROKE_OFF = (
    "Your reply reached its longest length while you wrote this call, so its arguments are incomplete, and nothing was run."
    " Make the call again with less in it, or make several smaller ones."
)

#: The same where the model thinks that it was done.
HALF_A_VALUE = "The arguments of this call end in the middle of a value, and nothing was run. Make the call again, with complete arguments."

_log = logging.getLogger(__name__)
_Allowed: TypeAlias = Literal["run", "ask", "hold"]

#: To a model that has a budget of none, was offered no tools, and calls one all the same.
NO_CALLS = "No tools may be called here. Answer without them."


class Caller(Protocol):
    """Whose call it is."""

    session: str
    #: Knows the tools that the user has approved once and for all.
    state: State

    @property
    def is_watched(self) -> bool:
        """Whether somebody watches who could approve; silence is never approval."""

    def redact_text(self, text: str) -> str: ...
    def redact_value(self, value: Json) -> Json: ...


class Preparer:
    """What calls are checked against: one for all sessions that work with the same."""

    __slots__ = ("_allowed", "_budget", "_hooks", "_limits", "_rules", "registry")

    def __init__(
        self, registry: Registry, rules: Sequence[Rule], hooks: Sequence[Hooks], limits: Limits, budget: Budget
    ) -> None:
        self.registry = registry
        self._rules = rules
        self._hooks = hooks
        self._limits = limits
        self._budget = budget
        #: What is made of an allowed call depends on its tool alone; so it is made once. By name, as a tool may be replaced by another.
        self._allowed: dict[tuple[str, _Allowed], tuple[Tool, Preparation]] = {}

    def prepare(
        self, call: OpenCall, caller: Caller, id: str = "", *, may_break_off: bool = False
    ) -> Awaitable[tuple[Json, Preparation]]:
        """Of a call that a model made: the arguments that everybody sees, and what is to become of it.

        `id`: what the call will be known as, for hooks. `may_break_off`: its reply ran out of room, and this is the last thing in it.
        """
        if self._budget.tool_calls == 0:
            return self._refuse(call)
        return self.judge(call, caller, id, may_break_off=may_break_off)

    async def _refuse(self, call: OpenCall) -> tuple[Json, Preparation]:
        """Before tool and hooks are asked: whatever they said, none may be called."""
        try:
            parsed = _parsed(call)
        except InvalidArguments:
            return {}, _refused(NO_CALLS, Outcome.DENIED)
        return _shown(parsed), _refused(NO_CALLS, Outcome.DENIED, parsed.notes)

    async def judge(
        self, call: OpenCall, caller: Caller, id: str = "", *, may_break_off: bool = False
    ) -> tuple[Json, Preparation]:
        """The same, whoever made it: a budget of none is for the model's calls."""
        tool = self.registry.get(call.name)
        may_break_off = may_break_off and call.arguments is None
        try:
            parsed = _parsed(call)
        except InvalidArguments as error:
            told = BROKE_OFF if may_break_off else str(error)
            return {}, _refused(told if tool is not None else self._unknown(call, caller))
        shown, notes = _shown(parsed), parsed.notes
        if tool is None:
            return shown, _refused(self._unknown(call, caller), notes=notes)
        if may_break_off and (parsed.cut_short or not "".join(call.buffer).strip()):
            return shown, _refused(BROKE_OFF, notes=notes)
        if parsed.cut_within and tool.hints.destructive:
            # Others run with what was repaired (L17): most that end so lack nothing but a bracket.
            return shown, _refused(HALF_A_VALUE, notes=notes)
        try:
            prepared = _fitted(tool, parsed, caller)
        except InvalidArguments as error:
            return shown, _refused(str(error), notes=notes)
        except BaseException as raised:
            return shown, _broken(tool, notes, raised, caller)
        arguments, notes = prepared.arguments, prepared.notes
        for hook in self._hooks:
            verdict = await hook.ask_before_tool(caller.session, tool, arguments, id, caller.redact_text)
            if verdict.denied is not None:
                return arguments, _refused(checks.brief(verdict.denied, caller.redact_text), Outcome.DENIED, notes)
            if verdict.rewritten is not None:
                try:
                    prepared = _fitted(tool, guarded(verdict.rewritten), caller)
                except InvalidArguments as error:
                    return arguments, _refused(
                        f"A hook rewrote the arguments and made them invalid: {error}", Outcome.DENIED, notes
                    )
                except BaseException as raised:
                    return arguments, _broken(tool, notes, raised, caller)
                arguments, notes = prepared.arguments, (*notes, "rewritten by a hook", *prepared.notes)
        return arguments, self._by_policy(tool, arguments, notes, caller)

    def _unknown(self, call: OpenCall, caller: Caller) -> str:
        return self.registry.unknown(caller.redact_text(call.name))

    def is_denied(self, tool: Tool, arguments: Json) -> bool:
        """Whether the policy of today would refuse what an earlier process was allowed to begin. What somebody approved then is approved still."""
        known = arguments if isinstance(arguments, Mapping) else {}
        return bool(self._rules) and explain_policy(tool, known, self._rules).effect == "deny"

    def _by_policy(self, tool: Tool, arguments: Json, notes: tuple[str, ...], caller: Caller) -> Preparation:
        decision = explain_policy(tool, arguments, self._rules, redact=caller.redact_text)
        if decision.effect == "deny":
            told = checks.brief(decision.reason or "Permission was denied by policy.", caller.redact_text)
            return _refused(told, Outcome.DENIED, notes)
        if decision.effect == "ask" and tool.name not in caller.state.always:
            if not caller.is_watched:
                return _refused("This call needs an approval, and nobody is there to give it.", Outcome.DENIED, notes)
            return self._allowance(tool, notes, "ask")
        return self._allowance(tool, notes, "hold" if tool.policy == "client_side" else "run")

    def _allowance(self, tool: Tool, notes: tuple[str, ...], verdict: _Allowed) -> Preparation:
        made_for, allowed = self._allowed.get((tool.name, verdict), (None, None))
        if allowed is None or made_for is not tool:
            client_side = tool.policy == "client_side"
            budget_s = tool.budget_s if tool.budget_s is not None else self._budget.inline_s
            allowed = Preparation(
                verdict=verdict,
                client_side=client_side and verdict == "ask",
                answer_s=self._answer_s(tool) if client_side else None,
                side_effect=tool.side_effect,
                budget_s=budget_s if tool.supports_background else None,
                timeout_s=tool.timeout_s,
                concurrency_class=tool.concurrency_class if self._limits.parallel_tool_calls else "one at a time",
            )
            self._allowed[tool.name, verdict] = tool, allowed
        return changed(allowed, notes=notes) if notes else allowed

    def _answer_s(self, tool: Tool) -> float | None:
        """How long the host may take for a call of this tool. Of a tool's own time-out 0 means never, as for those that we run."""
        return self._limits.answer_s if tool.timeout_s is None else tool.timeout_s or None


def _parsed(call: OpenCall) -> Parsed:
    return parse_arguments("".join(call.buffer) if call.arguments is None else call.arguments)


def _fitted(tool: Tool, parsed: Parsed, caller: Caller) -> Prepared:
    """The arguments as the tool takes them. Of those that it does not take, the model is told how they begin; so the secrets are cut out first, as
    they are from what is recorded: half a secret would not be known as one (I36)."""
    try:
        return tool.fit(parsed)
    except InvalidArguments:
        return tool.fit(changed(parsed, value=caller.redact_value(parsed.value)))


def _shown(parsed: Parsed) -> Json:
    """History keeps an object, whatever came: providers take nothing else back."""
    return parsed.value if isinstance(parsed.value, dict) else {}


def _refused(told: str, outcome: Outcome = Outcome.ERROR, notes: tuple[str, ...] = ()) -> Preparation:
    return Preparation(verdict="refuse", outcome=outcome, content=told, notes=notes)


def _broken(tool: Tool, notes: tuple[str, ...], raised: BaseException, caller: Caller) -> Preparation:
    """For a call that cannot even be checked: the tool's schema is none, or a class of its parameters raises what says nothing about the arguments (L20)."""
    if (outside := from_outside(raised)) is not None:
        raise outside from None
    told = chain_of(raised, caller.redact_text)
    _log.error("the arguments of tool %r could not be checked; the call is refused: %s", tool.name, told)
    return _refused(INTERNAL, notes=notes)


async def admitted(preparer: Preparer, caller: Caller, name: str, arguments: Json) -> tuple[Json, Tool]:
    """A tool and its arguments for a run that no model call started directly: checked as a call's are, since it does the same things. Else `ToolError` (B6)."""
    tool = preparer.registry.get(name)
    if tool is None:
        raise ToolError(preparer.registry.unknown(name))
    if not tool.supports_background:
        able = ", ".join(each.name for each in preparer.registry if each.supports_background) or "none"
        raise ToolError(f"{name!r} cannot run in the background; call it directly. Tools that can: {able}.")
    open_call = OpenCall(name, None, None)
    open_call.arguments = arguments
    fitting, prepared = await preparer.judge(open_call, caller)
    match prepared.verdict:
        case "run":
            # A copy: whoever gave them may go on changing them, and what runs is what was recorded (I10).
            return fresh(fitting), tool
        case "refuse":
            raise ToolError(prepared.content if isinstance(prepared.content, str) else f"{name!r} was refused.")
        case "hold":
            raise ToolError(
                f"{name!r} is for the application to carry out, and cannot run in the background; call it directly"
            )
        case _:
            raise ToolError(
                f"{name!r} needs an approval for each call, which a background run cannot ask for; call it directly"
            )
