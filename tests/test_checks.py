"""What hosts, hooks and tools hand in is bounded: cut, where it must not be refused; else refused by name."""

from __future__ import annotations

from typing import Any

import pytest
import trio
import trio.testing

from trouper import Hooks, Limits, ToolContext, UsageError, tool
from trouper.checks import MESSAGE_MAX, REASON_MAX, brief
from trouper.core.notification import BODY_MAX_CHARS
from trouper.models import ModelFault, Scripted, call, fail, reply
from trouper.tools import Deny
from trouper.tools.context import Question
from trouper.tools.policy import ask, deny

LONG = "reason " * 150_000
KEY = "sk-proj-" + "a1B2" * 12


def test_what_is_cut_is_cut_after_its_secrets_are() -> None:
    """I36: half a secret would not be known as one."""
    said = "x" * (REASON_MAX - 70) + KEY + "x" * 100
    told = brief(said, lambda text: text.replace(KEY, "[cut]"))
    assert "sk-" not in told and len(told) <= REASON_MAX and told.endswith(" more characters]")
    assert brief("short", str.upper) == "short"


@tool(background=True)
async def act(context: ToolContext) -> str:
    """Acts, and says too much."""
    context.report_progress(1, 2, LONG, LONG)
    context.say(LONG)
    await trio.sleep(1.0)
    return "done"


def largest(journal: list[Any], kind: str) -> int:
    return max(len(str(record)) for record in journal if type(record.cause).__name__ == kind)


GUARDS: dict[str, dict[str, Any]] = {
    "a hook": {"hooks": [Hooks(before_tool=lambda event: Deny(LONG))]},
    "a policy": {"policies": [deny("act", reason=LONG)]},
    "somebody": {"policies": [ask("act")]},
}


@pytest.mark.parametrize("guard", GUARDS.values(), ids=GUARDS)
async def test_a_denial_is_told_to_the_model_in_bounds(autojump_clock: Any, open_checked: Any, guard: Any) -> None:
    """T4, T5: a reason of a megabyte went into the context as it was."""
    model = Scripted([reply(call("act")), reply("Well.")])
    async with open_checked(model, tools=[act], **guard) as runtime:
        session = await runtime.session("s")
        async with session.turn("go") as turn:
            async for _ in turn:
                if session.approvals:
                    await session.deny(session.approvals[0], LONG)
    (answer,) = model.requests[1].messages[-1].answers
    assert "reason reason" in answer.content and len(answer.content) <= REASON_MAX + 100


async def test_a_reason_is_cut_and_what_it_is_for_is_done(
    autojump_clock: Any, open_checked: Any, journal: list[Any]
) -> None:
    """L15, B5: nobody's interrupt is refused for its words."""
    async with open_checked(Scripted([reply("Noted.")], exhausted="repeat"), tools=[act]) as runtime:
        session = await runtime.session("s")
        async with session.turn("go"):
            await session.interrupt(LONG)
        await session.cancel((await session.spawn("act")).id, LONG)
        await session.notify(LONG, LONG)
        with session.notifications() as inbox:
            await session.requeue((await anext(inbox)).id, reason=LONG)
        await session.close(LONG)
    for kind in ("Interrupt", "CancelCall", "RequeueNotifications", "Close"):
        assert REASON_MAX / 2 < largest(journal, kind) < 4 * REASON_MAX
    assert largest(journal, "QueueNotification") < 8 * BODY_MAX_CHARS


async def test_a_run_that_says_too_much_is_recorded_in_bounds(
    autojump_clock: Any, open_checked: Any, journal: list[Any]
) -> None:
    """B8, B12."""
    async with open_checked(Scripted([reply("Noted.")]), tools=[act]) as runtime:
        session = await runtime.session("s")
        await session.wait_task((await session.spawn("act")).id)
        (task,) = session.tasks()
        (message,) = task.messages
        assert len(message.text) <= MESSAGE_MAX
    assert largest(journal, "ReportTaskProgress") < 10_000


async def test_an_error_of_a_model_is_recorded_in_bounds(
    autojump_clock: Any, open_checked: Any, journal: list[Any]
) -> None:
    """L11, L20: also each time that it is tried again."""
    model = Scripted([reply(fail(ModelFault(LONG)))])
    async with open_checked(model) as runtime:
        result = await (await runtime.session("s")).ask("go")
    assert result.error is not None and len(result.error.message) <= REASON_MAX
    assert max(len(str(record)) for record in journal) < 4 * REASON_MAX


async def test_names_and_messages_that_are_too_long_are_refused_by_name(autojump_clock: Any, open_checked: Any) -> None:
    @tool(background=True)
    async def asks(context: ToolContext) -> str:
        """Asks."""
        with pytest.raises(UsageError, match="a question has 1050000 characters"):
            await context.ask_user(Question(LONG))
        return str(await context.ask_user(Question("Why?")))

    async with open_checked(
        Scripted([reply("Noted.")], exhausted="repeat"), tools=[asks], limits=Limits(input_chars=1_000)
    ) as runtime:
        session = await runtime.session("s")
        task = await session.spawn("asks")
        await trio.testing.wait_all_tasks_blocked()
        (question,) = session.questions
        for refused in (
            lambda: session.approve("call", by=LONG),
            lambda: session.message_task(task.id, LONG),
            lambda: session.link_task(task.id, "order", LONG),
            lambda: session.notify("Ding", dedupe_key=LONG),
            lambda: session.create_schedule(title="x", message=LONG, at="2099-01-01T00:00:00Z"),
            lambda: session.create_schedule(title=LONG, message="x", at="2099-01-01T00:00:00Z"),
            lambda: session.answer_question(question.id, LONG),
            lambda: runtime.session("t", system=LONG * 4),
        ):
            with pytest.raises(UsageError, match=r"has (1050000|4200000) characters, and \d+ is the limit"):
                await refused()
        await session.answer_question(question.id, "Because.")
        await session.wait_task(task.id)


async def test_a_host_that_keeps_its_users_brief_may_have_a_long_system_prompt(
    autojump_clock: Any, open_checked: Any
) -> None:
    """L1: `Limits.input_chars` is about a prompt, and the system prompt is none."""
    model = Scripted([reply("Noted.")])
    async with open_checked(model, limits=Limits(input_chars=10)) as runtime:
        session = await runtime.session("s", system=LONG)
        assert (await session.ask("Hello.")).text == "Noted."
        with pytest.raises(UsageError, match=r"more than Limits\.input_chars=10"):
            await session.ask("Hello there.")
    assert model.requests[0].system == LONG
