"""Questions that tools put to the user, open until the host answers, declines, or lets them lapse (T16).

A call that runs in the turn just waits, and its call is in the journal. A background run that asks makes its task wait for input, on the record; so does the answer (B11).
A secret's value goes to the secret store and nowhere else: what comes back, and what is recorded, is a reference.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import trio

from trouper._errors import CommandRejected, UsageError
from trouper.core.ids import CallId, TaskId
from trouper.core.live import QuestionAsked
from trouper.core.messages import Json
from trouper.core.task_events import AnswerTaskInput, AskTaskInput
from trouper.core.task_record import Task
from trouper.core.values import frozen
from trouper.tools.context import Question, Reply, Secrets

if TYPE_CHECKING:
    from trouper.session import Session

#: Questions of one session that are open at once.
OPEN_MAX = 64


@frozen
class PendingQuestion:
    """One set of questions that waits for the user."""

    id: str
    questions: tuple[Question, ...]
    asked_at: float
    call: CallId | None = None
    #: The task that waits for it, if a background run asks.
    task_id: TaskId | None = None


class _Open:
    def __init__(self, pending: PendingQuestion) -> None:
        self.pending = pending
        self.settled = trio.Event()
        self.reply: Reply | None = None

    def settle(self, reply: Reply) -> None:
        if self.reply is None:
            self.reply = reply
            self.settled.set()


class Questions:
    """Those of one session. An `Asker` for its tools, and the other side of it for the host."""

    def __init__(self, session: Session, secrets: Secrets | None) -> None:
        self._session = session
        self._secrets = secrets
        self._open: dict[str, _Open] = {}

    @property
    def pending(self) -> tuple[PendingQuestion, ...]:
        return tuple(each.pending for each in self._open.values())

    # -- the tool's side

    async def ask(
        self, questions: Sequence[Question], *, timeout_s: float | None = None, call: CallId | None = None
    ) -> Reply:
        if len(self._open) >= OPEN_MAX:
            raise CommandRejected(
                f"{OPEN_MAX} questions wait for an answer already; wait until some are settled", limit=OPEN_MAX
            )
        if any(question.secret for question in questions) and self._secrets is None:
            raise CommandRejected(
                "a secret was asked for, and this runtime has no place to keep one; open it on a root"
            )
        session = self._session
        task = self._task_of(call)
        pending = PendingQuestion(
            session._actor.ground.environment.ids.new("question_"),
            tuple(questions),
            session._now(),
            call,
            None if task is None else task.id,
        )
        opened = self._open[pending.id] = _Open(pending)
        try:
            if task is not None:
                await session._ask(AskTaskInput(task.id, task.attempt, _request(pending), session._now()))
            session._actor.publish_live(QuestionAsked(pending.id, call, tuple(each.text for each in questions)))
            with trio.move_on_after(float("inf") if timeout_s is None else timeout_s):
                await opened.settled.wait()
            if opened.reply is not None:
                return opened.reply
            if task is not None:
                await self._record(task.id, Reply("timed_out"))
            return Reply("timed_out")
        finally:
            del self._open[pending.id]

    def _task_of(self, call: CallId | None) -> Task | None:
        """The task of a run that goes by this call's id; `None` for one that runs in the turn."""
        for task in self._session._state.tasks.live.values():
            if task.id == call or (task.about.kind == "tool" and task.about.origin_call == call):
                return task if task.attempt else None
        return None

    # -- the host's side

    async def answer(self, id: str, values: Sequence[Json]) -> None:
        """One value for each question, in order; `UsageError` for what is no answer to it."""
        opened = self._known(id)
        questions = opened.pending.questions
        if len(values) != len(questions):
            raise UsageError(f"question {id!r} has {len(questions)} parts; give as many values, not {len(values)}")
        for question, value in zip(questions, values, strict=True):
            _check(id, question, value)
        kept = [
            await self._kept(id, number, question, value)
            for number, (question, value) in enumerate(zip(questions, values, strict=True), 1)
        ]
        await self._settle(opened, Reply("answered", tuple(kept)))

    async def decline(self, id: str) -> None:
        await self._settle(self._known(id), Reply("declined"))

    async def _settle(self, opened: _Open, reply: Reply) -> None:
        if opened.pending.task_id is not None:
            await self._record(opened.pending.task_id, reply)  # The record wakes the run: see `recorded`.
        opened.settle(reply)

    async def _record(self, task_id: TaskId, reply: Reply) -> None:
        task = self._session._state.tasks.live.get(task_id)
        if task is not None and task.input_request is not None:
            answer = {"status": reply.status, "values": list(reply.values)}
            await self._session._ask(AnswerTaskInput(task_id, answer, self._session._now()))

    def recorded(self, task_id: TaskId, answer: Json) -> None:
        """An answer to a task's question is on record, from whomever it came."""
        for opened in self._open.values():
            if opened.pending.task_id == task_id and isinstance(answer, Mapping):
                opened.settle(Reply(answer.get("status", "answered"), tuple(answer.get("values", ()))))

    async def _kept(self, id: str, number: int, question: Question, value: Json) -> Json:
        if not question.secret:
            return value
        assert self._secrets is not None
        name = f"{id}_{number}"
        await self._secrets.set(name, value)
        return {"secret": name}

    def _known(self, id: str) -> _Open:
        opened = self._open.get(id)
        if opened is None or opened.reply is not None:
            raise CommandRejected(
                f"no question {id!r} is open here; see session.questions: it may have lapsed", question=id
            )
        return opened


def _request(pending: PendingQuestion) -> Json:
    return {
        "question_id": pending.id,
        "questions": [
            {
                key: value
                for key, value in {
                    "text": each.text,
                    "choices": list(each.choices),
                    "multiple": each.multiple,
                    "secret": each.secret,
                }.items()
                if value
            }
            for each in pending.questions
        ],
    }


def _check(id: str, question: Question, value: Json) -> None:
    if not question.choices:
        if not isinstance(value, str):
            raise UsageError(f"{question.text!r} of {id!r} takes text, not {type(value).__name__}")
        if question.secret and not value:
            raise UsageError(f"{question.text!r} of {id!r} takes a secret that is not empty; or decline the question")
        return
    chosen = value if question.multiple and isinstance(value, list | tuple) else [value]
    strange = [each for each in chosen if each not in question.choices]
    if strange:
        raise UsageError(f"{strange[0]!r} is not among the choices of {id!r}; use one of {', '.join(question.choices)}")
