"""T4: who may call what."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import attrs
import pytest

from trouper._errors import ConfigError, UsageError
from trouper.tools import Approval, Approvals, Rule, arguments_digest, decide_policy, explain_policy, tool
from trouper.tools.hooks import Deny
from trouper.tools.policy import allow, ask, deny


@tool
async def delete(path: str, recursive: bool = False) -> None: ...


careful = delete.with_(policy="requires_approval")
clients = delete.with_(policy="client_side")


def recursive(arguments: Mapping[str, Any]) -> bool:
    return bool(arguments["recursive"])


def test_without_a_list_the_tools_own_policy_holds() -> None:
    assert decide_policy(delete, {}) == "allow"
    assert decide_policy(careful, {}) == "ask"
    assert decide_policy(clients, {}) == "allow"


def test_list_is_over_the_tools_own_policy() -> None:
    assert decide_policy(careful, {}, [allow("delete")]) == "allow"
    assert decide_policy(delete, {}, [ask("delete")]) == "ask"
    assert decide_policy(clients, {}, [deny("*")]) == "deny"


def test_list_that_matches_nothing_denies() -> None:
    assert decide_policy(delete, {}, [allow("other")]) == "deny"
    assert explain_policy(delete, {}, [allow("other")]).reason == "Permission was denied: no rule allows this call."
    assert decide_policy(delete, {"recursive": False}, [allow("delete", when=recursive)]) == "deny"


def test_precedence_is_specific_deny_ask_allow_then_wildcard() -> None:
    """T4: whatever the order of the list."""
    ranked = [deny("delete"), ask("delete"), allow("delete"), deny("*"), ask("*"), allow("*")]
    for order, first in itertools.product(itertools.permutations(range(6)), range(6)):
        rules = [ranked[index] for index in order if index >= first]
        assert decide_policy(delete, {}, rules) == ranked[first].effect


def test_predicate_sees_the_arguments() -> None:
    rules = [deny("delete", when=recursive, reason="Not whole trees."), allow("*")]
    assert decide_policy(delete, {"recursive": True}, rules) == "deny"
    assert explain_policy(delete, {"recursive": True}, rules).reason == "Not whole trees."
    assert explain_policy(delete, {}, [deny("delete", reason=" \n")]).reason == "Permission was denied by policy."
    assert decide_policy(delete, {"recursive": False}, rules) == "allow"


def test_predicate_that_raises_fails_closed() -> None:
    assert decide_policy(delete, {}, [deny("delete", when=recursive), allow("*")]) == "deny"
    assert decide_policy(delete, {}, [ask("delete", when=recursive), allow("*")]) == "ask"
    assert decide_policy(delete, {}, [allow("delete", when=recursive), ask("*")]) == "ask"


def test_rule_with_an_unknown_effect_is_refused() -> None:
    with pytest.raises(ConfigError, match="use 'allow', 'deny' or 'ask'"):
        Rule("delete", "maybe")  # type: ignore[arg-type]


def test_ask_without_anyone_to_ask_denies() -> None:
    decision = explain_policy(careful, {}, can_ask=False)
    assert decision.effect == "deny"
    assert "nobody is there" in decision.reason


def test_always_is_per_tool_and_does_not_beat_a_deny() -> None:
    assert explain_policy(careful, {}, always=("delete",), can_ask=False).effect == "allow"
    assert explain_policy(careful, {}, always=("other",)).effect == "ask"
    assert explain_policy(careful, {}, [deny("*")], always=("delete",)).effect == "deny"


# Approvals.


def test_approval_binds_to_the_exact_arguments() -> None:
    arguments = {"path": "a", "recursive": False}
    approvals = Approvals().granted(Approval("delete", arguments_digest("delete", arguments), expires_at=100))
    assert approvals.used("delete", {"recursive": False, "path": "a"}, at=1)[0]
    assert not approvals.used("delete", {"path": "a", "recursive": True}, at=1)[0]
    assert not approvals.used("delete", {"path": "a"}, at=1)[0]
    assert not approvals.used("other", arguments, at=1)[0]


def test_digest_tells_types_apart() -> None:
    digests = {arguments_digest("t", {"x": value}) for value in (1, "1", True, 1.5, None, [], {}, "", "a")}
    assert len(digests) == 9
    assert arguments_digest("t", {"x": 1}) != arguments_digest("u", {"x": 1})


def test_approval_is_used_once() -> None:
    approval = Approval("delete", arguments_digest("delete", {}), expires_at=100)
    approved, left = Approvals().granted(approval).granted(approval).used("delete", {}, at=1)
    assert approved
    approved, left = left.used("delete", {}, at=1)
    assert approved
    approved, left = left.used("delete", {}, at=1)
    assert not approved
    assert left == Approvals()


def test_approval_lapses() -> None:
    approvals = Approvals().granted(Approval("delete", arguments_digest("delete", {}), expires_at=100))
    assert approvals.used("delete", {}, at=99.9)[0]
    approved, left = approvals.used("delete", {}, at=100)
    assert not approved
    assert left.pending == ()


def test_always_lasts_until_it_is_revoked() -> None:
    always = Approval("delete", "", expires_at=0, always=True)
    approvals = Approvals().granted(always).granted(always)
    assert approvals.always == ("delete",)
    approved, approvals = approvals.used("delete", {"any": 1}, at=1e12)
    assert approved
    assert approvals.used("delete", {}, at=1)[0]
    assert not approvals.used("other", {}, at=1)[0]
    assert approvals.revoked("delete") == Approvals()


def test_a_predicate_changes_nothing_of_what_it_judges() -> None:
    """T4, T5: what runs is what was checked; only a hook may rewrite, and its rewrite is checked again."""
    arguments: dict[str, Any] = {"path": "a", "deep": [1]}

    def meddle(given: Any) -> bool:
        given["path"] = "/etc/passwd"
        given["deep"].append(2)
        return True

    assert decide_policy(delete, arguments, [allow("delete", when=meddle)]) == "allow"
    assert arguments == {"path": "a", "deep": [1]}


async def never(arguments: Mapping[str, Any]) -> bool:
    return False


@pytest.mark.parametrize("name", ["wip*", "**", "*_file", "wipe ", "wipe?", "files.*", "2wipe"])
def test_a_rule_for_a_name_that_no_tool_can_have_is_refused(name: str) -> None:
    """T4: what looks like a pattern would be for no tool, and a deny() with it would leave the call to `allow("*")`."""
    told = "only '*' by itself is a pattern" if "*" in name else "no tool can be named so"
    with pytest.raises(UsageError, match=re.escape(f"a rule is for tool={name!r}, but {told}")):
        deny(name)


class Never:
    async def __call__(self, arguments: Mapping[str, Any]) -> bool:
        return False


def yielding(arguments: Mapping[str, Any]) -> Iterator[bool]:
    yield False


async def later_yielding(arguments: Mapping[str, Any]) -> AsyncIterator[bool]:
    yield False


class Yielding:
    def __call__(self, arguments: Mapping[str, Any]) -> Iterator[bool]:
        yield False


class LaterYielding:
    async def __call__(self, arguments: Mapping[str, Any]) -> AsyncIterator[bool]:
        yield False


@pytest.mark.parametrize(
    "when",
    [never, Never(), "recursive", yielding, later_yielding, Yielding(), LaterYielding(), functools.partial(yielding)],
)
def test_a_predicate_that_could_not_answer_is_refused_at_once(when: Any) -> None:
    """Security: a coroutine or a generator is true, whatever it would say; a rule with one would allow everything."""
    with pytest.raises(ConfigError, match=r"plain function|function of the arguments"):
        allow("delete", when=when)


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_an_answer_that_has_to_be_awaited_is_none() -> None:
    def later(arguments: Mapping[str, Any]) -> Any:
        return never(arguments)

    assert decide_policy(delete, {}, [allow("delete", when=later)]) == "deny"
    assert decide_policy(delete, {}, [deny("delete", when=later), allow("*")]) == "deny"


class Rows:
    """To be read, and of a length that nobody knows before: true also without any."""

    def __iter__(self) -> Iterator[str]:
        return iter(())


@pytest.mark.parametrize(
    "said",
    [
        (part == "tmp" for part in ("etc", "passwd")),
        map(str.isdigit, "etc"),
        filter(str.isdigit, "etc"),
        zip("etc", "tmp", strict=True),
        iter(()),
        Rows(),
        later_yielding({}),
        "etc".isdigit,
        lambda: False,
        never,
        Never,
        Deny("Not on a Friday."),
        PermissionError("no"),
        "etc".__lt__(3),  # type: ignore[operator]
    ],
)
def test_an_answer_that_is_true_whatever_it_holds_is_none(said: object) -> None:
    """Security: `any()` or `all()` was left out around it, or `()` behind it; or it is the answer of a hook, or an error that was to be raised."""

    def when(arguments: Mapping[str, Any]) -> object:
        return said

    assert decide_policy(delete, {}, [allow("delete", when=when)]) == "deny"
    assert decide_policy(delete, {}, [deny("delete", when=when), allow("*")]) == "deny"


@attrs.frozen
class Row:
    owner: str = "ada"


@pytest.mark.parametrize(
    ("said", "holds"),
    [
        (re.match("/tmp/", "/tmp/a"), True),
        (re.match("/tmp/", "/etc"), False),
        ("tmp", True),
        ("", False),
        ({"tmp"}, True),
        (set(), False),
        (range(0), False),
        ({}.keys(), False),
        (Row(), True),
        (None, False),
        (0, False),
    ],
)
def test_an_answer_may_be_whatever_is_true_or_not(said: object, holds: bool) -> None:
    """T4: as in Python's own `if`."""
    assert decide_policy(delete, {}, [allow("delete", when=lambda arguments: said)]) == ("allow" if holds else "deny")
