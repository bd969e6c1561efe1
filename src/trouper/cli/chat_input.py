"""Where the lines of a chat come from: a terminal, key by key, or a pipe, line by line."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import trio

from trouper.cli.chat_screen import Screen
from trouper.cli.line_editor import LINE_MAX, Key, LineEditor, Paste, Typed

_BRACKETED_PASTE = ("\x1b[?2004h", "\x1b[?2004l")
#: A paste comes in one go: after so long without a byte of it, its end has probably got lost.
PASTE_SILENCE_S = 1.0


@contextmanager
def raw_keys(descriptor: int) -> Iterator[None]:
    """The terminal hands over every key as it is pressed, and echoes none. Ctrl-C stays a signal; Ctrl-S does not stop the screen, which everything else would wait for."""
    import termios

    before = termios.tcgetattr(descriptor)
    now = termios.tcgetattr(descriptor)
    now[0] &= ~termios.IXON
    now[3] &= ~(termios.ICANON | termios.ECHO)
    now[6][termios.VMIN], now[6][termios.VTIME] = 1, 0
    termios.tcsetattr(descriptor, termios.TCSADRAIN, now)
    sys.stdout.write(_BRACKETED_PASTE[0])
    try:
        yield
    finally:
        sys.stdout.write(_BRACKETED_PASTE[1])
        sys.stdout.flush()
        termios.tcsetattr(descriptor, termios.TCSADRAIN, before)


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
