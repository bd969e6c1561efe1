"""What the command line can ask of the process that owns a root: small JSON requests, carried out on its runtime.

    {"do": "cancel", "session": "main", "id": "task_..."}      ->  {"ok": true}
                                                               ->  {"ok": false, "error": "...", "exit_code": 2}
                                                               ->  {"ok": false, "error": "...", "exit_code": 75, "begun": false}

The last is the answer of an owner that is just ending: `begun` is false if nothing was done, true if nobody knows how much was.

The same function serves the owner's control socket and a command that opens the root itself because nobody has it open.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trouper._errors import ConfigError, TrouperError, UsageError
from trouper.actors.errors import ActorGone, SupervisorClosed
from trouper.cli.arguments import to_type
from trouper.core.ids import NotificationId
from trouper.core.messages import Json
from trouper.core.notification import DeliverNotifications, NotificationState
from trouper.core.session import Phase
from trouper.host import RuntimeEnded, SessionInfo
from trouper.runtime import Runtime
from trouper.session import Session, SessionEnded


async def answered(runtime: Runtime, request: Json) -> dict[str, Json]:
    """Carry out one request; a mistake is an answer too."""
    try:
        return {"ok": True, **await perform(runtime, request)}
    except (RuntimeEnded, SupervisorClosed, SessionEnded) as error:
        gone = error.__cause__
        begun = isinstance(error, SessionEnded) and (not isinstance(gone, ActorGone) or gone.taken)
        return {"ok": False, "error": error.message, "exit_code": 75, "begun": begun}
    except TrouperError as error:
        return {"ok": False, "error": error.message, "exit_code": error.exit_code}


async def perform(runtime: Runtime, request: Json) -> dict[str, Json]:
    if not isinstance(request, Mapping) or not isinstance(request.get("do"), str):
        raise UsageError('a request is an object with "do"; see design/guides/command-line.md')
    match request["do"]:
        case "ping":
            return {"pid": runtime.environment.pid}
        case "cancel":
            session, id = await _session(runtime, request), _text(request, "id")
            await session.cancel(id, _text(request, "reason", ""))
            task = session.state.tasks.get(id)
            return {"state": task.state.value} if task is not None else {}
        case "approve":
            session = await _session(runtime, request)
            await session.approve(_text(request, "id"), always=request.get("always") is True, by="command line")
        case "deny":
            await (await _session(runtime, request)).deny(_text(request, "id"), _text(request, "reason", ""))
        case "interrupt":
            return await _interrupt(runtime, request)
        case "send":
            await (await _session_that_goes_on(runtime, request)).send(_text(request, "text"))
        case "close":
            await (await _session(runtime, request)).close(_text(request, "reason", ""))
        case "acknowledge":
            await _acknowledge(runtime, await _session_that_goes_on(runtime, request), _text(request, "id"))
        case "schedule":
            return await _schedule(await _session_that_goes_on(runtime, request), request)
        case "unschedule":
            await (await _session(runtime, request)).cancel_schedule(_text(request, "id"))
        case "remember":
            scope, key = _text(request, "scope"), _text(request, "key")
            await runtime.memory.remember(
                scope, key, request.get("value"), summary=_text(request, "summary", ""), ttl_s=request.get("ttl_s")
            )
        case "forget":
            return {"found": await runtime.memory.forget(_text(request, "scope"), _text(request, "key"))}
        case unknown:
            raise UsageError(f"there is no request {unknown!r}; the two programs may be of different versions")
    return {}


async def _session(runtime: Runtime, request: Mapping[str, Any]) -> Session:
    return await runtime.session(_known(runtime, request).id)


async def _session_that_goes_on(runtime: Runtime, request: Mapping[str, Any]) -> Session:
    """For what ends nothing: to open a session that waits for its tools without them would end its work."""
    name = _known(runtime, request).id
    if needs := runtime.not_taken_up.get(name):
        raise ConfigError(
            f"session {name!r} has work under way that needs {needs}, and would end without; do this where that is (--tools FILE, or the program that gave it), "
            f"or end the work first, with {to_type('tasks cancel TASK')} or {to_type(f'sessions interrupt {name}')}",
            session=name,
        )
    return await runtime.session(name)


def _known(runtime: Runtime, request: Mapping[str, Any]) -> SessionInfo:
    name = _text(request, "session")
    for known in runtime.sessions():
        if known.id == name:
            return known
    raise UsageError(f"there is no session {name!r}; {to_type('sessions')} lists them", session=name)


async def _interrupt(runtime: Runtime, request: Mapping[str, Any]) -> dict[str, Json]:
    """Whether there was anything to interrupt, and the runs that ended by it. What a dead process left open may end as its session is opened."""
    known = _known(runtime, request)
    left_open = not known.open and known.phase != Phase.IDLE.value
    left = () if known.open else [id for _, state in runtime._states(known.id) for id in state.tasks.live]
    session = await runtime.session(known.id)
    begun = await session._begin_interrupt(_text(request, "reason", ""))
    await session._wait_stopped(begun)
    tasks = (session.state.tasks.get(id) for id in left)
    ended = [{"task": task.id, "state": task.state.value} for task in tasks if task is not None and task.ended]
    return {"found": left_open or bool(begun.events) or bool(ended), "ended": ended}


async def _acknowledge(runtime: Runtime, session: Session, id: str) -> None:
    """Whoever acknowledges on the command line has read it: it is taken from the queue first, if it still waits there."""
    found = session.state.notifications.get(id)
    if found is None:
        raise UsageError(
            f"session {session.id!r} has no notification {id!r}; {to_type('notifications')} lists them", id=id
        )
    with session.hold_notifications():  # Or the model might be told of it in between.
        if found.state is NotificationState.QUEUED:
            await session._ask(DeliverNotifications(runtime.environment.now(), (NotificationId(id),)))
        await session.acknowledge(id)


async def _schedule(session: Session, request: Mapping[str, Any]) -> dict[str, Json]:
    message, tool = request.get("message"), request.get("tool")
    title = _text(request, "title", "") or (f"Run {tool}" if tool else str(message)[:60])
    made = await session.create_schedule(
        title=title,
        cron=request.get("cron"),
        at=request.get("at"),
        timezone=_text(request, "zone", "UTC"),
        tool=tool,
        arguments=request.get("arguments") if tool else None,
        message=message,
        missed=_text(request, "missed", "once"),  # type: ignore[arg-type]  # Looked at there.
    )
    return dict(made)


_REQUIRED = object()


def _text(request: Mapping[str, Any], name: str, default: Any = _REQUIRED) -> str:
    value = request.get(name, default)
    if value is _REQUIRED or not isinstance(value, str):
        raise UsageError(f'the request {request["do"]!r} needs "{name}" as text')
    return value
