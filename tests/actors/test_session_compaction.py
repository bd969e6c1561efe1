"""Compaction in a session (L24, L26-L34, I35): when, how cheaply, what is said, and that it never does harm."""

from __future__ import annotations

import pytest
import trio
from session_watch import names, recorded

from trouper import Budget, CommandRejected, Compaction, Deadlines, Limits, Usage, tool
from trouper.core.compaction import DROPPED_NOTE, HAND_OVER_PROMPT, SUMMARY_CLOSE, SUMMARY_OPEN
from trouper.core.events import (
    BudgetWarned,
    CompactionEnded,
    CompactionStarted,
    HistoryMasked,
    ModelFailed,
    RecoveryNoted,
    TurnEnded,
)
from trouper.core.history import History, problems
from trouper.core.session import State, evolve
from trouper.models import (
    AuthFailed,
    CallStart,
    ContextOverflow,
    Scripted,
    ServerFault,
    TextChunk,
    ThinkingChunk,
    UsageChunk,
    call,
    fail,
    reply,
    stall,
)

WORDS = "word " * 40  # 200 characters: 50 tokens
SMALL = Limits(compaction=Compaction(threshold=400, keep_pairs=2, min_messages=6))


def talk(count: int, **usage: int) -> list:
    return [reply(f"Answer {n}. {WORDS}", usage=Usage(**usage) if usage else None) for n in range(count)]


async def filled(session, count: int) -> None:
    for n in range(count):
        await session.ask(f"Question {n}. {WORDS}")


def summaries(model: Scripted) -> list:
    return [request for request in model.requests if request.purpose == "compaction"]


@pytest.mark.parametrize(
    ("policy", "window"),
    [
        (Compaction(threshold=400, keep_pairs=2, min_messages=6), None),
        (Compaction(share=0.5, keep_pairs=2, min_messages=6), 800),
        (Compaction(share=0.5, window=800, keep_pairs=2, min_messages=6), 10**6),
    ],
    ids=["threshold", "share of the window", "window overridden"],
)
async def test_it_sets_in_before_the_call_that_would_be_too_large(
    autojump_clock, open_checked, journal, policy, window
):
    """L26 (seed 004: compaction is invoked between steps)."""
    model = Scripted([*talk(4), reply("They asked four things."), reply("Here.")], context_window=window)
    async with open_checked(model, limits=Limits(compaction=policy)) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        assert not recorded(_so_far(runtime), CompactionStarted)
        assert (await session.ask("And now?")).text == "Here."
    (ended,) = recorded(journal, CompactionEnded)
    assert ended.how == "summary" and ended.tokens_after < ended.tokens_before
    assert (ended.messages_before, ended.messages_after) == (9, 5)
    sent = model.requests[-1].messages
    assert sent[0].kind == "summary" and "They asked four things." in sent[0].text
    assert [message.text for message in sent[1:]][-1] == "And now?"


async def test_it_is_off_when_neither_share_nor_threshold_is_known(autojump_clock, open_checked, journal):
    """L26: the default share needs a known window."""
    model = Scripted(talk(12))
    async with open_checked(model) as runtime:
        await filled(await runtime.session("s"), 12)
    assert not recorded(journal, CompactionStarted) and len(model.requests) == 12


async def test_reported_tokens_count_for_more_than_the_estimate(autojump_clock, open_checked, journal):
    """L26: anchored on the last reported input tokens."""
    model = Scripted(
        [
            *talk(4, input=50),
            reply("Done.", usage=Usage(input=50)),
            reply("Done.", usage=Usage(input=9_000)),
            reply("A summary."),
            reply("Here."),
        ]
    )
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        await session.ask("more")  # By our own estimate this is too large; the provider says that it is not.
        assert not recorded(_so_far(runtime), CompactionStarted)
        await session.ask("more")
        await session.ask("more")
    assert recorded(journal, CompactionStarted)[0].tokens_before > 9_000


async def test_old_results_are_masked_first_and_no_model_is_asked(autojump_clock, open_checked, journal):
    """L27: outside the last two user turns; if that is enough, no model call is made."""

    @tool(readonly=True)
    async def dump() -> str:
        """A lot of text."""
        return "x" * 12_000  # 3,000 tokens

    model = Scripted([reply(call("dump")), reply("Dumped."), reply("Two."), reply("Three.")])
    limits = Limits(compaction=Compaction(threshold=2_500, keep_pairs=2, min_messages=6))
    async with open_checked(model, tools=[dump], limits=limits) as runtime:
        session = await runtime.session("s")
        await session.ask("one")
        whole = session.history[2]
        await session.ask("two")
        assert session.history[2] == whole  # Within the last two user turns.
        await session.ask("three")
        masked = session.history[2]
    assert not summaries(model)
    assert masked.answers[0].call_id == whole.answers[0].call_id and "12000 characters" in masked.answers[0].content
    assert model.requests[-1].messages[2] == masked
    (event,) = recorded(journal, HistoryMasked)
    assert event.tokens_before - event.tokens_after > 2_000


async def test_masking_that_saves_too_little_is_not_done(autojump_clock, open_checked, journal):
    """L27: at least 2,000 tokens."""

    @tool(readonly=True)
    async def dump() -> str:
        """Some text."""
        return "x" * 6_000  # 1,500 tokens

    model = Scripted([reply(call("dump")), *talk(3), reply("A summary."), reply("Here.")])
    limits = Limits(compaction=Compaction(threshold=1_700, keep_pairs=1, min_messages=6))
    async with open_checked(model, tools=[dump], limits=limits) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
    assert not recorded(journal, HistoryMasked)
    assert summaries(model)


async def test_masking_that_saves_nothing_is_none_however_little_would_do(autojump_clock, open_checked, journal):
    """L27, L34, I35: a history without results was told to be masked before every model call, and by every `compact()`."""
    limits = Limits(compaction=Compaction(threshold=1, mask_min_saving=0))
    async with open_checked(Scripted(talk(2)), limits=limits) as runtime:
        session = await runtime.session("s")
        await filled(session, 2)
        assert await session.compact() is None
    assert not recorded(journal, HistoryMasked)


async def test_the_summary_is_asked_with_the_same_prefix_and_a_prompt_of_our_own(autojump_clock, open_checked):
    """L28: same system prompt and tools, so that the provider's cache serves."""

    @tool(readonly=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    model = Scripted([*talk(4), reply("A summary."), reply("Here.")])
    async with open_checked(model, tools=[look], limits=SMALL) as runtime:
        session = await runtime.session("s", system="Be brief.")
        await filled(session, 4)
        await session.ask("And now?")
    (asked,) = summaries(model)
    turn = model.requests[3]
    assert (asked.system, asked.tools) == (turn.system, turn.tools) == ("Be brief.", asked.tools)
    assert asked.messages[:-1] == turn.messages[: len(asked.messages) - 1]
    prompt = asked.messages[-1]
    assert (prompt.role, prompt.text) == ("user", HAND_OVER_PROMPT)
    for word in ("constraint", "decision", "file paths", "next steps", "earlier hand-over"):
        assert word in HAND_OVER_PROMPT


async def test_the_summary_is_one_tagged_message_and_the_last_pairs_stay(autojump_clock, open_checked):
    """L29, L30: six pairs by default; below eight entries nothing happens."""
    model = Scripted([*talk(8), reply("A summary."), reply("Here.")])
    async with open_checked(model, limits=Limits(compaction=Compaction(threshold=800))) as runtime:
        session = await runtime.session("s")
        await filled(session, 8)
        before = session.history
        await session.ask("And now?")
        after = session.history
    assert after[0].role == "user" and after[0].kind == "summary"
    assert after[0].text == f"{SUMMARY_OPEN}\nA summary.\n{SUMMARY_CLOSE}"
    # Twelve messages are the last six pairs, with the question that was asked.
    assert after[1:12] == before[-11:] and [message.text for message in after[12:]] == ["And now?", "Here."]


async def test_too_few_entries_are_left_alone(autojump_clock, open_checked, journal):
    """L29: below 8 entries nothing happens."""
    model = Scripted(talk(4))
    async with open_checked(model, limits=Limits(compaction=Compaction(threshold=10))) as runtime:
        await filled(await runtime.session("s"), 3)
        assert not summaries(model)
    assert not recorded(journal, CompactionStarted)


async def test_a_second_compaction_folds_the_old_summary_and_the_newly_aged_turns_only(autojump_clock, open_checked):
    """L30"""
    model = Scripted([], exhausted="repeat")
    count = iter(range(1, 100))

    def answered(request):
        if request.purpose == "compaction":
            return reply(f"Summary {next(count)}.")
        return reply(f"Fine. {WORDS}")

    model = Scripted([answered], exhausted="repeat")
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 9)
        history = session.history
    first, second = summaries(model)[:2]
    assert second.messages[0].kind == "summary" and "Summary 1." in second.messages[0].text
    assert "Question 0" in first.messages[0].text
    assert all("Question 0" not in message.text for message in second.messages)
    assert sum(message.kind == "summary" for message in history) == 1


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (fail(AuthFailed("no")), "auth"),
        (reply("  \n ", stop="end_turn"), None),
        (reply(call("look")), "other"),
        (reply("I cannot help with that.", stop="refusal"), "other"),
        (reply("much " * 2_000), None),
    ],
    ids=["fails", "is empty", "calls a tool", "is refused", "is not smaller"],
)
async def test_a_summary_that_is_none_falls_back_to_dropping_the_oldest(
    autojump_clock, open_checked, journal, answer, why
):
    """L31: a compaction never fails a turn, and never grows the history."""

    @tool(readonly=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    model = Scripted([*talk(4), answer, reply("Here.")])
    async with open_checked(model, tools=[look], limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        result = await session.ask("And now?")
        assert (result.text, result.error) == ("Here.", None)
        assert session.history[0].kind == "note" and session.history[0].text == DROPPED_NOTE
    (ended,) = recorded(journal, CompactionEnded)
    assert ended.how == "dropped" and ended.tokens_after < ended.tokens_before
    assert (ended.fault.kind if ended.fault else None) == why


async def test_dropping_carries_an_earlier_summary_over(autojump_clock, open_checked):
    """L30, L31"""
    summaries_given = iter([reply("The user is called Ada."), fail(AuthFailed("no"))])

    def answered(request):
        return next(summaries_given) if request.purpose == "compaction" else reply(f"Fine. {WORDS}")

    model = Scripted([answered], exhausted="repeat")
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s")
        while len(summaries(model)) < 2:
            await session.ask(f"Question. {WORDS}")
        assert "The user is called Ada." in session.history[0].text and DROPPED_NOTE in session.history[0].text


async def test_a_context_overflow_compacts_once_and_asks_once_more(autojump_clock, open_checked, journal):
    """L32"""
    model = Scripted([*talk(4), fail(ContextOverflow("too long")), reply("A summary."), reply("Here.")])
    async with open_checked(model) as runtime:  # Automatic compaction is off.
        session = await runtime.session("s")
        await filled(session, 4)
        result = await session.ask("And now?")
    assert (result.text, result.error, result.steps) == ("Here.", None, 1)
    (started,) = recorded(journal, CompactionStarted)
    assert started.forced
    # Half of it at least, or the next request would be too long again.
    refused, accepted = model.requests[4], model.requests[-1]
    assert 2 * History.of(accepted.messages).tokens <= History.of(refused.messages).tokens


async def test_a_second_overflow_is_terminal(autojump_clock, open_checked, journal):
    """L32"""
    overflow = fail(ContextOverflow("too long"))
    model = Scripted([*talk(4), overflow, reply("A summary."), overflow, reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        result = await session.ask("And now?")
        assert (result.stop_reason, result.error.kind) == ("error", "context_overflow")
        # I35: the session can still make one more turn.
        assert (await session.ask("again")).text == "Here."
    assert len(recorded(journal, ModelFailed)) == 2


@pytest.mark.parametrize("answered", [0, 1, 9])
async def test_a_prompt_that_no_window_holds_spoils_its_own_turn_only(autojump_clock, open_checked, journal, answered):
    """L32, I35: it is refused, and the next turn does without it, however much was said before."""

    def answer(request):
        if request.purpose == "compaction":
            return reply("A summary.")
        fits = History.of(request.messages).tokens <= 2_000
        return reply("Here.") if fits else fail(ContextOverflow("too long"))

    async with open_checked(Scripted([answer], exhausted="repeat")) as runtime:
        session = await runtime.session("s")
        await filled(session, answered)
        refused = await session.ask("x" * 20_000)
        assert (refused.stop_reason, refused.error.kind) == ("error", "context_overflow")
        assert (await session.ask("And now?")).text == "Here."
        assert session.history[-2].text == "And now?" and not problems(session.history)


@pytest.mark.parametrize("summary", ["A summary.", None], ids=["with a summary", "without one"])
@pytest.mark.parametrize("asked", [4, 2_000, 4_800, 7_000], ids=lambda size: f"{size} characters")
@pytest.mark.parametrize("answered", [0, 9])
async def test_a_turn_whose_context_overflows_goes_on_with_its_question_or_ends(
    autojump_clock, open_checked, journal, answered, asked, summary
):
    """L31, L32: whatever is folded away or dropped, the words that the turn is about are in every request, or the turn says that they do not fit."""
    question = "?" + "q" * asked

    @tool(readonly=True)
    async def dump() -> str:
        """A lot of text."""
        return "x" * 4_000

    def answer(request):
        if request.purpose == "compaction":
            return fail(AuthFailed("no")) if summary is None else reply(summary)
        if History.of(request.messages).tokens > 2_000:
            return fail(ContextOverflow("too long"))
        if not any(message.role == "tool" for message in request.messages):
            return reply(call("dump"))
        return reply("Here.")

    model = Scripted([*talk(answered), answer], exhausted="repeat")
    async with open_checked(model, tools=[dump]) as runtime:
        session = await runtime.session("s")
        await filled(session, answered)
        result = await session.ask(question)
    for request in model.requests[answered:]:
        if request.purpose != "compaction":
            assert any(message.text == question for message in request.messages)
    if asked < 4_000:
        assert result.text == "Here."
    else:
        assert (result.stop_reason, result.error.kind) == ("error", "context_overflow")


async def test_what_the_user_says_in_a_long_turn_outlives_its_compactions(autojump_clock, open_checked, journal):
    """L10, L26, L29: the question, and what came after it to steer, each once and in their order, however often old steps are summed up."""

    @tool
    async def dump(n: int) -> str:
        """A lot of text."""
        if n == 3:
            await session.send("and mind the gap")
        return f"{n}" * 800

    def answer(request):
        if request.purpose == "compaction":
            return reply("A summary.")
        done = sum(1 for each in model.requests if each.purpose != "compaction")
        return reply(call("dump", n=done)) if done < 30 else reply("Here.")

    model = Scripted([answer], exhausted="repeat")
    limits = Limits(max_steps=0, compaction=Compaction(threshold=1_500, keep_pairs=2))
    async with open_checked(model, tools=[dump], limits=limits) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("dig on")).text == "Here."
    assert len(recorded(journal, CompactionEnded)) >= 3
    said = [[m.text for m in each.messages if m.role == "user" and m.kind == "normal"] for each in model.requests]
    assert said[-1] == ["dig on", "and mind the gap"] and all(each[0] == "dig on" for each in said)


async def test_a_turn_late_in_a_session_keeps_its_question_through_all_compactions(
    autojump_clock, open_checked, journal
):
    """L32: where the turn begins moves with what is summed up before it, or the second compaction would look for its question in the wrong place."""

    @tool
    async def dump(n: int) -> str:
        """A lot of text."""
        return f"{n}" * 800

    def answer(request):
        if request.purpose == "compaction":
            return reply("A summary.")
        if request.messages[-1].text == "hello":
            return reply("Hello.")
        done = sum(1 for each in model.requests if each.turn == request.turn and each.purpose != "compaction")
        return reply(call("dump", n=done)) if done < 20 else reply("Here.")

    model = Scripted([answer], exhausted="repeat")
    limits = Limits(max_steps=0, compaction=Compaction(threshold=1_500, keep_pairs=2))
    async with open_checked(model, tools=[dump], limits=limits) as runtime:
        session = await runtime.session("s")
        for _ in range(15):
            await session.ask("hello")
        assert (await session.ask("dig on")).text == "Here."
    assert len(recorded(journal, CompactionEnded)) >= 3
    said = [[m.text for m in each.messages if m.role == "user" and m.kind == "normal"] for each in model.requests]
    assert all(each.count("dig on") == 1 for each in said[15:])


async def test_what_was_reported_of_the_larger_context_says_nothing_of_the_smaller(
    autojump_clock, open_checked, journal
):
    """L26, I35: a provider that counts ten times what we estimate would have every later step compact once more."""
    usage = Usage(input=9_000)
    script = [*talk(4, input=50), reply("Done.", usage=usage), reply("A summary."), *[reply("Done.")] * 4]
    async with open_checked(Scripted(script), limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        for _ in range(5):
            await session.ask("more")
        assert session.statistics().tokens < 1_000
    assert len(recorded(journal, CompactionEnded)) == 1


@pytest.mark.parametrize(
    "shown", [("Here is",), (ThinkingChunk("hm"),), (CallStart(0, "nothing"),)], ids=["text", "thinking", "a call"]
)
async def test_an_overflow_after_progress_is_terminal(autojump_clock, open_checked, journal, shown):
    """L13, L32: output that a user has seen is never sent twice, whatever the fault."""
    broken = reply(*shown, *fail(ContextOverflow("too long")), end=False)
    model = Scripted([*talk(4), broken, reply("A summary."), reply("Here is it again.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        result = await session.ask("And now?")
    assert (result.stop_reason, result.error.kind) == ("error", "context_overflow")
    assert len(model.requests) == 5 and not recorded(journal, CompactionStarted)


async def test_a_compaction_that_spends_the_budget_ends_the_turn(autojump_clock, open_checked, journal):
    """L24, L25, I27: what a summary costs counts before the next call, not after it."""
    model = Scripted([*talk(4), reply("A summary.", usage=Usage(input=90, output=10)), reply("Here.")])
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s", budget=Budget(tokens=100))
        await filled(session, 4)
        result = await session.ask("And now?")
    assert (result.stop_reason, result.error.kind) == ("budget", "budget")
    assert len(model.requests) == 5


@pytest.mark.parametrize(
    ("budget", "end", "requests"),
    [(Budget(tokens=100), "budget", 6), (Budget(tokens=101, steps=5), "end_turn", 7)],
    ids=["spent", "nearly spent"],
)
async def test_a_forced_compaction_that_spends_the_budget_ends_the_turn(
    autojump_clock, open_checked, journal, budget, end, requests
):
    """L25, L32, I27: the step that was refused for its size is asked again, unless its summary has used up what was left. The step itself is counted."""
    summary = reply("A summary.", usage=Usage(input=90, output=10))
    model = Scripted([*talk(4), fail(ContextOverflow("too long")), summary, reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s", budget=budget)
        await filled(session, 4)
        result = await session.ask("And now?")
    assert (result.stop_reason, result.steps, len(model.requests)) == (end, 1, requests)
    assert recorded(journal, BudgetWarned)[-1].what == "tokens"
    assert [ended.how for ended in recorded(journal, CompactionEnded)] == ["summary"]


async def test_a_refused_step_that_has_spent_the_budget_asks_for_no_summary(autojump_clock, open_checked, journal):
    """L25, L32, I27: a fallback's first model may have cost something before the second finds the context too long."""
    model = Scripted([*talk(4), [UsageChunk(Usage(input=90, output=10)), *fail(ContextOverflow("too long"))]])
    async with open_checked(model) as runtime:
        session = await runtime.session("s", budget=Budget(tokens=100))
        await filled(session, 4)
        result = await session.ask("And now?")
    assert (result.stop_reason, result.error.kind, len(model.requests)) == ("budget", "budget", 5)
    assert not recorded(journal, CompactionStarted)


@pytest.mark.parametrize("budget", [Budget(tokens=80), Budget(steps=8)], ids=["tokens", "steps"])
async def test_a_runtime_whose_budget_is_spent_asks_for_no_summary_either(
    autojump_clock, open_checked, journal, budget
):
    """L25, L26, I27: not in a turn of any session that is over its limit, and not on demand; and nothing is lost for want of one."""
    model = Scripted([*talk(8, output=10), reply("A summary.")])
    async with open_checked(model, limits=SMALL, budget=budget) as runtime:
        for name in ("a", "b"):
            await filled(await runtime.session(name), 4)
        for name in ("a", "b"):
            session = await runtime.session(name)
            result = await session.ask("And now?")
            assert (result.stop_reason, result.error.kind) == ("budget", "budget")
            done = await session.compact()
            assert (done.how, done.fault.kind, len(session.history)) == ("unchanged", "budget", 9)
    assert len(model.requests) == 8 and not summaries(model)


async def test_summaries_that_begin_together_overshoot_the_runtimes_budget_by_one_of_them(autojump_clock, open_checked):
    """L25, I27, I26: each holds what it is expected to cost, as a step does; those that wait for it go on when it has ended."""
    summary = reply(stall(1), "A summary.", usage=Usage(input=390, output=10))
    model = Scripted([*talk(16, output=10), summary, summary, summary])
    async with open_checked(model, limits=SMALL, budget=Budget(tokens=160 + 500)) as runtime:
        sessions = [await runtime.session(name) for name in "abcd"]
        for session in sessions:
            await filled(session, 4)
        async with trio.open_nursery() as nursery:
            for session in sessions:
                nursery.start_soon(session.ask, "And now?")
        assert all(session.last.number == 5 for session in sessions)
        assert 660 <= runtime.statistics().usage.total <= 660 + 400


async def test_a_summary_on_demand_lets_go_of_what_it_held(autojump_clock, open_checked):
    """L25, L34, I26: no step follows that would; another session waits for it."""
    summary = reply(stall(1), "A summary.", usage=Usage(input=390, output=10))
    model = Scripted([*talk(8, output=10), summary, summary])
    async with open_checked(model, limits=SMALL, budget=Budget(tokens=80 + 500)) as runtime:
        sessions = [await runtime.session(name) for name in "ab"]
        for session in sessions:
            await filled(session, 4)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                for session in sessions:
                    nursery.start_soon(session.compact)
                await trio.sleep(0.5)
                assert len(summaries(model)) == 1
        assert len(summaries(model)) == 2


async def test_a_budget_that_is_spent_before_a_summary_is_warned_of_before_the_end(
    autojump_clock, open_checked, journal
):
    """L25: the step before it took the runtime from less than 80 % to the end."""
    model = Scripted([*talk(3, output=10), reply(f"Answer. {WORDS}", usage=Usage(output=70))])
    async with open_checked(model, limits=SMALL, budget=Budget(tokens=100)) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        assert (await session.ask("And now?")).stop_reason == "budget"
    told = [name for name in names(journal) if name in ("CompactionStarted", "BudgetWarned", "TurnEnded")]
    assert told[-4:] == ["TurnEnded", "CompactionStarted", "BudgetWarned", "TurnEnded"]


@pytest.mark.parametrize(("cap", "end"), [(100, "budget"), (110, "end_turn")])
async def test_a_summary_between_turns_takes_no_warning_from_the_next_turn(
    autojump_clock, open_checked, journal, cap, end
):
    """L25, L34: the runtime's budget warns once; a session that is summed up on demand has no turn that it could be told in."""
    model = Scripted([*talk(3, output=10), reply(f"Answer. {WORDS}", usage=Usage(output=70)), *talk(2, output=1)])
    async with open_checked(model, limits=SMALL, budget=Budget(tokens=cap)) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        await session.compact()
        assert (await session.ask("And now?")).stop_reason == end
    told = [name for name in names(journal) if name in ("CompactionEnded", "BudgetWarned", "TurnEnded")]
    assert told[-3:] == ["CompactionEnded", "BudgetWarned", "TurnEnded"]


@pytest.mark.parametrize("how", ["interrupt", "close"])
async def test_a_summary_that_waits_for_others_can_be_stopped_and_keeps_nobody(autojump_clock, open_checked, how):
    """L15, L25, I26"""
    summary = reply(stall(5), "A summary.", usage=Usage(input=390, output=10))
    model = Scripted([*talk(8, output=10), summary, reply("Here.", usage=Usage(output=10))], exhausted="repeat")
    async with open_checked(model, limits=SMALL, budget=Budget(tokens=80 + 500)) as runtime:
        first, second = [await runtime.session(name) for name in "ab"]
        for session in (first, second):
            await filled(session, 4)
        async with first.turn("And now?") as one, second.turn("And now?") as two:
            await trio.sleep(1)
            assert len(summaries(model)) == 1
            waiting = second if summaries(model)[0].session == "a" else first
            begun = trio.current_time()
            await getattr(waiting, how)()
            assert trio.current_time() - begun < 0.05
            ends = [(await turn.wait_ended()).stop_reason for turn in (one, two)]
        assert sorted(ends) == ["end_turn", "interrupt"]


async def test_a_session_whose_budget_is_spent_is_not_summed_up_on_demand(autojump_clock, open_checked, journal):
    """L25, L27, L34, I27: old results are masked all the same, for that is free; and there is a summary when the budget is raised."""

    @tool(readonly=True)
    async def dump() -> str:
        """A lot of text."""
        return "x" * 12_000

    model = Scripted([reply(call("dump")), *talk(5), reply("A summary.")])
    limits = Limits(compaction=Compaction(share=None, keep_pairs=2, min_messages=6))
    async with open_checked(model, tools=[dump], limits=limits) as runtime:
        session = await runtime.session("s", budget=Budget(steps=6))
        await filled(session, 5)
        done = await session.compact()
        assert (done.how, done.fault.kind, len(session.history)) == ("unchanged", "budget", 12)
        assert not summaries(model)
        await runtime.session("s", budget=Budget(steps=7))
        assert (await session.compact()).how == "summary"
    assert len(recorded(journal, HistoryMasked)) == 1


async def test_an_overflow_that_masking_alone_can_mend_is_asked_again(autojump_clock, open_checked, journal):
    """L27, L32: also if no summary can be had."""

    @tool(readonly=True)
    async def dump() -> str:
        """A lot of text."""
        return "x" * 12_000

    no = fail(AuthFailed("no"))
    model = Scripted([reply(call("dump")), reply("ok"), fail(ContextOverflow("too long")), no, reply("Here.")])
    async with open_checked(model, tools=[dump]) as runtime:
        session = await runtime.session("s")
        await session.ask("a")
        assert (await session.ask("b")).text == "Here."
    assert recorded(journal, HistoryMasked)


async def test_an_overflow_that_nothing_can_mend_says_so(autojump_clock, open_checked, journal):
    """L32"""
    model = Scripted([fail(ContextOverflow("too long")), fail(AuthFailed("no")), reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        result = await session.ask("short")
        assert (result.stop_reason, result.error.kind) == ("error", "context_overflow")
    assert len(recorded(journal, TurnEnded)) == 1


async def test_the_journal_keeps_the_whole_history(autojump_clock, open_checked, journal):
    """L33: replaying to before it shows it all."""
    model = Scripted([*talk(4), reply("A summary."), reply("Here.")])
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        await session.ask("And now?")
    state = State()
    for record in journal:
        for event in record.events:
            if isinstance(event, CompactionStarted):
                before = state.history.messages
            state = evolve(state, event)
    assert before[0].text.startswith("Question 0")
    assert len(before) == 9 and len(state.history.messages) == 6


async def test_a_compaction_on_demand_tells_what_it_did(autojump_clock, open_checked, journal):
    """L34"""
    model = Scripted([*talk(8), reply("A summary.", usage=Usage(input=700, output=5)), reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert await session.compact() is None  # Nothing to do.
        await filled(session, 8)
        before = session.statistics()
        done = await session.compact()
        after = session.statistics()
        assert (await session.ask("And now?")).text == "Here."
    assert (done.messages_before, done.messages_after) == (before.messages, after.messages) == (16, 13)
    assert (done.tokens_before, done.tokens_after) == (before.tokens, after.tokens)
    assert after.usage == Usage(input=700, output=5)


async def test_a_compaction_on_demand_tells_its_end_however_little_a_watcher_may_lag(autojump_clock, open_checked):
    """L34, I33: nobody reads its events one by one."""
    model = Scripted([*talk(8), reply("A summary.")])
    async with open_checked(model, limits=Limits(subscriber_events=1)) as runtime:
        session = await runtime.session("s")
        await filled(session, 8)
        ended = await session.compact()
    assert ended is not None and ended.how == "summary"


async def test_a_compaction_on_demand_can_be_interrupted_and_is_refused_in_mid_turn(
    autojump_clock, open_checked, journal
):
    """L15, L34"""
    model = Scripted([*talk(8), reply(stall(50), "A summary."), reply(stall(5), "Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        await filled(session, 8)
        before = session.history
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.compact)
            await trio.sleep(1)
            with pytest.raises(CommandRejected):
                await session.compact()
            with pytest.raises(CommandRejected, match="is being compacted"):
                await session.ask("Already?")
            await session.interrupt()
        assert session.history == before
        async with session.turn("And now?") as turn:
            with pytest.raises(CommandRejected, match="busy"):
                await session.compact()
            await turn.wait_ended()
    assert [ended.how for ended in recorded(journal, CompactionEnded)] == ["unchanged"]


async def test_a_compaction_on_demand_whose_caller_leaves_is_given_up(autojump_clock, open_checked, journal):
    """L15, L34, I6: as a turn is; the next one need not wait for a summary that nobody wants."""
    model = Scripted([*talk(8), reply(stall(50), "A summary."), reply("Here.")])
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        await filled(session, 8)
        before = session.history
        with trio.move_on_after(1):
            await session.compact()
        assert session.history == before
        with trio.CancelScope() as scope:
            scope.cancel()
            await session.compact()
        assert (await session.ask("And now?")).text == "Here."
    assert [ended.how for ended in recorded(journal, CompactionEnded)] == ["unchanged"]


async def test_a_compaction_on_demand_that_the_runtimes_end_cuts_off_is_ended_visibly(
    autojump_clock, open_checked, journal
):
    """L15, L34: as a turn would be; who waits for it is told so, and the next start finds nothing open."""
    told: list[CompactionEnded | None] = []
    async with trio.open_nursery() as nursery:

        async def tidy() -> None:
            told.append(await session.compact())

        async with open_checked(Scripted([*talk(8), reply(stall(50), "A summary.")])) as runtime:
            session = await runtime.session("s")
            await filled(session, 8)
            nursery.start_soon(tidy)
            await trio.sleep(1)
    assert told == recorded(journal, CompactionEnded) and told[0].how == "unchanged"
    async with open_checked(Scripted([])) as runtime:
        await runtime.session("s")
    assert not recorded(journal, RecoveryNoted)


async def test_a_compactions_usage_is_in_the_total_and_in_a_bucket_of_its_own(autojump_clock, open_checked):
    """L24 (seed 004: attributes compaction usage to a sub-bucket and the total)."""
    model = Scripted(
        [
            *talk(4),
            reply("A summary.", usage=Usage(input=300, output=7)),
            reply("Here.", usage=Usage(input=90, output=3)),
        ]
    )
    async with open_checked(model, limits=SMALL) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        result = await session.ask("And now?")
        assert session.statistics().compaction_usage == Usage(input=300, output=7)
        assert session.statistics().usage == runtime.statistics().usage == Usage(input=390, output=10)
    assert result.compaction_usage == Usage(input=300, output=7)
    assert result.usage == Usage(input=390, output=10)


HALF = (TextChunk("Half a "), UsageChunk(Usage(input=300, output=7)))


@pytest.mark.parametrize("how", ["fails", "interrupt", "leave", "close", "wall time"])
async def test_a_summary_that_is_cut_off_has_cost_what_it_has_cost(autojump_clock, open_checked, journal, how):
    """L24, L25: what the provider reported counts, although nothing came of it."""
    broken = reply(*HALF, fail(ServerFault("gone"))) if how == "fails" else reply(*HALF, stall(1_000.0))
    model = Scripted([*talk(4), broken, reply("Here.", usage=Usage(input=90, output=3))])
    budget = Budget(wall_s=20.0) if how == "wall time" else Budget()
    limits = Limits(compaction=SMALL.compaction, deadlines=Deadlines(idle_s=5_000.0, step_s=None))
    async with open_checked(model, limits=limits, budget=budget) as runtime:
        session = await runtime.session("s")
        await filled(session, 4)
        async with session.turn("And now?") as turn:
            if how not in ("fails", "wall time"):
                await trio.sleep(10.0)
            match how:
                case "interrupt":
                    await session.interrupt()
                case "close":
                    await session.close()
            if how != "leave":
                await turn.wait_ended()
        more = Usage(input=90, output=3) if how == "fails" else Usage(input=0, output=0)
        assert turn.result.compaction_usage == Usage(input=300, output=7)
        assert turn.result.usage == Usage(input=300, output=7) + more
        assert session._state.spent.compaction == Usage(input=300, output=7)
        assert session._state.spent.usage == Usage(input=300, output=7) + more == runtime.statistics().usage


@pytest.mark.parametrize("how", ["fails", "interrupt", "close"])
async def test_a_summary_on_demand_that_is_cut_off_too(autojump_clock, open_checked, how):
    """L24, L34"""
    broken = reply(*HALF, fail(ServerFault("gone"))) if how == "fails" else reply(*HALF, stall(1_000.0))
    limits = Limits(deadlines=Deadlines(idle_s=5_000.0, step_s=None))
    async with open_checked(Scripted([*talk(8), broken, reply(stall(1_000.0))]), limits=limits) as runtime:
        session = await runtime.session("s")
        await filled(session, 8)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(session.compact)
            if how != "fails":
                await trio.sleep(10.0)
                await (session.interrupt() if how == "interrupt" else session.close())
        assert session._state.spent.usage == session._state.spent.compaction == Usage(input=300, output=7)
        if how == "interrupt":
            # A second one that is stopped before anything was said has cost nothing.
            async with trio.open_nursery() as nursery:
                nursery.start_soon(session.compact)
                nursery.start_soon(session.interrupt)
            assert session._state.spent.usage == Usage(input=300, output=7)


async def test_a_compaction_on_demand_tells_if_masking_was_all_it_did(autojump_clock, open_checked, journal):
    """L27, L34"""

    @tool(readonly=True)
    async def dump() -> str:
        """A lot of text."""
        return "x" * 12_000  # 3,000 tokens

    model = Scripted([reply(call("dump")), reply("Dumped."), reply("Two."), reply("Three.")])
    async with open_checked(model, tools=[dump]) as runtime:
        session = await runtime.session("s")
        for text in ("one", "two", "three"):
            await session.ask(text)
        before = session.statistics().tokens
        done = await session.compact()
        assert isinstance(done, HistoryMasked)
        assert (done.tokens_before, done.tokens_after) == (before, session.statistics().tokens)
        assert done.tokens_before - done.tokens_after > 2_000
        assert await session.compact() is None
    assert not summaries(model) and recorded(journal, HistoryMasked) == [done]


async def test_steps_of_one_turn_are_compacted_too(autojump_clock, open_checked, journal):
    """L26: checked before every model call, not once a turn."""

    @tool(readonly=True)
    async def dump(n: int) -> str:
        """Some text."""
        return f"{n} {WORDS}"

    def answered(request):
        if request.purpose == "compaction":
            return reply("So far so good.")
        return reply(call("dump", n=request.step)) if request.step < 7 else reply("Done.")

    model = Scripted([answered], exhausted="repeat")
    async with open_checked(model, tools=[dump], limits=SMALL) as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "Done."
    assert names(journal).count("CompactionEnded") >= 1
    for request in model.requests:
        assert not problems(request.messages)


def _so_far(runtime):
    from trouper.testing.invariants import records_of

    return list(records_of(runtime._log))
