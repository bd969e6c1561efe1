"""What after-hooks may look at (T5), found in the records of one session; denied calls too."""

from __future__ import annotations

from collections.abc import Iterator

from trouper import codec
from trouper.core.calls import ENDED
from trouper.core.events import CallEnded, ModelReplied, SessionClosed, TurnEnded
from trouper.core.ids import CallId
from trouper.core.messages import ToolCall
from trouper.core.session import State
from trouper.tools.hooks import AfterTool, AfterTurn, SessionEnded


class HookEvents:
    __slots__ = ("_asked",)

    def __init__(self, state: State) -> None:
        calls = state.turn.calls if state.turn is not None else ()
        #: Calls whose outcome hooks still wait for; also those that another process has left open.
        self._asked: dict[CallId, ToolCall] = {call.id: call.request for call in calls if call.phase is not ENDED}

    def of(self, record: codec.Record, after: State) -> Iterator[AfterTurn | AfterTool | SessionEnded]:
        session = record.session
        for event in record.events:
            match event:
                case ModelReplied(message=message):
                    self._asked.update((call.id, call) for call in message.calls)
                case CallEnded(call=call_id, outcome=outcome, content=content) if call_id in self._asked:
                    asked = self._asked.pop(call_id)
                    yield AfterTool(session, asked.name, asked.arguments, outcome.value, content, call_id)
                case TurnEnded(stop_reason=stop_reason):
                    yield AfterTurn(session, stop_reason, after.last.text if after.last is not None else "")
                case SessionClosed():
                    yield SessionEnded(session)
                case _:
                    pass
