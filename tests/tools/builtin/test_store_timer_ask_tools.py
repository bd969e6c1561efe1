"""kv_store, secret_store, set_timer, ask_user and finish (T13, T16, B24)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tool_bench import Asked, Calendar, Store, call, context_at

from trouper.tools import InvalidArguments, Reply, ToolError
from trouper.tools.builtin import ask_user, finish, finish_with, kv_store, secret_store, set_timer
from trouper.tools.builtin import stores as stores_module


async def test_values_are_kept_by_key(tmp_path: Path) -> None:
    context = context_at(tmp_path, kv=Store())
    assert await call(kv_store, context, action="get", key="a") == {"key": "a", "found": False, "value": None}
    await call(kv_store, context, action="set", key="a", value={"n": [1, 2]})
    await call(kv_store, context, action="set", key="b", value=0)
    assert (await call(kv_store, context, action="get", key="a"))["value"] == {"n": [1, 2]}
    assert (await call(kv_store, context, action="get", key="b"))["found"] is True
    assert await call(kv_store, context, action="list") == {"keys": ["a", "b"]}
    assert (await call(kv_store, context, action="delete", key="a"))["deleted"] is True
    assert (await call(kv_store, context, action="delete", key="a"))["deleted"] is False


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"action": "get"}, "missing"),
        ({"action": "get", "key": "../x"}, "not a valid name"),
        ({"action": "set", "key": "a"}, "needs a value"),
        ({"action": "set", "key": "a", "value": "x" * 70_000}, "bytes of JSON"),
    ],
)
async def test_wrong_use_of_the_store_is_an_error(arguments: dict[str, Any], said: str, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=said):
        await call(kv_store, context_at(tmp_path, kv=Store()), **arguments)


async def test_store_has_a_last_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores_module, "KEYS_MAX", 2)
    context = context_at(tmp_path, kv=Store(a=1, b=2))
    await call(kv_store, context, action="set", key="b", value=3)
    with pytest.raises(ToolError, match="which is its limit"):
        await call(kv_store, context, action="set", key="c", value=3)


async def test_secrets_are_named_and_never_shown(tmp_path: Path) -> None:
    """B24: values never reach the model, by whatever action."""
    context = context_at(tmp_path, secrets=Store(github="ghp_secret"))
    told = [
        await call(secret_store, context, action="list"),
        await call(secret_store, context, action="exists", name="github"),
        await call(secret_store, context, action="exists", name="other"),
        await call(secret_store, context, action="delete", name="github"),
        await call(secret_store, context, action="list"),
    ]
    assert told[0] == {"names": ["github"]}
    assert (told[1]["exists"], told[2]["exists"], told[3]["deleted"]) == (True, False, True)
    assert told[4] == {"names": []}
    assert "ghp_secret" not in repr(told)
    for action in ("get", "set"):
        with pytest.raises(InvalidArguments):
            await call(secret_store, context, action=action, name="github")


async def test_timer_is_a_schedule_that_fires_once(tmp_path: Path) -> None:
    calendar = Calendar()
    told = await call(set_timer, context_at(tmp_path, schedules=calendar), delay_s=90, message="look again")
    assert told == {"fires_at": "2026-03-29T01:01:00+00:00", "schedule": {"id": "schedule_1"}}
    assert calendar.made[0]["at"] == "2026-03-29T01:01:00+00:00"
    assert calendar.made[0]["message"] == "look again"
    with pytest.raises(InvalidArguments):
        await call(set_timer, context_at(tmp_path, schedules=calendar), delay_s=0, message="x")


async def test_user_is_asked_and_answers_in_order(tmp_path: Path) -> None:
    """T16."""
    user = Asked(Reply("answered", ("red", "secret:token")))
    told = await call(
        ask_user,
        context_at(tmp_path, asker=user),
        questions=[{"text": "Colour?", "choices": ["red", "blue"]}, {"text": "Token?", "secret": True}],
        timeout_s=60,
    )
    assert told["answers"] == [
        {"question": "Colour?", "answer": "red"},
        {"question": "Token?", "answer": "secret:token"},
    ]
    assert user.timeout_s == 60
    assert user.questions[1].secret


@pytest.mark.parametrize("status", ["declined", "timed_out"])
async def test_user_who_does_not_answer_is_told_as_such(status: Any, tmp_path: Path) -> None:
    told = await call(ask_user, context_at(tmp_path, asker=Asked(Reply(status))), questions=[{"text": "Sure?"}])
    assert told == {"status": status}


@pytest.mark.parametrize(
    "question",
    [
        {"text": "?", "multiple": True},
        {"text": "?", "secret": True, "choices": ["a", "b"]},
        {"text": "?", "choices": ["only"]},
        {"text": "?", "choices": ["a", "a "]},
        {"text": "?", "choices": ["a", " "]},
    ],
)
async def test_question_that_cannot_be_answered_is_an_error(question: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="question 1"):
        await call(ask_user, context_at(tmp_path, asker=Asked(Reply("answered", ("x",)))), questions=[question])


@pytest.mark.parametrize("count", [0, 5])
async def test_one_to_four_questions_are_asked(count: int, tmp_path: Path) -> None:
    with pytest.raises(InvalidArguments):
        await call(ask_user, context_at(tmp_path), questions=[{"text": "?"}] * count)


async def test_finish_hands_over_what_fits_the_schema() -> None:
    assert await call(finish, result=[1, 2], summary="Done.") == {"result": [1, 2], "summary": "Done."}
    shaped = finish_with({"type": "object", "properties": {"total": {"type": "number"}}, "required": ["total"]})
    assert await call(shaped, result={"total": 4}) == {"result": {"total": 4}}
    with pytest.raises(InvalidArguments):
        await call(shaped, result={"sum": 4})
