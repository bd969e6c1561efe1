"""The slash commands of a chat."""

from __future__ import annotations

import os
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING

from attrs import frozen

from trouper import codec
from trouper._errors import UsageError
from trouper.cli.arguments import to_type
from trouper.cli.chat_answers import answers
from trouper.cli.choices import model_named
from trouper.cli.describe import quoted
from trouper.cli.terminal import clean_line, when
from trouper.core.calls import CallPhase
from trouper.core.messages import Media, ToolAnswer
from trouper.core.session import State
from trouper.models.protocol import name_of
from trouper.tools.guards.names import from_disk, on_disk

if TYPE_CHECKING:
    from trouper.cli.chat import Chat

HISTORY_SHOWN = 20
_CALL = re.compile(r"call_[0-9]+_[0-9]+_[0-9]+")
#: At the beginning of a word, or of what is in parentheses.
_AT = re.compile(r"""(?<![^\s(])@(?:(?P<quote>["'])(?P<quoted>.+?)(?P=quote)|(?P<bare>(?:\\.|\S)+))""")
_ESCAPED = re.compile(r"\\(.)")
_PUNCTUATION = ".,;:!?)"
_STOPPABLE = frozenset({CallPhase.ASKING, CallPhase.HELD, CallPhase.RUNNING})


class Quit(Exception):
    """The user is done."""


async def command(chat: Chat, line: str) -> None:
    """Carry out `/name arguments`."""
    name, rest = [*line[1:].split(maxsplit=1), "", ""][:2]
    found = COMMANDS.get(name)
    if found is None:
        import difflib

        near = difflib.get_close_matches(name, COMMANDS, 1)
        raise UsageError(f"there is no /{name}; {f'did you mean /{near[0]}?' if near else 'see /help'}")
    await found[0](chat, rest.strip())


async def _help(chat: Chat, rest: str) -> None:
    for name, (_, usage) in COMMANDS.items():
        chat.screen.say(f"  /{name} {usage}", "dim")
    chat.screen.say(
        "  @file sends a file along. Ctrl-C stops the turn, twice quits. What you type during a turn steers it. A space before the / sends the line as it is.",
        "dim",
    )


async def _quit(chat: Chat, rest: str) -> None:
    raise Quit


async def _tasks(chat: Chat, rest: str) -> None:
    tasks = sorted(chat.session.state.tasks, key=lambda task: task.created_at)
    for task in tasks:
        progress = task.progress
        far = f" {progress.current:g}{f'/{progress.total:g}' if progress.total else ''}" if progress is not None else ""
        chat.screen.say(f"  {task.id}  {task.state.value}{far}  {clean_line(task.about.title, 60)}")
    if not tasks:
        chat.screen.say("  no tasks", "dim")


async def _cancel(chat: Chat, rest: str) -> None:
    if not rest:
        rest = _only_one_at_work(chat)
    await chat.cancel(rest)


def _only_one_at_work(chat: Chat) -> str:
    """Of what the user had seen: what has begun since is not meant."""
    now = _at_work(chat.session.state)
    work = {id: what for id, what in _at_work(chat.seen.state).items() if id in now}
    if not work:
        raise UsageError("nothing is at work that could be cancelled")
    if len(work) > 1:
        listed = ", ".join(f"{id} ({clean_line(what, 40)})" for id, what in work.items())
        raise UsageError(f"cancel which? /cancel ID: {listed}")
    return next(iter(work))


def _at_work(state: State) -> dict[str, str]:
    work: dict[str, str] = {task.id: task.about.title for task in state.tasks.live.values()}
    calls = state.turn.calls if state.turn is not None else ()
    return work | {call.id: call.request.name for call in calls if call.phase in _STOPPABLE}


async def _compact(chat: Chat, rest: str) -> None:
    await chat.compact()


async def _model(chat: Chat, rest: str) -> None:
    if rest:
        chat.use_model(model_named(rest))
    chat.screen.say(f"  model: {name_of(chat.model)}", "dim")


async def _tools(chat: Chat, rest: str) -> None:
    for tool in chat.tools:
        about = tool.description.splitlines()[0] if tool.description else ""
        chat.screen.say(f"  {tool.name}  {clean_line(about, 80)}")
    if not chat.tools:
        chat.screen.say("  no tools", "dim")


async def _approve(chat: Chat, rest: str) -> None:
    words = rest.split()
    always = "always" in words
    waiting = _waiting_approvals(chat)
    named = {chat.approvals.called(word, waiting) or word: word for word in words if word != "always"}
    # All of them are looked at before any is approved: a line that is refused has done nothing.
    for call, word in named.items():
        if call not in chat.session.approvals:
            there_is = ", ".join(chat.approvals.names(waiting))
            raise UsageError(f"no call {word!r} waits for an approval, so nothing was approved; there is {there_is}")
    for call in named or waiting:
        await chat.session.approve(call, always=always, by="chat")


async def _deny(chat: Chat, rest: str) -> None:
    waiting = _waiting_approvals(chat)
    call, reason = chat.approvals.chosen(rest, waiting)
    if call is None and (call := chat.approvals.called(rest, waiting)):
        reason = ""
    elif call is None:
        first, _, others = rest.partition(" ")
        # An id is one also when its call waits no longer: the others are not meant.
        call, reason = (first, others) if _CALL.fullmatch(first) else (None, rest)
    for each in waiting if call is None else [call]:
        await chat.session.deny(each, reason)


def _waiting_approvals(chat: Chat) -> list[str]:
    """Those that the user had seen: what has come up since, nobody has looked at."""
    now = chat.session.approvals
    waiting = [call for call in chat.seen.approvals if call in now]
    if not waiting:
        raise UsageError("no call waits for an approval" + (" that had been shown by then" if now else ""))
    return waiting


async def _history(chat: Chat, rest: str) -> None:
    messages = chat.session.history
    if len(messages) > HISTORY_SHOWN:
        chat.screen.say(
            f"  ({len(messages) - HISTORY_SHOWN} earlier messages; {to_type('journal show')} has all)", "dim"
        )
    for message in messages[-HISTORY_SHOWN:]:
        parts = [quoted(message.text, 200)] if message.text.strip() else []
        parts += [f"calls {call.name}" for call in message.calls]
        parts += [f"{part.name}: {part.outcome.value}" for part in message.parts if isinstance(part, ToolAnswer)]
        parts += [f"with {part.name or part.mime_type}" for part in message.parts if isinstance(part, Media)]
        kind = "" if message.kind == "normal" else f" ({message.kind})"
        chat.screen.say(f"  {message.role}{kind}: {', '.join(parts)}")
    if not messages:
        chat.screen.say("  nothing yet", "dim")


async def _notifications(chat: Chat, rest: str) -> None:
    waiting = chat.session.state.notifications.pending.values()
    for note in waiting:
        chat.screen.say(f"  {when(note.created_at)}  {note.state.value}  {clean_line(note.title, 80)}")
    if not waiting:
        chat.screen.say("  no notifications wait", "dim")


async def _memory(chat: Chat, rest: str) -> None:
    memory = chat.runtime.memory
    found = (
        await memory.search(rest) if rest else [memo for scope in memory.scopes() for memo in await memory.list(scope)]
    )
    for memo in found:
        about = memo.summary or codec.dumps(memo.value).decode()
        chat.screen.say(f"  {memo.scope} {memo.key}: {clean_line(about, 100)}")
    if not found:
        chat.screen.say("  nothing is remembered", "dim")


async def _answer(chat: Chat, rest: str) -> None:
    now = {each.id: each for each in chat.session.questions}
    waiting = {id: now[id] for id in chat.seen.questions if id in now}
    if not waiting:
        raise UsageError("nobody asks anything" + (" that had been shown by then" if now else ""))
    chosen, text = chat.questions.chosen(rest, waiting)
    if chosen is None and len(waiting) > 1:
        raise UsageError(f"{len(waiting)} questions wait for an answer; say which: /answer NUMBER TEXT")
    asked = waiting[chosen or next(iter(waiting))]
    if not text:
        await chat.session.decline_question(asked.id)
        return
    await chat.session.answer_question(asked.id, *answers(text, asked.questions))


async def _interrupt(chat: Chat, rest: str) -> None:
    if not chat.is_busy:
        chat.screen.say("  nothing runs", "dim")
        return
    await chat.interrupt()


Handler = Callable[["Chat", str], Awaitable[None]]
COMMANDS: Mapping[str, tuple[Handler, str]] = {
    "tasks": (_tasks, "          what runs in the background, and what has ended"),
    "cancel": (_cancel, "[ID]     stop a call or a task"),
    "notifications": (_notifications, "  what waits to be told"),
    "compact": (_compact, "        make the context smaller now"),
    "model": (_model, "[NAME]    show or change the model"),
    "tools": (_tools, "          what the model can use"),
    "approve": (_approve, "[N] [always]  allow a call that waits; all that were shown, without a number or id"),
    "deny": (_deny, "[N] [WHY]  refuse a call that waits"),
    "answer": (_answer, "[N] [TEXT]   answer what a tool asks; without a text it is declined"),
    "memory": (_memory, "[WORDS]  what is remembered across sessions"),
    "history": (_history, "        what the model is sent"),
    "interrupt": (_interrupt, "      stop the turn, as Ctrl-C does"),
    "help": (_help, "           this"),
    "quit": (_quit, "           leave; the session stays"),
}


@frozen
class Attached:
    """What a line names as `@path`: the files to send along, and what was likely meant as one and is none."""

    files: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def attachments_in(line: str) -> Attached:
    """A word with @ that is no file is just a word; if it looks like a path, the user hears of it.

    As in a shell, quotes or backslashes hold a name with spaces together; any other quote is an apostrophe.
    """
    files: dict[str, None] = {}
    remarks: dict[str, None] = {}
    for found in _AT.finditer(line):
        word = found[0]
        path = on_disk(os.path.expanduser(found["quoted"] or _ESCAPED.sub(r"\1", found["bare"])))
        if not os.path.exists(path):
            path = path.rstrip(_PUNCTUATION) or path  # Of the sentence, then.
        if os.path.isfile(path):
            files[path] = None
        elif os.path.isdir(path):
            remarks[f"{word} is a directory, and is sent as text; name files"] = None
        elif os.sep in path or os.path.splitext(path)[1]:
            remarks[f"there is no file {from_disk(path)!r}; {word} is sent as text"] = None
    return Attached(tuple(files), tuple(remarks))
