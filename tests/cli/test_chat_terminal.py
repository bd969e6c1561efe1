"""`trouper chat` on a terminal, recorded: spill, notification, interrupt, kill -9 and resume; the text, and its order."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
from terminal_driver import IN_SHELL, AtTerminal, in_order, wait_for_text

from trouper.testing.invariants import check_invariants

TOOLS = str(Path(__file__).with_name("slow_tools.py"))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    gates = tmp_path / "gates"
    gates.mkdir()
    monkeypatch.setenv("TEST_GATES", str(gates))
    return tmp_path


def chat(place: Path, *arguments: str, **options: Any) -> AtTerminal:
    return AtTerminal(
        "chat", "--root", str(place / "state"), "--tools", TOOLS, "--tools", "multiply", *arguments, **options
    )


def test_a_slow_tool_spills_the_chat_goes_on_and_the_notification_comes_while_one_types(place: Path) -> None:
    """B1, B2, B15: text, thinking, tool lines; what is half-typed stays whole."""
    with chat(place) as terminal:
        terminal.wait_for("session 'main', new; model simulated:plain")
        terminal.ask("what is 6 * 7?", "6 * 7 = 42.")
        terminal.ask("run harvest", "I will tell you when it is done.")
        terminal.ask("are you still there?", "You said: are you still there?")
        terminal.type("half a sen")
        terminal.wait_for("> half a sen")
        (place / "gates" / "open-north").touch()
        shown = terminal.wait_for("News: Task succeeded: Background call of harvest.")
        terminal.type("tence")
        terminal.wait_for("> half a sentence")
        terminal.type("\x15/quit\r")
        assert terminal.wait_end() == 0
    in_order(
        shown,
        "> what is 6 * 7?",
        "Next: 6 * 7.",
        "● Multiply: 6",
        "✓ Multiply: 6 (done)",
        "6 * 7 = 42.",
        "> run harvest",
        "I start harvest.",
        "● Harvest",
        "→ Harvest goes on in the background as task_",
        "harvest goes on in the background as task_",
        "> are you still there?",
        "You said: are you still there?",
        "■ succeeded: Background call of harvest",
        "✉ 1 notification",
        "News: Task succeeded: Background call of harvest.",
    )
    assert not check_invariants(place / "state", complete=True)


def test_ctrl_c_interrupts_the_turn_and_twice_quits(place: Path) -> None:
    """L15, L21: the first Ctrl-C ends the turn as `interrupt`; the session goes on; two in a row end the program with 130."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run ponder", "● Ponder")
        terminal.type("\x03")
        shown = terminal.wait_for("(interrupted)")
        in_order(shown, "● Ponder", "✗ Ponder cancelled", "and may have done part of its work.", "(interrupted)")
        terminal.ask("hello again", "You said: hello again")
        terminal.quit()
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("\x03")
        terminal.wait_for("(Ctrl-C again")  # Two signals that come at once would be one.
        terminal.type("\x03")
        assert terminal.wait_end() == 130
        assert "Traceback" not in terminal.text()
    assert not check_invariants(place / "state", complete=True)


def test_a_ctrl_c_for_the_next_line_is_no_second_one(place: Path) -> None:
    """L15, command line: soon after the first it ended the chat, and what was typed from then on went to the shell."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        for number in (1, 2, 3):
            terminal.line(f" run ponder {number}")
            terminal.wait_for("● Ponder", behind=f"run ponder {number}")
            terminal.type("\x03")
            terminal.wait_for("(interrupted)", behind=f"run ponder {number}")
        terminal.ask("are you there?", "You said: are you there?")
        terminal.quit()


def test_a_second_ctrl_c_quits_while_a_tool_does_not_stop_for_the_first(place: Path) -> None:
    """L21: a tool's clean-up may take its time; whoever presses Ctrl-C twice has the terminal back meanwhile."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run tidy_up", "● Tidy Up")
        terminal.type("\x03")
        terminal.wait_for("(interrupted)")
        terminal.type("\x03")
        terminal.wait_for_bytes(b"\x1b[?2004l")
        (place / "gates" / "tidied").touch()
        assert terminal.wait_end() == 130
    assert not check_invariants(place / "state", complete=True)


def test_what_is_typed_while_a_cancelled_tool_has_not_stopped_is_done_at_once_and_outlives_a_kill(place: Path) -> None:
    """L21, L10, J4: a tool's clean-up may take its time; what was typed meanwhile was shown as sent, and was in no journal."""
    (place / "state").mkdir()
    (place / "state" / "trouper.toml").write_text("[limits]\ngrace_s = 600\n")
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run tidy_up", "● Tidy Up")
        terminal.line("/cancel call_1_1_0")
        terminal.wait_for("✗ Tidy Up cancelled")
        terminal.ask("/tasks", "no tasks")
        terminal.ask("a thought", "You said: a thought")
        assert not (place / "gates" / "tidied").exists()
        terminal.kill()
        assert terminal.wait_end() == -9
    with chat(place) as terminal:
        terminal.ask("/history", 'user: "a thought"')
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def test_after_kill_9_the_next_start_takes_up_the_run_and_tells_of_the_turn(place: Path) -> None:
    """J12, B10: the journal knows what was open; the idempotent run is re-attached, and its one notification arrives."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run harvest", "I will tell you when it is done.")
        terminal.ask("run ponder", "● Ponder")
        terminal.kill()
        assert terminal.wait_end() == -9
    (place / "gates" / "open-north").touch()
    with chat(place) as terminal:
        shown = terminal.wait_for("News: Task succeeded: Background call of harvest.")
        terminal.quit()
    in_order(
        shown,
        "session 'main', 2 turns so far",
        "the last process ended in the middle of turn 2",
        "goes on, attempt 2: Background call of harvest",
        "■ succeeded: Background call of harvest",
        "✉ 1 notification",
        "News: Task succeeded",
    )
    assert shown.count("■ succeeded") == 1
    assert (place / "gates" / "started-north-2").exists()
    assert not check_invariants(place / "state", complete=True)


def test_whoever_leaves_is_told_which_tasks_the_next_start_takes_up_and_which_it_ends(place: Path) -> None:
    """B10: of all of them it was said that they would be taken up."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run harvest", "I will tell you when it is done.")
        terminal.ask("run deploy place=there", "→ Deploy goes on in the background")
        terminal.wait_for("I will tell you when it is done.", behind="run deploy")
        terminal.quit()
        shown = terminal.text()
    in_order(
        shown,
        "> /quit",
        "1 background task will be taken up at the next start",
        "the next start ends task_",
        ", for it cannot safely be run a second time: Background call of deploy",
    )
    (place / "gates" / "open-north").touch()
    with chat(place) as terminal:
        terminal.wait_for("■ succeeded: Background call of harvest")
        terminal.wait_for("Task interrupted: Background call of deploy")
        terminal.quit()
        assert "next start" not in terminal.text()
    assert not check_invariants(place / "state", complete=True)


def test_after_kill_9_the_chat_says_what_became_of_each_call_and_of_what_was_typed(place: Path) -> None:
    """J12, T11, L10: a call that had begun looked like one that had not, and the words that waited were a spinner without end."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run pay amount=99 password=hunter2", "● Pay: 99")
        terminal.ask("and a receipt", "pay · 1 message waiting")
        terminal.kill()
        assert terminal.wait_end() == -9
    with chat(place) as terminal:
        shown = terminal.wait_for("waits for your next line")
        in_order(
            shown,
            "the last process ended in the middle of turn 1",
            "✗ Pay: 99 (nobody knows whether it was done)",
            '"and a receipt" waits for your next line',
            ">",
        )
        assert "hunter2" not in shown
        assert "message waiting" not in terminal.ask("/tasks", "no tasks")
        terminal.ask("hello", "You said: hello")
        in_order(terminal.ask("/history", 'user: "hello"'), 'user: "and a receipt"', 'user: "hello"')
        terminal.ask("run sell what=apples", "/approve call_")
        terminal.kill()
        assert terminal.wait_end() == -9
    with chat(place) as terminal:
        shown = terminal.wait_for("✗ Sell: apples (never started)")
        assert "nobody knows" not in shown and "next line" not in shown
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def test_who_leaves_in_mid_turn_sees_what_becomes_of_it_and_so_does_who_comes_back(place: Path) -> None:
    """L21, T11, L10: nothing was said of what was cut off, then or later."""
    cut_off = ("✗ Pay: 7 (cancelled; it may have done part of its work)", '"and a receipt" waits for your next line')
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run pay amount=7", "● Pay: 7")
        terminal.ask("and a receipt", "pay · 1 message waiting")
        terminal.type("\x04")
        assert terminal.wait_end() == 0
        in_order(terminal.text(), "turn 1 is interrupted", *cut_off)
    with chat(place) as terminal:
        shown = terminal.wait_for("waits for your next line")
        in_order(shown, "turn 1 was interrupted by the end of the last process", *cut_off)
        terminal.ask("run pay amount=8", "● Pay: 8")
        terminal.ask("no receipt", "pay · 1 message waiting")
        terminal.type("\x03")
        shown = terminal.wait_for('"no receipt" waits for your next line')
        in_order(shown, "● Pay: 8", "✗ Pay cancelled", "(interrupted)", '"no receipt" waits')
        assert "waiting" not in _rest(terminal.ask("/tasks", "no tasks"), "(interrupted)")
        terminal.quit()
    with chat(place) as terminal:
        shown = terminal.wait_for('"no receipt" waits for your next line')
        assert "Pay" not in shown and "turn 2 was" not in shown  # It was seen as it happened.
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def _rest(text: str, behind: str) -> str:
    return text[text.rindex(behind) :]


def test_a_call_that_needs_approval_waits_for_the_users_word(place: Path) -> None:
    """T4: silence is no approval; /approve lets the call run, /deny refuses it."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run sell what=apples", "/approve call_1_1_0")
        terminal.ask("/approve", "sell says: sold apples")
        terminal.ask("run sell what=pears", "/approve call_2_1_0")
        shown = terminal.ask("/deny too cheap", "sell did not work (denied)")
        assert "too cheap" in shown
        terminal.quit()


def test_sigterm_ends_the_chat_in_order(place: Path) -> None:
    """I21: the terminal is left as it was, the journal is closed, the exit code is 143."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.kill(15)
        assert terminal.wait_end() == 143
        assert terminal.raw.endswith(b"\x1b[?2004l")
    assert not (place / "state" / "control.sock").exists()


def test_ctrl_z_hands_the_terminal_back_and_whoever_is_continued_takes_it_again(place: Path) -> None:
    """The shell sees what is typed into it; and the line that was begun goes on, key by key, below what the shell wrote."""
    with chat(place, command=IN_SHELL) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("half a li")
        terminal.wait_for("> half a li")
        terminal.type("\x1a")
        terminal.wait_for("the terminal is as it was")
        terminal.line("fg")
        terminal.wait_for("the terminal is as it was fg > half a li")
        terminal.type("nX\x7fe")
        terminal.wait_for("> half a line")
        in_order(terminal.ask("", "You said: half a line"), "fg", "> half a line", "You said: half a line")
        terminal.line("/quit")
        assert terminal.wait_end() == 0


def test_ctrl_z_does_nothing_where_nobody_could_continue_the_chat(place: Path) -> None:
    """As in a window of its own, whose first process it is."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("are you ")
        terminal.wait_for("> are you")
        terminal.type("\x1a")  # Alone: the system drops what stands unread before it.
        terminal.wait_for("> are you > are you")
        terminal.type("there?")
        in_order(terminal.ask("", "You said: are you there?"), "> are you there?", "You said: are you there?")
        terminal.quit()


def test_ctrl_backslash_ends_the_chat_at_once_and_leaves_the_terminal_as_it_was(place: Path) -> None:
    with chat(place, command=IN_SHELL) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("\x1c")
        terminal.wait_for("the terminal is as it was")
        assert terminal.wait_end() == signal.SIGQUIT
        assert b"\x1b[?2004l" in terminal.raw


def test_a_line_end_of_two_bytes_in_what_is_pasted_is_one(place: Path) -> None:
    """The terminal made two of it: every other line that was sent was empty."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("\x1b[200~one\r\ntwo\rthree\nfour\x1b[201~")
        terminal.wait_for("> one⏎two⏎three⏎four")
        terminal.ask("", "You said: one two three four")
        terminal.quit()


def test_ctrl_s_stops_nothing(place: Path) -> None:
    """I33: a terminal that holds its output back would hold up the runs in the background with it, and SIGTERM too."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("\x13")
        terminal.ask("are you there?", "You said: are you there?")
        terminal.kill(signal.SIGTERM)
        assert terminal.wait_end() == 143


def test_what_a_model_or_a_tool_says_cannot_drive_the_terminal(place: Path) -> None:
    """Security, tool results and terminals: ANSI, OSC and bidi characters are stripped, also from what the user pasted."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("say \u202eevil\u202c and done", "You said: say evil and done")
        terminal.ask("run shout", "shout says: BOOevil")
        terminal.ask("/history", "shout: ok")
        for sent in ("\u202e".encode(), b"\x1b]52", b"\x1b[2J", b"\x9b", b"c3RvbGVu"):
            assert sent not in terminal.raw
        terminal.quit()


def test_every_command_says_something_and_a_wrong_one_what_is_near(place: Path) -> None:
    """/help lists what there is; a command that has nothing to do says so; a mistake is one line and costs nothing."""
    answers = (
        ("/frob", "! there is no /frob; see /help"),
        ("/taks", "! there is no /taks; did you mean /tasks?"),
        ("/tasks", "no tasks"),
        ("/cancel", "! nothing is at work that could be cancelled"),
        ("/cancel task_x", "! session 'main' has no open call or task 'task_x'"),
        ("/compact", "nothing worth compacting"),
        ("/model", "model: simulated:plain"),
        ("/model llama", "! there is no model 'llama'; write gemini:NAME"),
        ("/model simulated", "model: simulated:plain"),
        ("/model simulated:plain", "model: simulated:plain"),
        ("/tools", "sell Sell something; somebody has to agree."),
        ("/approve", "! no call waits for an approval"),
        ("/deny", "! no call waits for an approval"),
        ("/answer yes", "! nobody asks anything"),
        ("/history", "nothing yet"),
        ("/memory", "nothing is remembered"),
        ("/notifications", "no notifications wait"),
        ("/interrupt", "nothing runs"),
    )
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        shown = terminal.ask("/help", "What you type during a turn steers it.")
        for command in ["tasks", "cancel", "compact", "model", "tools", "approve", "history", "memory", "help", "quit"]:
            assert f"  /{command} " in shown
        for line, answer in answers:
            terminal.ask(line, f"> {line}")
            # Two commands may have the same answer: what stands there already is none.
            terminal.wait_for(answer, behind=f"> {line}")
        terminal.quit()
        in_order(terminal.text(), *(part for line, answer in answers for part in (f"> {line}", answer)))


def test_files_are_attached_by_name_and_what_is_none_is_said_to_be_text(place: Path) -> None:
    """@file: text and binary go along; a missing file and a directory are told; one that is too large is not sent at all."""
    (place / "notes.md").write_text("tea: 12")
    (place / "odd.bin").write_bytes(bytes(range(256)))
    (place / "folder").mkdir()
    with (place / "huge.iso").open("wb") as huge:
        huge.truncate(30_000_000)
    with chat(place, cwd=place) as terminal:
        terminal.wait_for("/help for help")
        for line, answer in (
            ("look @notes.md @odd.bin", "with odd.bin"),
            ("look @missing.md", "(there is no file 'missing.md'; @missing.md is sent as text)"),
            ("look @folder", "(@folder is a directory, and is sent as text; name files)"),
            ("look @somebody", "You said: look @somebody"),
        ):
            terminal.ask(line, answer)
            terminal.wait_for(f"You said: {line}")
        assert "no file 'somebody'" not in terminal.text()
        terminal.ask("look @huge.iso", "! attachment 'huge.iso' has 30000000 bytes")
        terminal.line("/history")
        # Its answer is on the screen as it streams, and in the history only once it is recorded: so what was asked is waited for.
        shown = terminal.wait_for('user: "look @somebody"')
        assert 'user: "look @notes.md @odd.bin", with notes.md, with odd.bin' in shown
        assert 'user: "look @huge.iso"' not in shown
        terminal.quit()


def test_thinking_is_dim_and_can_be_left_out(place: Path) -> None:
    """Streaming: what the model thinks stands before what it says, in another shade; --no-thinking hides it."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.line("what is 6 * 7?")
        in_order(terminal.wait_for("6 * 7 = 42."), "Next: 6 * 7.", "● Multiply: 6", "6 * 7 = 42.")
        assert b"\x1b[2mNext:" in terminal.raw
        terminal.quit()
    with chat(place, "--no-thinking", NO_COLOR="1") as terminal:
        terminal.wait_for("1 turn so far")
        terminal.line("what is 2 * 3?")
        assert "Next:" not in terminal.wait_for("2 * 3 = 6.")
        assert b"\x1b[2m" not in terminal.raw and b"\x1b[3" not in terminal.raw  # NO_COLOR
        terminal.quit()


def test_a_task_is_listed_and_cancelled_from_the_chat(place: Path) -> None:
    """B5: /tasks names it, /cancel stops the only one there is, and its one notification follows."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("run harvest", "I will tell you when it is done.")
        terminal.ask("/tasks", "running 1/2 Background call of harvest")
        shown = terminal.ask("/cancel", "News: Task cancelled: Background call of harvest.")
        in_order(shown, "running 1/2", "> /cancel", "■ cancelled: Background call of harvest", "✉ 1 notification")
        assert shown.count("■ cancelled") == 1
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def test_killed_in_mid_sentence_the_next_start_shows_what_was_said(place: Path) -> None:
    """J12, L13: the words that the user saw are kept, and the conversation goes on."""
    story = " ".join(f"word{number}" for number in range(400))
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask(f"say {story}", "You said: say word0 word1 word2")
        # Kept once it is on the disk: not later than a second after it was said.
        wait_for_text(place / "state" / "segment-00000001.log", "You said: say word0")
        terminal.kill()
        assert terminal.wait_end() == -9
    with chat(place) as terminal:
        shown = terminal.wait_for("what it had said is kept")
        in_order(shown, "session 'main', 1 turn so far", "the last process ended in the middle of turn 1", "You said:")
        terminal.ask("are you there?", "You said: are you there?")
        terminal.quit()
    assert not check_invariants(place / "state", complete=True)


def test_what_a_tool_prints_stands_above_the_prompt(place: Path) -> None:
    """T1, T9, command line: it was drawn over, and the row with the spinner stayed; also from a thread, and by logging."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        terminal.type("half a sen")
        terminal.wait_for("> half a sen")
        terminal.type("\x15run debug\r")
        shown = terminal.wait_for("debug says: debugged")
        in_order(shown, "> run debug", "| printed here", "| to stderr", "| logged", "debug says: debugged")
        assert not [line for line in shown.splitlines() if line.startswith(("⠋", "⠙", "⠹", "⠸"))]
        assert b"c3RvbGVu" not in terminal.raw and b"\x1b[2m  | to stderr" in terminal.raw
        terminal.quit()


def test_what_a_tool_prints_at_once_comes_after_the_line_that_it_has_begun(place: Path) -> None:
    """L4, command line: it was shown before it, under what was said earlier."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        shown = terminal.ask("run announce", "announce says: announced")
        in_order(shown, "● Announce", "| at once", "✓ Announce", "announce says: announced")
        terminal.quit()


def test_a_tool_that_reads_stdin_takes_no_keys_from_the_chat(place: Path) -> None:
    """T1, T16, command line: it waited for them in a thread that nothing stops, and what was typed was lost."""
    with chat(place) as terminal:
        terminal.wait_for("/help for help")
        shown = terminal.ask("run inquire", "inquire did not work (error)")
        in_order(shown, "● Inquire", "a tool cannot read from stdin")
        terminal.ask("are you there?", "You said: are you there?")
        terminal.quit()


def test_a_terminal_that_can_do_nothing_gets_plain_lines(place: Path) -> None:
    with chat(place, TERM="dumb") as terminal:
        terminal.wait_for("/help for help")
        terminal.line("what is 6 * 7?")
        in_order(terminal.wait_for("6 * 7 = 42."), "Next: 6 * 7.", "● Multiply: 6", "✓ Multiply", "6 * 7 = 42.")
        terminal.quit()
        assert b"\x1b" not in terminal.raw


def test_twenty_columns_are_enough(place: Path) -> None:
    """No row is wider than the terminal, so nothing that was said is drawn over."""
    with chat(place, columns=20) as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("what is 6 * 7?", "6 * 7 = 42.")
        shown = terminal.ask("/tools", "Multiply two numbers.")
        in_order(shown, "> what is 6 * 7?", "Next: 6 * 7.", "6 * 7 = 42.", "> /tools", "sell", "Multiply two numbers.")
        terminal.quit()


def test_columns_that_the_terminal_does_not_have_are_not_written_to(place: Path) -> None:
    """`COLUMNS` may be of another window, or of this one before it was made smaller."""
    with chat(place, columns=60, COLUMNS="200") as terminal:
        terminal.wait_for("/help for help")
        terminal.ask("word " * 40 + "end", "You said: word")
        shown = terminal.wait_for("word end >")
        in_order(shown, "> word", "word end", "I say it back.", "You said: word", "word end")
        assert shown.count("You said:") == 1
        terminal.quit()


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "in mid-turn"])
def test_a_window_that_is_closed_ends_the_chat_in_order(place: Path, busy: bool) -> None:
    """I21: the input ends and a signal comes, in whichever order, and nothing can be written any more."""
    with chat(place) as terminal:
        terminal.wait_for("session 'main', new")
        if busy:
            terminal.line("run harvest")
            terminal.wait_for("I will tell you when it is done.")
        assert terminal.close_window() == 128 + signal.SIGHUP
    # Whoever is killed leaves its socket behind.
    assert not (place / "state" / "control.sock").exists()
