"""`trouper run "prompt"`: one turn, for scripts. The reply goes to stdout, everything else to stderr; the exit code says how the turn ended.

0 the model is done, 1 the turn failed, 3 it stopped short (budget, max_steps, max_tokens), 4 the model refused, 130 interrupted.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import trio

from trouper import codec
from trouper._errors import CommandRejected, UsageError
from trouper.attached import along_with
from trouper.cli.arguments import Parser, add_agent, add_json, add_root, root_of, text, to_type
from trouper.cli.configuration import read_configuration
from trouper.cli.describe import quoted, went_wrong
from trouper.cli.endings import INTERRUPTED, REFUSED, STOPPED_SHORT, TURN_FAILED, say
from trouper.cli.hosting import ended_by_signals, hosting, session_of
from trouper.cli.terminal import Terminal, clean, clean_line, plural
from trouper.core.events import ApprovalRequested, CallEnded, ModelReplied
from trouper.core.live import CaughtUp, LiveEvent, QuestionAsked, TextDelta
from trouper.core.messages import Media
from trouper.core.session import Event, Phase, State, evolve
from trouper.core.task_events import TaskEnded
from trouper.session import Session
from trouper.turn import Turn, TurnResult

#: Read of a prompt at most: stdin may be a pipe that never ends.
STDIN_BYTES_MAX = 64 * 1024 * 1024
_SHORT = frozenset({"budget", "max_steps", "max_tokens"})

Behind = Sequence[Event | LiveEvent]


def main(arguments: Sequence[str]) -> int:
    parser = Parser(prog="trouper run", description=__doc__)
    parser.add_argument("prompt", type=text, help="what to ask; - reads it from stdin")
    parser.add_argument("--session", metavar="ID", help="go on with this session (default: a new one)")
    parser.add_argument(
        "--attach", action="append", default=[], metavar="FILE", help="send a file along; may be repeated"
    )
    parser.add_argument(
        "--ask",
        action="store_true",
        help="calls that need an approval wait for `trouper approvals`; without it they are denied",
    )
    parser.add_argument("--wait", action="store_true", help="stay until background work has ended and was told of")
    add_agent(parser)
    add_root(parser)
    add_json(parser)
    options = parser.parse_args(arguments)
    prompt = _prompt_on_stdin() if options.prompt == "-" else options.prompt
    if not prompt.strip():
        raise UsageError("the prompt is empty; say something")
    return trio.run(_run, options, prompt)


def _prompt_on_stdin() -> str:
    data = sys.stdin.buffer.read(STDIN_BYTES_MAX + 1)
    if len(data) > STDIN_BYTES_MAX:
        raise UsageError(f"the prompt on stdin has more than {STDIN_BYTES_MAX} bytes; save it, and use --attach FILE")
    return data.decode("utf-8", "replace")


async def _run(options: argparse.Namespace, prompt: str) -> int:
    root, out = root_of(options), Terminal()
    # Looked at first: what cannot be sent is to leave no session behind.
    attached = along_with(prompt, options.attach, read_configuration(root).limits)
    async with ended_by_signals():
        async with hosting(root, options) as hosted:
            session = await session_of(hosted, options.session, options.system)
            await _wait_resumed(session, options)
            result, behind = await _turn(session, prompt, attached, options, out)
            if options.wait:
                await _wait_background(session, behind, options, out)
            elif left := len(session.state.tasks.live):
                say(
                    f"{plural(left, 'background task')} of session {session.id} cannot go on without this process: the next one takes up "
                    "what may run again, and ends the rest as interrupted; --wait stays until all are through"
                )
    return code_of(result)


async def _wait_resumed(session: Session, options: argparse.Namespace) -> None:
    """Until a turn that a dead process left open, and that is resumed, has ended: nobody has begun it who could be told to wait for it."""
    with session.watch(attended=options.ask) as events:
        if session.state.turn is None:
            return
        say("a turn that was cut off goes on first")
        if options.ask:
            _tell_waiting(session.id, session.approvals)
        else:
            for call in session.approvals:  # As of any other call: nobody is there to approve it.
                with suppress(CommandRejected):
                    await session.deny(call)
        await _decline_questions(session)
        async for event in events:
            if is_resting(session.state):
                return
            if isinstance(event, ApprovalRequested):
                _tell_waiting(session.id, [event.call])
            elif isinstance(event, QuestionAsked | CaughtUp):
                await _decline_questions(session)


async def _decline_questions(session: Session, *, of_tasks: bool = False) -> None:
    """Nobody is here to answer what a tool asks, so that it is not kept waiting for it. A task that goes on without this process may ask again in a chat."""
    for each in session.questions:
        if each.task_id is None or of_tasks:
            asked = ", ".join(quoted(question.text) for question in each.questions)
            say(f"session {session.id} asks {asked}: declined, for nobody is here to answer; {to_type('chat')} can")
            with suppress(CommandRejected):  # It has lapsed just now.
                await session.decline_question(each.id)


def _tell_waiting(session: str, calls: Iterable[str]) -> None:
    for call in calls:
        say(f"call {call} of session {session} waits for an approval; see {to_type('approvals')}")


async def _turn(
    session: Session, prompt: str, attached: Sequence[Media], options: argparse.Namespace, out: Terminal
) -> tuple[TurnResult, Behind]:
    async with session.turn(prompt, attachments=attached, attended=options.ask) as turn:
        behind = await _followed(session, turn, options, out)
    result = turn.result
    assert result is not None
    if options.json:
        out.json({"type": "result", "session": session.id, **result_json(result)})
    elif result.error is not None:
        say(f"the turn failed ({result.error.kind}): {result.error.message}")
    elif code_of(result):
        say(f"the turn ended early: {result.stop_reason}{f' ({result.detail})' if result.detail else ''}")
    out.stream.flush()
    return result, behind


async def _followed(session: Session, turn: Turn, options: argparse.Namespace, out: Terminal) -> Behind:
    """Tell a turn to its end, and give back what has happened behind it meanwhile."""
    spoken = ""
    async for event in turn:
        if isinstance(event, QuestionAsked | CaughtUp):
            out.stream.flush()
            await _decline_questions(session)
        if options.json:
            out.json({"session": session.id, **as_json(event)})
            continue
        spoken = _tell(out, event, spoken)
        tell_inside(out, event)
        if isinstance(event, ApprovalRequested):
            out.stream.flush()
            _tell_waiting(session.id, [event.call])
    if spoken and not spoken.endswith("\n"):
        out.line()
    return turn._behind()


def _tell(out: Terminal, event: Any, spoken: str) -> str:
    """The reply as it comes; tool calls as one line each on stderr, for people who watch."""
    match event:
        case TextDelta(text=text):
            text = clean(text)
            out.stream.write(text)
            out.stream.flush()
            return spoken + text
        case ModelReplied(message=message) if message.calls:
            if spoken and not spoken.endswith("\n"):
                out.line()
            out.stream.flush()
            if sys.stderr.isatty():
                for call in message.calls:
                    print(clean_line(f"calls {call.name}", 100), file=sys.stderr, flush=True)
            return ""
        case CallEnded(outcome=outcome, task=task) if sys.stderr.isatty():
            print(f"  {outcome.value}{f', goes on as {task}' if task else ''}", file=sys.stderr, flush=True)
    return spoken


def tell_inside(out: Terminal, event: Any) -> None:
    """The model is told nothing of it; whoever has written the tool wants to know."""
    if isinstance(event, CallEnded | TaskEnded) and (mistake := went_wrong(event.internal)):
        out.stream.flush()
        failed = f"call {event.call}" if isinstance(event, CallEnded) else f"task {event.task_id}"
        say(
            f"{failed} failed inside: {mistake} ({to_type('journal show')} has the record, and with --record SEQ the traceback)"
        )


async def _wait_background(session: Session, behind: Behind, options: argparse.Namespace, out: Terminal) -> None:
    """Until no task is left, every notification was told, and nothing is running. `behind`: what had happened behind the turn before anybody watched."""
    with session.watch(attended=options.ask) as events:
        # What was shown so far, folded: the session itself may be ahead.
        state = session.state
        for event in behind:
            _tell_background(session, event, options, out)
        if is_quiet(state):
            return
        await _decline_questions(session, of_tasks=True)
        async for event in events:
            if isinstance(event, QuestionAsked | CaughtUp):
                await _decline_questions(session, of_tasks=True)
            if isinstance(event, CaughtUp):
                state = session.state
            elif not isinstance(event, LiveEvent):
                state = evolve(state, event)
            _tell_background(session, event, options, out)
            if is_quiet(state) and is_quiet(session.state):
                return


def _tell_background(session: Session, event: Event | LiveEvent, options: argparse.Namespace, out: Terminal) -> None:
    if options.json:
        out.json({"session": session.id, **as_json(event)})
    elif isinstance(event, ModelReplied) and event.message.text.strip():
        out.line(clean(event.message.text))
        out.stream.flush()
    else:
        tell_inside(out, event)


def is_quiet(state: State) -> bool:
    """Whether nothing goes on, and nothing is about to begin by itself; in a session that somebody has closed, nothing ever does."""
    if state.phase is Phase.CLOSED:
        return True
    waiting = any(note.wake for note in state.notifications.pending.values())
    return is_resting(state) and not state.tasks.live and not waiting


def is_resting(state: State) -> bool:
    """Whether no turn runs, and none begins by itself for what is queued: after an interrupt, that waits for the user's next word."""
    return state.phase is Phase.IDLE and (not state.queue or state.held)


def as_json(event: Any) -> dict[str, Any]:
    """An event as a program reads it: `type` and its fields; live ones too."""
    if isinstance(event, LiveEvent):
        return {"type": type(event).__name__, "live": True, **codec.to_json(event)}
    return codec.event_to_json(event)


def result_json(result: TurnResult) -> dict[str, Any]:
    return {
        "text": result.text,
        "stop_reason": result.stop_reason,
        "steps": result.steps,
        "usage": codec.to_json(result.usage),
        "error": None if result.error is None else codec.to_json(result.error),
        "detail": result.detail,
    }


def code_of(result: TurnResult) -> int:
    if result.stop_reason == "interrupt":
        return INTERRUPTED
    if result.stop_reason in _SHORT:
        return STOPPED_SHORT
    if result.stop_reason == "refusal":
        return REFUSED
    return TURN_FAILED if result.error is not None else 0
