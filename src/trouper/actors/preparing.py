"""Before a call may run: parse and repair its arguments, look up the tool, ask policies and hooks (L16-L20, T4, T5).

Everything here happens before the reply is journaled, so that history, events and tool see one and the same arguments. Nothing here runs a tool.
"""

from __future__ import annotations

from collections.abc import Sequence

from trouper.actors.draft import OpenCall
from trouper.core.calls import Preparation
from trouper.core.messages import Json, Outcome
from trouper.core.settings import Budget, Limits
from trouper.core.values import frozen
from trouper.tools.arguments import parse_arguments
from trouper.tools.contract import Tool
from trouper.tools.errors import InvalidArguments, ToolError
from trouper.tools.hooks import Hooks
from trouper.tools.policy import Rule, explain_policy
from trouper.tools.registry import Registry


@frozen
class Preparer:
    """What a session's calls are checked against. Cheap to make; one per step."""

    session: str
    registry: Registry
    rules: Sequence[Rule]
    hooks: Sequence[Hooks]
    limits: Limits
    budget: Budget
    #: Tools that the user has approved once and for all in this session.
    always: tuple[str, ...] = ()
    #: Whether somebody watches who could approve; silence is never approval.
    can_ask: bool = False

    async def prepare(self, call: OpenCall) -> tuple[Json, Preparation]:
        """The arguments that everybody sees, and what is to become of the call."""
        tool = self.registry.get(call.name)
        try:
            parsed = parse_arguments("".join(call.buffer) if call.arguments is None else call.arguments)
        except InvalidArguments as error:
            return {}, _refused(str(error) if tool is not None else self.registry.unknown(call.name))
        arguments, notes = parsed.value, parsed.notes
        # History keeps an object, whatever came: providers take nothing else back.
        shown = arguments if isinstance(arguments, dict) else {}
        if tool is None:
            return shown, _refused(self.registry.unknown(call.name), notes=notes)
        try:
            prepared = tool.prepare(arguments)
        except InvalidArguments as error:
            return shown, _refused(str(error), notes=notes)
        arguments, notes = prepared.arguments, (*notes, *prepared.notes)
        for hook in self.hooks:
            verdict = await hook.ask_before_tool(self.session, tool, arguments)
            if verdict.denied is not None:
                return arguments, _refused(verdict.denied, Outcome.DENIED, notes)
            if verdict.rewritten is not None:
                try:
                    prepared = tool.prepare(verdict.rewritten)
                except InvalidArguments as error:
                    return arguments, _refused(
                        f"A hook rewrote the arguments and made them invalid: {error}", Outcome.DENIED, notes
                    )
                arguments, notes = prepared.arguments, (*notes, "rewritten by a hook", *prepared.notes)
        return arguments, self._judged(tool, arguments, notes)

    def _judged(self, tool: Tool, arguments: Json, notes: tuple[str, ...]) -> Preparation:
        decision = explain_policy(tool, arguments, self.rules)
        if decision.effect == "deny":
            return _refused(decision.reason or "Permission was denied by policy.", Outcome.DENIED, notes)
        if decision.effect == "ask" and tool.name not in self.always:
            if not self.can_ask:
                return _refused("This call needs an approval, and nobody is there to give it.", Outcome.DENIED, notes)
            return self._allowed(tool, notes, "ask")
        return self._allowed(tool, notes, "hold" if tool.policy == "client_side" else "run")

    def _allowed(self, tool: Tool, notes: tuple[str, ...], verdict: str) -> Preparation:
        spills = tool.supports_background
        budget_s = tool.budget_s if tool.budget_s is not None else self.budget.inline_s
        return Preparation(
            verdict=verdict,  # type: ignore[arg-type]
            side_effect=tool.side_effect,
            budget_s=budget_s if spills else None,
            timeout_s=tool.timeout_s,
            concurrency_class=tool.concurrency_class if self.limits.parallel_tool_calls else "one at a time",
            notes=notes,
        )


def _refused(told: str, outcome: Outcome = Outcome.ERROR, notes: tuple[str, ...] = ()) -> Preparation:
    return Preparation(verdict="refuse", outcome=outcome, content=told, notes=notes)


async def admitted(preparer: Preparer, name: str, arguments: Json) -> tuple[Json, Tool]:
    """A tool and its arguments for a run that no model call started directly: checked as a call's are, since it does the same things. Else `ToolError` (B6)."""
    tool = preparer.registry.get(name)
    if tool is None:
        raise ToolError(preparer.registry.unknown(name))
    if not tool.supports_background:
        able = ", ".join(each.name for each in preparer.registry if each.supports_background) or "none"
        raise ToolError(f"{name!r} cannot run in the background; call it directly. Tools that can: {able}.")
    open_call = OpenCall(name, None, None)
    open_call.arguments = arguments
    fitting, prepared = await preparer.prepare(open_call)
    match prepared.verdict:
        case "run":
            return fitting, tool
        case "refuse":
            raise ToolError(prepared.content if isinstance(prepared.content, str) else f"{name!r} was refused.")
        case _:
            raise ToolError(
                f"{name!r} needs an approval for each call, which a background run cannot ask for; call it directly"
            )
