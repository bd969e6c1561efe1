"""The list of seeded bugs: mistakes that somebody could make in the core or the actors, and which tests have to notice (see `mutants.py`).

Each is a piece of text that occurs exactly once in its file, and what takes its place. `tests/test_mutants.py` checks that, so the list cannot rot.
"""

from __future__ import annotations

from attrs import frozen

# Where bugs of a kind show, fastest first.
CORE = "property_tests/test_session_properties.py"
COMPACTION = "property_tests/test_compaction_properties.py"
HISTORY = "property_tests/test_history_properties.py"
CODEC = "property_tests/test_codec_properties.py"
SEEDED = "tests/actors/test_session_seeded.py"
CANCEL = "tests/actors/test_cancel_everywhere.py"
CRASH = "tests/actors/test_crash_everywhere.py"
STREAMS = "tests/actors/test_session_streams.py"
STEERING = "tests/actors/test_session_steering.py"
TOOLS = "tests/actors/test_session_tools.py"
TURNS = "tests/actors/test_session_turns.py"
BUDGETS = "tests/actors/test_session_budgets.py"
OUTPUT = "tests/actors/test_session_output.py"
APPROVALS = "tests/actors/test_session_approvals.py"
INTERRUPT = "tests/actors/test_session_interrupt.py"
RELAY = "tests/actors/test_session_relay.py"
AHEAD = "tests/actors/test_going_ahead.py"
RUNNING = "tests/actors/test_running.py"
DEADLINES = "tests/actors/test_deadlines.py"
DOOR = "tests/actors/test_door.py"
GROWING = "tests/core/test_growing.py"
NOTIFICATIONS = "tests/core/test_notification.py"
TASKS = "tests/core/test_task.py"
RUNS = "tests/actors/test_background_runs.py"
SCHEDULES = "tests/core/test_schedule.py"
WRITER = "tests/journal/test_writer.py"
MAILBOX = "tests/actors/test_mailbox.py"
#: The whole runtime, from so many seeds.
SIMULATED = "simulate 60"


@frozen
class Bug:
    id: str
    #: What is wrong with it, in a line.
    says: str
    #: Below src/trouper.
    file: str
    #: Occurs exactly once in the file.
    before: str
    after: str
    #: Paths or node ids of pytest, or `simulate N`: tried in this order until one fails.
    caught_by: tuple[str, ...]


BUGS: tuple[Bug, ...] = (
    # --- the journal comes first ---
    Bug(
        "no-wait-for-the-disk",
        "effects and replies do not wait until their record is on the disk (I2, I15)",
        "actors/session.py",
        "                    await self.ground.writer.wait_durable(taken.seq)\n",
        "                    await trio.lowlevel.checkpoint()\n",
        (SEEDED, SIMULATED),
    ),
    Bug(
        "no-wait-for-the-disk-as-a-turn-begins",
        "the model is asked before the turn's record is on the disk (I15)",
        "actors/session.py",
        "turn begins.\n                await self.ground.writer.wait_durable(taken.seq)\n",
        "turn begins.\n",
        (SEEDED, SIMULATED),
    ),
    Bug(
        "no-wait-for-the-disk-in-the-actor",
        "what comes through the mailbox does not wait until its record is on the disk (I15)",
        "actors/session.py",
        "await self.ground.writer.wait_durable(taken[-1].seq)",
        "await trio.lowlevel.checkpoint()",
        (SEEDED, SIMULATED),
    ),
    Bug(
        "state-before-the-disk",
        "the state is there to be seen before its record is durable: evolve and append are swapped (I15)",
        "actors/session.py",
        "                if (taken.durable or ahead",
        "                self.state, self.next_seq = taken.state, taken.record.n + len(taken.record.events)\n"
        "                if (taken.durable or ahead",
        (SEEDED,),
    ),
    Bug(
        "intent-is-buffered",
        "a reply, and with it the intent of its calls, is written without waiting for the disk (I2, J1)",
        "actors/recording.py",
        "    durable = kind not in _BUFFERED\n",
        '    durable = kind not in _BUFFERED and kind.__name__ != "DeliverReply"\n',
        (SEEDED, SIMULATED),
    ),
    Bug(
        "published-before-durable",
        "those who watch are told before the record is durable (I15)",
        "actors/session.py",
        "                if (taken.durable or ahead",
        "                self.audience.hear(taken.record, taken.seq)\n                if (taken.durable or ahead",
        (SEEDED,),
    ),
    Bug(
        "ahead-is-shown-at-once",
        "what went ahead of the disk is told and shown before it is durable (I15)",
        "actors/session.py",
        "        self._ahead = taken\n        return True\n",
        "        self._ahead = taken\n        self._show_ahead()\n        return True\n",
        (SEEDED,),
    ),
    Bug(
        "ahead-is-not-written",
        "a call that nobody could notice begins before its intent is even written (I2)",
        "actors/journal.py",
        "            if not log.write_ahead():\n                return False\n",
        "            pass\n",
        (AHEAD, SEEDED),
    ),
    Bug(
        "ahead-of-the-disk-into-the-world",
        "a call that somebody outside may notice begins before its intent is durable (I2, J1)",
        "tools/contract.py",
        "self.hints.readonly is True and self.hints.open_world is False and",
        "self.hints.readonly is True and",
        (AHEAD,),
    ),
    Bug(
        "nobody-syncs-what-is-ahead",
        "what was written ahead is synced only when somebody waits for something (J2)",
        "actors/journal.py",
        "        if self._is_idle() and self._has_unsynced():\n",
        "        if self._is_idle() and log.pending_count:\n",
        (AHEAD,),
    ),
    Bug(
        "decides-without-what-is-ahead",
        "a command is decided on without the reply that its call came from",
        "actors/session.py",
        "if ahead is None else (ahead.state, ahead.next_seq)",
        "if ahead is None else (self.state, self.next_seq)",
        (AHEAD,),
    ),
    Bug(
        "buffered-overtakes-what-is-ahead",
        "what nobody waits for shows what went ahead of the disk before that is durable (I15)",
        "actors/session.py",
        "(taken.durable or ahead is not None)",
        "taken.durable",
        (AHEAD,),
    ),
    Bug(
        "mailbox-does-not-catch-up",
        "what comes through the mailbox is decided on without what went ahead of the disk",
        "actors/session.py",
        "        await self._catch_up()\n        state, n = self.state, self.next_seq\n",
        "        state, n = self.state, self.next_seq\n",
        (AHEAD,),
    ),
    Bug(
        "cancel-ends-the-wait",
        "a cancelled caller no longer waits for its record: the shield around the hand-over is dropped (J2)",
        "actors/journal.py",
        "    return trio.lowlevel.Abort.FAILED",
        "    return trio.lowlevel.Abort.SUCCEEDED",
        (WRITER, CANCEL),
    ),
    Bug(
        "woken-by-any-sync",
        "a sync wakes everybody who waits, also those whose records came after it (J1)",
        "actors/journal.py",
        "                if seq <= durable:\n                    trio",
        "                if seq:\n                    trio",
        (WRITER,),
    ),
    Bug(
        "ack-although-the-sync-failed",
        "those who wait for a sync that failed are told that all is well (J11)",
        "actors/journal.py",
        "trio.lowlevel.reschedule(task, outcome.Error(self._failed()))",
        "trio.lowlevel.reschedule(task)",
        (WRITER,),
    ),
    Bug(
        "turn-without-a-shield",
        "a caller that is cancelled while its turn begins does not learn that it began, and nobody ends it (I6)",
        "session.py",
        "return await self._answer(self._ref.ask_shielded(command))",
        "return await self._answer(self._ref.ask(command))",
        (TURNS,),
    ),
    Bug(
        "leaving-is-not-shielded",
        "a cancelled caller leaves its turn behind: the shield around the interrupt is dropped (I6)",
        "session.py",
        "        with trio.CancelScope(shield=True):\n            try:\n                while True:",
        "        with trio.CancelScope():\n            try:\n                while True:",
        (CANCEL,),
    ),
    Bug(
        "epochs-fall",
        "each process writes under an earlier epoch than the one before (I13)",
        "ground.py",
        "        self.epoch = log.epoch\n",
        "        self.epoch = -log.epoch\n",
        (CRASH,),
    ),
    Bug(
        "one-event-id-for-all",
        "records of a session share one id, so the journal takes the second for a repetition (I14)",
        "codec.py",
        '        return f"{self.session}:{self.n}:{self.epoch}"',
        '        return f"{self.session}:{self.epoch}"',
        (TURNS,),
    ),
    Bug(
        "snapshot-ahead-of-its-states",
        "a snapshot claims records that a session has not taken in yet (I12, J13)",
        "snapshots.py",
        "            seq=min([self._log.durable, *(first - 1 for first in in_flight)]),\n",
        "            seq=self._log.last,\n",
        (SEEDED, SIMULATED),
    ),
    Bug(
        "snapshot-outlives-its-records",
        "a snapshot holds what was noted and is not on the disk yet; a power cut leaves it alone there (I17)",
        "snapshots.py",
        "            await self._writer.wait_durable(picture.covers)\n",
        "            await self._writer.wait_durable(picture.seq)\n",
        ("tests/actors/test_session_resume.py",),
    ),
    Bug(
        "fold-over-a-hole",
        "a fold passes over missing records (I13)",
        "roster.py",
        "        if n != next_seq:\n            raise",
        "        if n < next_seq:\n            raise",
        (CORE,),
    ),
    Bug(
        "cause-is-guessed",
        "a command's field is taken from the first event although the two differ (I18)",
        "writing.py",
        "if x is not other.{name} and not same(x, other.{name}):",
        "if other.{name} is None and x is not None:",
        (CODEC,),
    ),
    Bug(
        "nan-is-null-in-silence",
        "a value that JSON cannot hold is written as another, and the session goes on with the first (I10)",
        "codec.py",
        '    if exact and data.find(b"null") >= 0 and _has_no_number(value):',
        '    if exact and data.find(b"null") >= 0 and value is None:',
        (CODEC,),
    ),
    # --- turns and calls ---
    Bug(
        "foreign-error-with-a-cancel",
        "a client that fails while it is cancelled crashes its session (I23)",
        "actors/model_call.py",
        """                raise outside from None
""",
        """                raise
""",
        ("tests/actors/test_foreign.py",),
    ),
    Bug(
        "intent-is-skipped",
        "a call counts as running without a recorded intent (I2)",
        "core/session.py",
        "        calls=tuple(map(Call, calls, event.preparations)),",
        "        calls=tuple(\n"
        '            Call(request, prepared, RUNNING if prepared.verdict == "run" else REQUESTED, 1)\n'
        "            for request, prepared in zip(calls, event.preparations, strict=True)\n"
        "        ),",
        (CORE, SIMULATED),
    ),
    Bug(
        "interrupt-forgets-waiting-calls",
        "an interrupt ends only the calls that run; those that wait for an approval or their turn stay open (I1, L21)",
        "core/ending.py",
        "        for call in turn.calls:\n            if call.phase is not CallPhase.ENDED:\n                decision.emit(CallEnded(call.id, Outcome.CANCELLED, cut_short.told_of(call)))",
        "        for call in turn.calls:\n            if call.phase is CallPhase.RUNNING:\n                decision.emit(CallEnded(call.id, Outcome.CANCELLED, cut_short.told_of(call)))",
        (CORE,),
    ),
    Bug(
        "interrupt-settles-nothing",
        "an interrupt during tools leaves the calls unanswered in the history (I5, L21)",
        "core/ending.py",
        "                decision.emit(CallEnded(call.id, Outcome.CANCELLED, cut_short.told_of(call)))\n        decision.emit(ToolsSettled(turn.number, turn.step))",
        "                decision.emit(CallEnded(call.id, Outcome.CANCELLED, cut_short.told_of(call)))",
        (CORE,),
    ),
    Bug(
        "resumed-for-ever",
        "with on_restart=resume, a step that every process dies of is asked again at every start (J12)",
        "core/recovery.py",
        "    return state.phase is not Phase.ACTING and turn.restarts >= RESTARTS_MAX",
        "    return False",
        ("tests/core/test_session_core.py",),
    ),
    Bug(
        "waiting-calls-may-have-run",
        "of a call that was never started the model is told that it may have done part of its work (L21)",
        "core/calls.py",
        "        return self.phase is not REQUESTED and self.phase is not ASKING",
        "        return True",
        ("tests/core/test_session_core.py",),
    ),
    Bug(
        "secrets-in-live-reports",
        "what a tool says while it runs is shown with the secrets in it (I36)",
        "actors/sink.py",
        "        self.publish(ToolStatus(self.call, self.redact(text)))",
        "        self.publish(ToolStatus(self.call, text))",
        ("tests/test_redaction.py",),
    ),
    Bug(
        "results-as-they-come",
        "results enter the history in the order in which they came, not as declared (L7, I5)",
        "core/session.py",
        "    approvals = state.approvals\n    if approvals:",
        "    calls = (*(c for c in calls if c.id != event.call), *(c for c in calls if c.id == event.call))\n"
        "    approvals = state.approvals\n    if approvals:",
        (CORE,),
    ),
    Bug(
        "late-result-counts",
        "a second result of a call replaces the first (I1, I9)",
        "core/steps.py",
        "find_call(state, command.call, RUNNING) or find_call(state, command.call, HELD)",
        "find_call(state, command.call, RUNNING) or find_call(state, command.call, ENDED)",
        (CORE,),
    ),
    Bug(
        "stale-reply-accepted",
        "the reply of a discarded turn is taken for one of the running turn (I8)",
        "core/steps.py",
        "running.number == turn and running.step == step_number",
        "running.step == step_number",
        (CORE,),
    ),
    Bug(
        "too-many-calls-at-once",
        "the cap on calls that run at once is not kept (L8)",
        "core/calls.py",
        "            if running < limit and (kind",
        "            if (kind",
        (CORE, TOOLS),
    ),
    Bug(
        "classes-overlap",
        "calls of one concurrency class run side by side (L8)",
        "core/calls.py",
        "        if kind is not None:\n            busy.add(kind)",
        "        if kind is not None and call.phase is CallPhase.ASKING:\n            busy.add(kind)",
        (CORE, TOOLS),
    ),
    Bug(
        "approval-counts-twice",
        "an approval is taken for a call that is not waiting for one, and starts it again (I4, T4)",
        "core/decisions.py",
        '            steps.require_phase(state, call, ASKING, "is not waiting for an approval")\n',
        '            if not steps.is_open(state, call):\n                raise CommandRejected("no such call")\n',
        (CORE, APPROVALS),
    ),
    Bug(
        "approved-once-for-all",
        "one approval holds for every later call of the tool (T4)",
        "core/session.py",
        "    if event.always:\n",
        "    if event.by is not None:\n",
        (SEEDED, APPROVALS),
    ),
    Bug(
        "silence-is-success",
        "a turn without a word ends as if it had one (L9)",
        "core/steps.py",
        "    if _says_nothing(command.message) and command.stop_reason",
        "    if not command.message.parts and command.stop_reason",
        (TURNS,),
    ),
    Bug(
        "mismatch-ignored",
        "output that does not follow the schema is accepted",
        "core/steps.py",
        "    elif command.mismatch is not None and command.stop_reason not in",
        "    elif turn.corrected and command.mismatch is not None and command.stop_reason not in",
        (OUTPUT,),
    ),
    Bug(
        "steering-is-lost",
        "words that come during a turn are taken in, and never reach the model (L10)",
        "core/session.py",
        "        history = history.append(waiting.message)",
        "        history = history.append(waiting.message) if state.turn is None else history",
        (STEERING,),
    ),
    Bug(
        "turn-ends-over-its-input",
        "a turn about to end does not look whether the user has said something (L10)",
        "core/steps.py",
        "elif more_steps and decision.state.queue:",
        "elif more_steps and decision.state.queue and turn.options.max_steps > 10**6:",
        (STEERING,),
    ),
    Bug(
        "input-for-a-turn-that-ends",
        "a turn without a step left takes in what nobody will answer (L10, I26)",
        "core/steps.py",
        """        # What waits is left where it is: no model would see it in this turn, so it gets one of its own (L10, I26).
""",
        """        _take_inputs(decision)
""",
        (STEERING,),
    ),
    Bug(
        "input-waits-for-another-step",
        "what was said during a compaction is not in the request that follows it (L10)",
        "core/steps.py",
        """        _take_inputs(decision)
        if not _spent_out(decision, turn, command.at):""",
        """        if not _spent_out(decision, turn, command.at):""",
        (STEERING,),
    ),
    Bug(
        "words-that-were-overtaken",
        "an interrupt that overtakes a complete reply loses what everybody has seen of it (L13)",
        "actors/asking.py",
        """            return await call.run(running, finish)
        finally:
            notes.discard(call)""",
        """            return await call.run(running, finish)
        finally:
            notes.discard(call)
            self.forget()""",
        (INTERRUPT,),
    ),
    Bug(
        "queued-input-gets-no-turn",
        "input that came too late for its turn waits for ever (I26)",
        "core/outstanding.py",
        "    if state.queue and state.phase is IDLE and not state.held:",
        "    if state.queue and state.phase is None and not state.held:",
        (CORE, STEERING),
    ),
    Bug(
        "loop-guard-one-late",
        "the loop guard ends a turn one round too late (L23)",
        "core/steps.py",
        "turn.repeats >= options.loop_warn + options.loop_end:",
        "turn.repeats > options.loop_warn + options.loop_end:",
        (CORE,),
    ),
    Bug(
        "any-round-is-a-repeat",
        "rounds that differ count as repetitions (L23)",
        "core/session.py",
        "if fingerprint == turn.fingerprint else 1",
        "if len(fingerprint) == len(turn.fingerprint) else 1",
        (CORE,),
    ),
    Bug(
        "budget-overshoot",
        "a budget is noticed only when it is overspent (I27)",
        "core/steps.py",
        "        if used >= cap:\n            fault",
        "        if used > cap:\n            fault",
        (CORE, BUDGETS),
    ),
    Bug(
        "one-step-too-many",
        "a turn takes one step more than it may (L2, I27)",
        "core/steps.py",
        "turn.options.max_steps and turn.step >= turn.options.max_steps:",
        "turn.options.max_steps and turn.step > turn.options.max_steps:",
        (CORE,),
    ),
    Bug(
        "warned-again-and-again",
        "the warning at 80 % comes at every step (L25)",
        "core/steps.py",
        "        if cap and used >= cap * WARN_SHARE and cap_told(what, cap) not in decision.state.warned:",
        "        if cap and used >= cap * WARN_SHARE:",
        (CORE, BUDGETS),
    ),
    Bug(
        "no-time-limit",
        "the wall time of a turn is not watched (L25)",
        "core/outstanding.py",
        "        if turn.deadline_at is not None:\n",
        "        if turn.deadline_at is not None and state.phase is None:\n",
        (BUDGETS, "tests/core/test_session_core.py"),
    ),
    Bug(
        "partial-text-is-lost",
        "what the model had said before an interrupt is forgotten (L13)",
        "core/ending.py",
        "    kept = partial if state.phase is Phase.THINKING else None\n",
        "    kept = partial if state.phase is Phase.ACTING else None\n",
        (INTERRUPT,),
    ),
    Bug(
        "events-after-the-end",
        "a session can be closed, and then once more (I16)",
        "core/decisions.py",
        "    if state.phase is CLOSED:\n        _after_close(decision, command)\n        return\n",
        "    if state.phase is CLOSED and not isinstance(command, Interrupt | DeliverResult):\n"
        "        _after_close(decision, command)\n        return\n",
        (CORE,),
    ),
    # --- streams and tools ---
    Bug(
        "half-built-call-runs",
        "a call whose arguments never came to their end is run (L13)",
        "actors/draft.py",
        "        self.ended = False\n",
        "        self.ended = True\n",
        (STREAMS, SEEDED),
    ),
    Bug(
        "reconnect-after-progress",
        "a stream that drops after its first words is opened again: the user sees them twice (L13)",
        "actors/model_call.py",
        "            final = self.draft.progressed or attempt",
        "            final = attempt",
        (STREAMS,),
    ),
    Bug(
        "retry-the-hopeless",
        "a fault that no retry can mend is tried again (L11)",
        "actors/model_call.py",
        "                return fault.retryable\n",
        "                return True\n",
        (STREAMS,),
    ),
    Bug(
        "keep-alives-are-speech",
        "a stream that only keeps alive is never given up (L12)",
        "actors/model_call.py",
        "_NO_SPEECH = frozenset({KeepAlive, UsageChunk})",
        "_NO_SPEECH = frozenset({UsageChunk})",
        (STREAMS,),
    ),
    Bug(
        "whitespace-is-progress",
        "leading white space counts as progress, so a drop after it ends the turn (L5)",
        "actors/draft.py",
        "        if not self.progressed and text and not text.isspace():",
        "        if not self.progressed and text:",
        (STREAMS,),
    ),
    Bug(
        "unwanted-work-goes-on",
        "work that nobody wants any more is not stopped (I8, L21)",
        "actors/session.py",
        "                unwanted.stop()\n",
        "",
        (SEEDED, INTERRUPT),
    ),
    Bug(
        "interrupt-does-not-wait",
        "interrupt() returns while the tools still run (L21)",
        "session.py",
        "            for running in stopped.cancelled:\n",
        "            for running in stopped.cancelled[:0]:\n",
        (CANCEL,),
    ),
    Bug(
        "tools-change-in-mid-turn",
        "a tool that is added while a turn runs is offered at once (L3)",
        "actors/asking.py",
        "            tools=self._host.specs,\n            parallel_tool_calls",
        "            tools=self._host.outfit.registry.specs(),\n            parallel_tool_calls",
        (TURNS,),
    ),
    Bug(
        "a-bug-is-shown-to-the-model",
        "the text of an unexpected exception goes to the model (L20)",
        "actors/tool_call.py",
        "Shaped(INTERNAL)",
        "Shaped(repr(error))",
        (TOOLS,),
    ),
    # --- restarts ---
    Bug(
        "restart-runs-it-again",
        "after a restart a tool that may run once only is run again (I4, J12)",
        "core/recovery.py",
        '        if call.preparation.side_effect != "at_most_once" and call.attempt < REATTACH_MAX:',
        "        if call.attempt < REATTACH_MAX:",
        (CORE, SEEDED),
    ),
    Bug(
        "recovery-is-never-done",
        "recovering again adds events (I17)",
        "core/recovery.py",
        "    turn = state.turn\n    if turn is None:\n        return\n    open_calls",
        "    turn = state.turn\n    if turn is None:\n        decision.emit(RecoveryNoted(command.at, None))\n        return\n    open_calls",
        (CORE,),
    ),
    Bug(
        "unknown-is-called-cancelled",
        "a call that ran when the process died is said to have been cancelled (J12)",
        "core/recovery.py",
        "        outcome = Outcome.UNKNOWN if started else Outcome.CANCELLED",
        "        outcome = Outcome.CANCELLED",
        (CRASH,),
    ),
    Bug(
        "recovered-runs-start-over",
        "recovery takes over runs that are this process's own, and starts them anew (I17, B10)",
        "core/task.py",
        "    if task.owner == command.owner:\n",
        "    if task.owner is None:\n",
        (CORE, TASKS),
    ),
    # --- compaction ---
    Bug(
        "compaction-grows",
        "a summary that is longer than what it stands for is installed (I35)",
        "core/compacting.py",
        "        if history.tokens < state.history.tokens and history.sound:",
        "        if history.sound:",
        (COMPACTION,),
    ),
    Bug(
        "compaction-orphans",
        "the split falls between a call and its result (L29, I5)",
        "core/compaction.py",
        '    while split > 0 and messages[split].role == "tool":\n        split -= 1\n    # An earlier',
        "    # An earlier",
        (COMPACTION,),
    ),
    Bug(
        "summary-of-something-else",
        "a summary is installed although the history changed meanwhile (L31)",
        "core/steps.py",
        "    if started is None or started.split != command.split:",
        "    if started is None:",
        (COMPACTION,),
    ),
    Bug(
        "overflow-for-ever",
        "every refused context is compacted again, without end (L32)",
        "core/steps.py",
        'if command.fault.kind == "context_overflow" and not turn.forced and not command.progressed:',
        'if command.fault.kind == "context_overflow" and not command.progressed:',
        (COMPACTION,),
    ),
    Bug(
        "overflow-after-progress",
        "a reply that a user has seen half of is asked for again (L13, L32)",
        "core/steps.py",
        'if command.fault.kind == "context_overflow" and not turn.forced and not command.progressed:',
        'if command.fault.kind == "context_overflow" and not turn.forced:',
        ("tests/actors/test_session_compaction.py",),
    ),
    Bug(
        "mask-the-newest",
        "the results of the last turns are masked too (L27)",
        "core/compaction.py",
        "    return (*masked, *messages[before:]), saved",
        "    return (*masked, *(m for m in messages[before:] if m.role != 'tool')), saved",
        (COMPACTION,),
    ),
    Bug(
        "repair-keeps-orphans",
        "a history is repaired with the answers of calls that are not there (I5)",
        "core/history.py",
        "                continue  # Taken together with the calls it answers.",
        "                kept.append(message)",
        (HISTORY,),
    ),
    # --- tasks, notifications, schedules ---
    Bug(
        "interrupt-acknowledges",
        "a notification whose turn was interrupted counts as told (I30)",
        "core/background.py",
        '_REQUEUE = frozenset({"interrupt", "error", "budget"})',
        '_REQUEUE = frozenset({"error", "budget"})',
        (SEEDED,),
    ),
    Bug(
        "requeued-for-ever",
        "a notification that never gets through is tried without end (B14)",
        "core/notification.py",
        "if limits.attempts and notifications.pending[key].attempts >= limits.attempts)",
        "if limits.attempts and notifications.pending[key].attempts < 0)",
        (NOTIFICATIONS,),
    ),
    Bug(
        "told-twice-of-one-end",
        "a dedupe key is not looked at: one end, two notifications (I29)",
        "core/notification.py",
        "    if notifications.keyed(command.dedupe_key) is not None:",
        "    if command.dedupe_key is not None and not command.dedupe_key:",
        (NOTIFICATIONS,),
    ),
    Bug(
        "a-silent-end",
        "the end of a silent task is told to nobody (I29)",
        "core/notification.py",
        "    if isinstance(event, TaskEnded):\n",
        '    if isinstance(event, TaskEnded) and wake != "silent":\n',
        (NOTIFICATIONS, TASKS),
    ),
    Bug(
        "spill-without-a-permit",
        "a call spills although there is no permit for its run (B2, I19)",
        "core/background.py",
        "        except CommandRejected:\n            continue\n        active",
        "        except CommandRejected:\n            pass\n        active",
        (RUNS,),
    ),
    Bug(
        "spills-of-one-step-share-a-permit",
        "calls that spill together count as one run of the runtime (I19)",
        "core/background.py",
        "        active_in_runtime += 1\n",
        "",
        (RUNS,),
    ),
    Bug(
        "one-run-too-many",
        "a session may have one run more than its limit (I19)",
        "core/task.py",
        "    if tasks.active >= limits.per_session:\n",
        "    if tasks.active > limits.per_session:\n",
        (TASKS,),
    ),
    Bug(
        "permits-leak",
        "a run that has ended keeps its permit (I19)",
        "actors/recording.py",
        "    if after.tasks is not state.tasks:\n",
        "    if after.tasks.active > state.tasks.active:\n",
        (SEEDED,),
    ),
    Bug(
        "stale-attempt-writes",
        "an attempt that was superseded still reports, and ends the task (I28)",
        "core/task.py",
        "    if task.ended or command.attempt != task.attempt or task.state is S.QUEUED:",
        "    if task.ended or task.state is S.QUEUED:",
        (TASKS,),
    ),
    Bug(
        "close-leaves-runs",
        "a session is closed while its runs go on (I20)",
        "core/background.py",
        '    for event in task.abandon(decision.state.tasks, at, reason or "The session was closed.", saved):\n        decision.emit(event)\n',
        "",
        (CORE,),
    ),
    Bug(
        "claimed-for-ever",
        "a fire that two crashes left open is claimed a third time (I32)",
        "core/schedule.py",
        "    (F.CLAIMED, ScheduleFireReclaimed): F.RECLAIMED,\n",
        "    (F.CLAIMED, ScheduleFireReclaimed): F.CLAIMED,\n",
        (SCHEDULES,),
    ),
    # --- those who watch; bounds ---
    Bug(
        "subscriber-sees-it-twice",
        "what was read from the journal is told again by the live feed (I33)",
        "subscription.py",
        "            if item is not None and self._number(item) > self._after:",
        "            if item is not None:",
        (SEEDED,),
    ),
    Bug(
        "subscriber-misses-some",
        "a subscriber that lagged behind goes on with the live feed: a gap (I33)",
        "subscription.py",
        "        except Lagged:\n            self._is_live = False\n",
        "        except Lagged:\n",
        (SEEDED,),
    ),
    Bug(
        "feed-without-a-bound",
        "the queue of a reader that does not read grows without end (I25)",
        "actors/feed.py",
        "            self._lagged = True\n            return\n",
        "            pass\n",
        (SEEDED,),
    ),
    Bug(
        "mailbox-without-a-bound",
        "a full mailbox accepts more (I25)",
        "actors/mailbox.py",
        "        elif len(self.queue) < self.capacity:\n",
        "        elif self.capacity:\n",
        (MAILBOX,),
    ),
    Bug(
        "endless-input",
        "input is queued without a bound while a turn runs (I25)",
        "core/decisions.py",
        "    if busy and len(state.queue) >= command.queue_max:\n",
        "    if command.queue_max < 0:\n",
        (STEERING,),
    ),
    # --- who decides, and on what ---
    Bug(
        "two-decide-at-once",
        "the actor does not wait for a task that decides in its place (I13)",
        "actors/session.py",
        "            await self._turnstile.wait_free()\n",
        "            self._turnstile.taken = False\n",
        (RELAY, SIMULATED),
    ),
    Bug(
        "a-turnstile-that-is-left-in-mid-wait",
        "a cancel lets go of the wait for whoever decides, and of the commands that were taken from the mailbox (I6)",
        "actors/turnstile.py",
        "        with trio.CancelScope(shield=True):\n",
        "        with trio.CancelScope():\n",
        (RELAY,),
    ),
    Bug(
        "a-stop-that-comes-too-late",
        "a stop or a deadline of work that has ended hits what its task does next (I6, I8)",
        "actors/running.py",
        "        lane.deadlines.discard(self)\n        if self._cancelled:\n            self.close_left_open()\n        scope, self._scope = self._scope, None\n",
        "        if self._cancelled:\n            self.close_left_open()\n        scope = self._scope\n",
        (RUNNING,),
    ),
    Bug(
        "a-scope-that-was-used-up",
        "what follows on work that was stopped is cancelled with it (I8)",
        "actors/running.py",
        "            lane.scope = None\n            caught = scope.__exit__(kind, value, trace)\n",
        "            caught = kind is trio.Cancelled\n",
        (RUNNING, INTERRUPT),
    ),
    Bug(
        "a-scope-that-foreign-code-left-open",
        "a time-out that a tool left open hits the work that follows it (I23)",
        "actors/running.py",
        "            lane.__exit__(kind, value, trace)  # A scope was left open",
        "            pass  # A scope was left open",
        (RUNNING, "tests/actors/test_foreign.py"),
    ),
    Bug(
        "stopped-and-begun-all-the-same",
        "work that was stopped before it began runs to its end if it never waits (I8)",
        "actors/running.py",
        "        return not self.stopped\n",
        "        return True\n",
        (RUNNING,),
    ),
    Bug(
        "a-deadline-that-is-brought-forward",
        "a deadline that comes before the next look at them is seen too late (L12)",
        "actors/deadlines.py",
        "        if deadline < self._alarm.at:\n            self._alarm.hasten(deadline)\n",
        "",
        (DEADLINES,),
    ),
    Bug(
        "a-deadline-that-moved-and-was-forgotten",
        "a deadline that moved on between two looks at all of them is never seen again (L12)",
        "actors/deadlines.py",
        "                    self.add(running)  # It has moved on.\n",
        "                    pass\n",
        (DEADLINES,),
    ),
    Bug(
        "due-and-not-first",
        "a budget that has run out waits until all that is there has had its turn (B1)",
        "actors/work.py",
        "                if door.is_crowded:\n",
        "                if False:\n",
        ("tests/actors/test_background_runs.py",),
    ),
    Bug(
        "all-let-in-at-once",
        "those who gave way to what was due begin all at once (B1)",
        "actors/door.py",
        "        self._let_in(AT_ONCE_MAX - 1)\n",
        "        self._let_in(len(self._queue))\n",
        (DOOR,),
    ),
    Bug(
        "a-door-that-stays-shut",
        "those who gave way are not let in when the one who went first is through (B1)",
        "actors/door.py",
        "            self._ahead -= 1\n            self.hurry()\n",
        "            self._ahead -= 1\n",
        (DOOR,),
    ),
    Bug(
        "a-door-that-nobody-keeps",
        "who gave way to what was due waits for ever when the actor that lets them in has ended (I24)",
        "actors/door.py",
        "            while self._queue or self._new:\n                self._let_in(len(self._queue))\n",
        "            self._queue.clear()\n",
        (DOOR,),
    ),
    Bug(
        "a-place-that-a-ctrl-c-takes",
        "a Ctrl-C right behind the gate takes a place there for good, and after a few no turn begins (I23)",
        "session.py",
        "    @ki_safe  # A Ctrl-C right behind the gate would take a place there for good.\n",
        "",
        ("tests/test_shutdown.py",),
    ),
    Bug(
        "a-budget-that-outlives-its-call",
        "the budget of a call that has ended lets go of whatever bears its name by then (B1)",
        "actors/runs.py",
        "            allowance.end(call.id)\n",
        "            pass\n",
        ("tests/actors/test_background_runs.py",),
    ),
    Bug(
        "a-budget-that-is-put-off-for-ever",
        "calls that begin one after the other put off the budget of the first (B1)",
        "actors/allowance.py",
        "and now <= self._until and",
        "and",
        ("tests/actors/test_allowance.py",),
    ),
    Bug(
        "work-that-never-lets-go",
        "a model and tools that never wait keep every other task waiting (L15)",
        "actors/work.py",
        "            if relayed % RELAYS_MAX == 0:\n",
        "            if relayed < 0:\n",
        (RELAY,),
    ),
    Bug(
        "one-history-shows-in-another",
        "a history that is grown twice shows the other's message (I10)",
        "core/growing.py",
        "        if store[length] is not item:\n",
        "        if len(store) <= length:\n",
        (GROWING,),
    ),
)
