"""Questions that tools put to the user, open until the host answers, declines, or lets them lapse (T16).

A call that runs in the turn just waits, and its call is in the journal. A background run that asks makes its task wait for input, on the record; so is the answer (B11). If the turn lets
go of a call that has asked, the question is its task's from then on. A task waits for one question at a time; the others stand in line.
A secret's value goes to the secret store and nowhere else: what comes back, and what is recorded, is a reference.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

import trio

from trouper import checks
from trouper._errors import CommandRejected, UsageError
from trouper.core.ids import CallId, TaskId
from trouper.core.live import QuestionAsked
from trouper.core.messages import Json
from trouper.core.task_events import AnswerTaskInput, AskTaskInput
from trouper.core.task_record import Task
from trouper.core.values import changed, frozen
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
    def __init__(self, pending: PendingQuestion, attempt: int = 0) -> None:
        self.pending = pending
        #: Which attempt of its task asks.
        self.attempt = attempt
        #: Its task waits for it, as the record says or is about to.
        self.on_record = False
        self.reply: Reply | None = None
        self._moved = trio.Event()

    def settle(self, reply: Reply) -> None:
        if self.reply is None:
            self.reply = reply
            self.wake()

    def wake(self) -> None:
        """Have whoever asks look at it again."""
        self._moved.set()

    async def wait_moved(self) -> None:
        await self._moved.wait()
        self._moved = trio.Event()


class Questions:
    """Those of one session. An `Asker` for its tools, and the other side of it for the host."""

    def __init__(self, session: Session, secrets: Secrets | None) -> None:
        self._session = session
        self._secrets = secrets
        self._open: dict[str, _Open] = {}

    @property
    def pending(self) -> tuple[PendingQuestion, ...]:
        return tuple(each.pending for each in self._open.values() if each.reply is None)

    # -- the tool's side

    async def ask(
        self, questions: Sequence[Question], *, timeout_s: float | None = None, call: CallId | None = None
    ) -> Reply:
        # Nobody could answer what asks nothing, and it would be waited for all the same.
        asked: Sequence[object] = questions
        if not asked or not all(isinstance(each, Question) for each in asked):
            raise UsageError(f"{asked!r} asks nothing; write ask_user(Question('...'))")
        wait_s: object = timeout_s
        if wait_s is not None and not (isinstance(wait_s, int | float) and wait_s == wait_s):
            raise UsageError(f"a question waits for timeout_s={wait_s!r}; give seconds, or None to wait without end")
        if len(self._open) >= OPEN_MAX:
            raise CommandRejected(
                f"{OPEN_MAX} questions wait for an answer already; wait until some are settled", limit=OPEN_MAX
            )
        if any(question.secret for question in questions) and self._secrets is None:
            raise CommandRejected(
                "a secret was asked for, and this runtime has no place to keep one; open it on a root"
            )
        for question in questions:
            for said in (question.text, question.header, *question.choices):
                checks.text(said, "a question", checks.MESSAGE_MAX)
        session = self._session
        task = self._task_of(call)
        pending = PendingQuestion(
            session._actor.ground.environment.ids.new("question_"),
            tuple(questions),
            session._now(),
            call,
            None if task is None else task.id,
        )
        opened = self._open[pending.id] = _Open(pending, 0 if task is None else task.attempt)
        deadline = trio.current_time() + (float("inf") if timeout_s is None else timeout_s)
        try:
            if self._is_next(opened):
                await self._put_on_record(opened)
            session._actor.publish_live(QuestionAsked(pending.id, call, tuple(each.text for each in questions)))
            return await self._wait_reply(opened, deadline)
        except trio.Cancelled:
            self._withdraw(opened)  # The tool may have given up by a scope of its own, and go on with something else.
            raise
        finally:
            del self._open[pending.id]
            for other in self._of_task(opened.pending.task_id):
                other.wake()

    async def _wait_reply(self, opened: _Open, deadline: float) -> Reply:
        while True:
            if opened.reply is not None:
                return opened.reply
            with trio.move_on_at(deadline) as waiting:
                await opened.wait_moved()
            if waiting.cancelled_caught:
                with suppress(CommandRejected):  # An answer came first after all: that is the reply by now.
                    await self._settle(opened, Reply("timed_out"))
            elif self._is_next(opened):
                await self._put_on_record(opened)

    def _task_of(self, call: CallId | None) -> Task | None:
        """The task of a run that goes by this call's id; `None` for one that runs in the turn."""
        for task in self._session._state.tasks.live.values():
            if task.id == call or (task.about.kind == "tool" and task.about.origin_call == call):
                return task if task.attempt else None
        return None

    def _of_task(self, task_id: TaskId | None) -> Iterator[_Open]:
        """The open questions of a task, in the order in which they were asked."""
        return (each for each in self._open.values() if task_id is not None and each.pending.task_id == task_id)

    def _is_next(self, opened: _Open) -> bool:
        """Whether it is the one that its task should wait for, and does not yet."""
        return (
            opened.reply is None
            and not opened.on_record
            and next(self._of_task(opened.pending.task_id), None) is opened
        )

    async def _put_on_record(self, opened: _Open) -> None:
        pending, session = opened.pending, self._session
        assert pending.task_id is not None
        opened.on_record = True
        await session._ask(AskTaskInput(pending.task_id, opened.attempt, _request(pending), session._now()))
        if opened.reply is not None:
            await self._record(pending, opened.reply)  # The answer was faster.

    def _withdraw(self, opened: _Open) -> None:
        """Nobody waits for it any more. If that is because all of its run was cancelled, there is an end to come, and nothing to say."""
        task = self._session._state.tasks.live.get(opened.pending.task_id)
        if opened.on_record and opened.reply is None and task is not None and task.cancel_requested_at is None:
            actor = self._session._actor
            given_up = AnswerTaskInput(task.id, _given(Reply("timed_out")), self._session._now())
            if not actor.post(given_up):
                actor.start(actor.deliver, given_up)  # When there is room.

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
        if opened.reply is not None or id not in self._open:
            # Settled while a secret was on its way to its store: there it would wait for nobody.
            await self._forget(kept)
            raise _not_open(id)
        await self._settle(opened, Reply("answered", tuple(kept)))

    async def decline(self, id: str) -> None:
        await self._settle(self._known(id), Reply("declined"))

    async def _settle(self, opened: _Open, reply: Reply) -> None:
        if opened.on_record and opened.pending.task_id is not None:
            await self._record(opened.pending, reply)  # The record wakes the run: see `recorded`.
        opened.settle(reply)

    async def _record(self, pending: PendingQuestion, reply: Reply) -> None:
        task = self._session._state.tasks.live.get(pending.task_id)
        wanted = None if task is None else task.input_request
        # By now it may be another question that it waits for.
        if task is not None and isinstance(wanted, Mapping) and wanted.get("question_id") == pending.id:
            await self._session._ask(AnswerTaskInput(task.id, _given(reply), self._session._now()))

    # -- what the session records

    def recorded(self, task_id: TaskId, answer: Json) -> None:
        """An answer to a task's question is on record, from whomever it came."""
        for opened in self._of_task(task_id):
            if opened.on_record and isinstance(answer, Mapping):
                opened.settle(Reply(answer.get("status", "answered"), tuple(answer.get("values", ()))))

    def went_on(self, call: CallId, task_id: TaskId) -> None:
        """The turn has let go of a call: what that has asked is asked by its task from now on."""
        for opened in self._open.values():
            if opened.pending.call == call and opened.pending.task_id is None:
                opened.pending = changed(opened.pending, task_id=task_id)
                opened.attempt = 1
                opened.wake()

    async def _kept(self, id: str, number: int, question: Question, value: Json) -> Json:
        if not question.secret:
            return value
        assert self._secrets is not None
        name = f"{id}_{number}"
        await self._secrets.set(name, value)
        return {"secret": name}

    async def _forget(self, kept: Sequence[Json]) -> None:
        for each in kept:
            if isinstance(each, Mapping) and self._secrets is not None:
                await self._secrets.delete(each["secret"])

    def _known(self, id: str) -> _Open:
        opened = self._open.get(id)
        if opened is None or opened.reply is not None:
            raise _not_open(id)
        return opened


def _not_open(id: str) -> CommandRejected:
    return CommandRejected(f"no question {id!r} is open here; see session.questions: it may have lapsed", question=id)


def _given(reply: Reply) -> Json:
    return {"status": reply.status, "values": list(reply.values)}


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
        checks.text(value, f"the answer to {id!r}", checks.MESSAGE_MAX)
        if question.secret and not value:
            raise UsageError(f"{question.text!r} of {id!r} takes a secret that is not empty; or decline the question")
        return
    chosen = value if question.multiple and isinstance(value, list | tuple) else [value]
    strange = [each for each in chosen if each not in question.choices]
    if strange:
        raise UsageError(f"{strange[0]!r} is not among the choices of {id!r}; use one of {', '.join(question.choices)}")
