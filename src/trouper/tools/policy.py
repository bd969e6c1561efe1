"""Who may call what (T4), as pure functions: permission comes from code, never from text.

    rules = [deny("delete_file", when=lambda arguments: arguments.get("recursive")), ask("run_command"), allow("*")]

Rules for a tool by name come before those for `*`, and among each deny before ask before allow; their order in the list does not matter. A list that matches
nothing denies. No list at all leaves it to the tool's own policy.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

import orjson
from attrs import field

from trouper._errors import ConfigError
from trouper.core.messages import Json
from trouper.core.values import changed, frozen
from trouper.foreign import Redact, chain_of
from trouper.tools.contract import Tool, can_be_named
from trouper.tools.hooks import Allow, Deny, Rewrite
from trouper.tools.structure import fresh

Effect: TypeAlias = Literal["allow", "deny", "ask"]
When: TypeAlias = Callable[[Mapping[str, Json]], object]

_log = logging.getLogger(__name__)
_UNEXPLAINED = "Permission was denied by policy."
#: The order in which effects are looked for.
_ORDER: tuple[Effect, ...] = ("deny", "ask", "allow")


def _checked_effect(rule: Rule, attribute: object, effect: str) -> None:
    if effect not in _ORDER:
        raise ConfigError(f"a rule for {rule.tool!r} says {effect!r}; use 'allow', 'deny' or 'ask'", rule=effect)


def _checked_when(rule: Rule, attribute: object, when: When | None) -> None:
    if when is not None and not callable(when):
        raise ConfigError(
            f"a rule for {rule.tool!r} has when={when!r}; give a function of the arguments, or leave it out"
        )
    # What an async function or a generator returns is true whatever it would say. Of an object: by what calling it runs.
    for call in (when, type(when).__call__):
        if inspect.iscoroutinefunction(call):
            raise ConfigError(
                f"the predicate of a rule for {rule.tool!r} is async; give a plain function, or use a hook"
            )
        if inspect.isgeneratorfunction(call) or inspect.isasyncgenfunction(call):
            raise ConfigError(
                f"the predicate of a rule for {rule.tool!r} is a generator; give a plain function without `yield`"
            )


def _checked_reason(rule: Rule, attribute: object, reason: Any) -> None:
    if not isinstance(reason, str):
        raise ConfigError(f"a rule for {rule.tool!r} has reason={reason!r}; say in text why, or leave it out")


def _checked_tool(rule: Rule, attribute: object, tool: Any) -> None:
    if not isinstance(tool, str) or not tool:
        raise ConfigError(f"a rule is for tool={tool!r}; give the name of a tool as text, or '*' for every tool")
    if tool != "*" and not can_be_named(tool):
        # It would be for no tool at all, and guard nothing.
        only = "only '*' by itself is a pattern, for every tool" if "*" in tool else "no tool can be named so"
        raise ConfigError(f"a rule is for tool={tool!r}, but {only}; give each tool that you mean a rule, by its name")


@frozen
class Rule:
    """One line of a policy list."""

    #: The name of a tool, or `*` for every tool; there are no other patterns.
    tool: str = field(validator=_checked_tool)
    effect: Effect = field(validator=_checked_effect)
    #: Whether the rule applies to these arguments; `None`: to all.
    when: When | None = field(default=None, validator=_checked_when)
    #: For the model to read, if the rule denies.
    reason: str = field(default="", validator=_checked_reason)

    def matches(self, tool: str, arguments: Mapping[str, Json], redact: Redact = str) -> bool:
        """Whether the rule applies to this call; a predicate that raises is read the cautious way. `redact`: for what is logged of it."""
        if self.tool not in (tool, "*"):
            return False
        if self.when is None:
            return True
        try:
            # A copy: a predicate judges the arguments that were checked, and changes nothing.
            return _answered(self.when(fresh(dict(arguments))))
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # A plain function: nothing else that it raises comes from outside.
            # To fail closed is to match, unless the rule would allow.
            told = chain_of(raised, redact)
            _log.error("the predicate of a rule for %r raised; the cautious reading holds: %s", self.tool, told)
            return self.effect != "allow"


def _answered(said: object) -> bool:
    """Yes or no, as everywhere in Python: a text, a match or a list that may be empty will do. What is true whatever it holds was not meant as an answer."""
    kind = type(said).__name__
    if inspect.isawaitable(said):
        raise TypeError(
            f"the predicate returned a {kind}, which is to be awaited; give a plain function, or use a hook"
        )
    if isinstance(said, Iterator | AsyncIterable) or (isinstance(said, Iterable) and _is_always_true(said)):
        raise TypeError(f"the predicate returned a {kind}, of which nothing was read; put any() or all() around it")
    if said is NotImplemented or isinstance(said, BaseException | Allow | Deny | Rewrite):
        raise TypeError(f"the predicate returned a {kind}, which says neither yes nor no; return True or False")
    if callable(said) and _is_always_true(said):
        raise TypeError(f"the predicate returned a {kind}, which was not called; put () behind it")
    return bool(said)


def _is_always_true(value: object) -> bool:
    return not (hasattr(type(value), "__bool__") or hasattr(type(value), "__len__"))


def allow(tool: str, when: When | None = None) -> Rule:
    return Rule(tool, "allow", when)


def deny(tool: str, when: When | None = None, reason: str = "") -> Rule:
    return Rule(tool, "deny", when, reason)


def ask(tool: str, when: When | None = None) -> Rule:
    return Rule(tool, "ask", when)


@frozen
class Decision:
    effect: Effect
    #: What the model is told if the call is denied.
    reason: str = ""
    #: The rule that decided; `None` if it was the tool's own policy, or that nothing matched.
    rule: Rule | None = None


_ALLOW, _ASK = Decision("allow"), Decision("ask")


def explain_policy(
    tool: Tool,
    arguments: Mapping[str, Json],
    rules: Sequence[Rule] = (),
    *,
    can_ask: bool = True,
    always: Sequence[str] = (),
    redact: Redact = str,
) -> Decision:
    """What is to become of a call, and why. `always`: the tools that a user has approved for the whole session."""
    if rules:
        decision = _listed(tool, arguments, rules, redact)
    else:
        # A tool of the client's is the client's to refuse.
        decision = _ASK if tool.policy == "requires_approval" else _ALLOW
    if decision.effect == "ask":
        if tool.name in always:
            return changed(decision, effect="allow")
        if not can_ask:
            return Decision("deny", "This call needs an approval, and nobody is there to give it.", decision.rule)
    return decision


def decide_policy(tool: Tool, arguments: Mapping[str, Json], rules: Sequence[Rule] = ()) -> Effect:
    """The effect alone, before anybody is asked."""
    return explain_policy(tool, arguments, rules).effect


def _listed(tool: Tool, arguments: Mapping[str, Json], rules: Sequence[Rule], redact: Redact) -> Decision:
    for name in (tool.name, "*"):
        for effect in _ORDER:
            for rule in rules:
                if rule.effect == effect and rule.tool == name and rule.matches(tool.name, arguments, redact):
                    reason = (rule.reason if rule.reason.strip() else _UNEXPLAINED) if effect == "deny" else ""
                    return Decision(effect, reason, rule)
    return Decision("deny", "Permission was denied: no rule allows this call.")


# Approvals.


def arguments_digest(tool: str, arguments: Json) -> str:
    """What an approval binds to: the tool and its exact arguments, whatever the order of their keys."""
    return hashlib.sha256(orjson.dumps([tool, arguments], option=orjson.OPT_SORT_KEYS)).hexdigest()


@frozen
class Approval:
    """Somebody's yes. Once: for one call with these very arguments, until it lapses. Always: for this tool, in this session."""

    tool: str
    digest: str
    #: Seconds since the epoch.
    expires_at: float
    always: bool = False
    by: str = ""


@frozen
class Approvals:
    """The approvals of one session, as a value. Each is used once; silence is never one."""

    pending: tuple[Approval, ...] = ()
    always: tuple[str, ...] = ()

    def granted(self, approval: Approval) -> Approvals:
        """With one more approval."""
        if approval.always:
            return self if approval.tool in self.always else changed(self, always=(*self.always, approval.tool))
        return changed(self, pending=(*self.pending, approval))

    def used(self, tool: str, arguments: Json, at: float) -> tuple[bool, Approvals]:
        """Whether this call is approved now, and the approvals that are left. Those that have lapsed are gone either way."""
        live = tuple(each for each in self.pending if at < each.expires_at)
        if tool in self.always:
            return True, changed(self, pending=live)
        digest = arguments_digest(tool, arguments)
        for index, each in enumerate(live):
            if each.tool == tool and each.digest == digest:
                return True, changed(self, pending=live[:index] + live[index + 1 :])
        return False, changed(self, pending=live)

    def revoked(self, tool: str) -> Approvals:
        """Without any approval for this tool."""
        return Approvals(
            tuple(each for each in self.pending if each.tool != tool),
            tuple(name for name in self.always if name != tool),
        )
