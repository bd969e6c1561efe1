"""Where the lines of a chat come from: a terminal, key by key, or a pipe, line by line."""

from __future__ import annotations

import errno
import math
import os
import signal
import termios
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TextIO

import trio

from trouper.cli.chat_screen import Screen
from trouper.cli.line_editor import LINE_MAX, Key, LineEditor, Paste, Typed

_BRACKETED_PASTE = ("\x1b[?2004h", "\x1b[?2004l")
#: A paste comes in one go: after so long without a byte of it, its end has probably got lost.
PASTE_SILENCE_S = 1.0


class Keys:
    """A terminal that hands over every key as it is pressed, and echoes none. Ctrl-C stays a signal; Ctrl-S does not stop the screen, which everything else would wait for."""

    def __init__(self, descriptor: int, out: TextIO) -> None:
        self._descriptor = descriptor
        self._out = out
        self._before = termios.tcgetattr(descriptor)

    def take(self) -> None:
        now = termios.tcgetattr(self._descriptor)
        # Line ends come as they are: in what is pasted, two bytes may be one.
        now[0] &= ~(termios.IXON | termios.ICRNL)
        now[3] &= ~(termios.ICANON | termios.ECHO)
        now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
        self._set(now)
        self._out.write(_BRACKETED_PASTE[0])

    def give_back(self) -> None:
        try:
            self._out.write(_BRACKETED_PASTE[1])
            self._out.flush()
        finally:  # A signal may come in the midst of writing.
            self._set(self._before)

    def _set(self, how: Any) -> None:
        while True:
            try:
                return termios.tcsetattr(self._descriptor, termios.TCSADRAIN, how)
            except termios.error as error:
                if error.args[0] != errno.EINTR:  # Stopped over it, in the background, and continued.
                    raise

    def stop(self) -> None:
        """Do what Ctrl-Z is for, with the terminal as it was; returns when the process goes on, with its keys. Nothing happens where nobody could continue it: the system sees to that."""
        self.give_back()
        handler = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        signal.raise_signal(signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, handler)
        self.take()

    def _quit(self, number: int, _: object) -> None:
        """Ctrl-\\ ends the program at once, whatever it is busy with; but not with a terminal on which nobody sees what is typed."""
        self.give_back()
        signal.signal(number, signal.SIG_DFL)
        signal.raise_signal(number)

    @contextmanager
    def taken(self) -> Iterator[Self]:
        before = signal.signal(signal.SIGQUIT, self._quit)
        self.take()
        try:
            yield self
        finally:
            self.give_back()
            signal.signal(signal.SIGQUIT, before)


async def typed_lines(descriptor: int, editor: LineEditor, screen: Screen) -> AsyncIterator[str]:
    """Lines from a terminal; ends at Ctrl-D on an empty line, or when the terminal goes away."""
    while True:
        with trio.move_on_after(PASTE_SILENCE_S if editor.paste is Paste.COMING else math.inf) as silence:
            await trio.lowlevel.wait_readable(descriptor)
        if silence.cancelled_caught:
            editor.paste = Paste.STALLED
            screen.say("(the end of what is pasted has not come; Ctrl-C takes it as it is)", "dim")
            continue
        try:
            data = os.read(descriptor, 65_536)
        except OSError:
            return
        if not data:
            return
        for action in editor.feed(data):
            match action:
                case Typed(text):
                    yield text
                case Key.END:
                    return
                case Key.FULL:
                    screen.say(
                        f"(a line holds {LINE_MAX:,} characters; what is more is left out: attach a file, @NAME)",
                        "yellow",
                    )
                case Key.REDRAW:
                    pass
        screen.redraw()
