"""Server-sent events, read from bytes (M2).

Lines end in CR, LF or CRLF and in nothing else: text readers also split at U+2028 and others of its kind, which stand unescaped in a model's JSON.
So lines are cut before anything is decoded, and a character whose bytes arrive in two pieces is never seen in halves.

Two things are read that the standard would pass over, because they are how servers say why they stop in mid-stream: Gemini writes its error as JSON without
a field before it, over many lines, and llama.cpp in a field called `error`.
"""

from __future__ import annotations

from typing import NamedTuple

from trouper.models._errors import ModelFault

#: More than any provider sends in one event, pictures included.
EVENT_BYTES_MAX = 64 * 1024 * 1024
BOM = b"\xef\xbb\xbf"


class ServerEvent(NamedTuple):
    data: bytes
    #: The name on the `event:` line, as Anthropic sends it; mostly empty.
    name: str = ""


class SseReader:
    """Feed it what the network gave, in whatever pieces; it returns the events that these complete."""

    def __init__(self, *, event_bytes_max: int = EVENT_BYTES_MAX) -> None:
        self._event_bytes_max = event_bytes_max
        #: Pieces of a line whose end has not come; joined once, when it does.
        self._line: list[bytes] = []
        self._line_bytes = 0
        #: The `data:` lines of the event at hand.
        self._data: list[bytes] = []
        #: Lines of a JSON object that stands where an event was to begin.
        self._bare: list[bytes] = []
        #: Of both.
        self._data_bytes = 0
        self._name = ""
        #: The last piece ended in CR: an LF that comes first in the next belongs to it.
        self._after_cr = False
        self._head: bytes | None = b""
        #: Comment lines seen: a provider's keep-alives.
        self.comments = 0

    def feed(self, piece: bytes) -> list[ServerEvent]:
        if self._head is not None:
            piece = self._without_bom(piece)
        if self._after_cr and piece:
            self._after_cr = False
            if piece[0] == 10:
                piece = piece[1:]
        if not piece:
            return []
        last = piece[-1]
        if last != 10 and b"\n" not in piece and b"\r" not in piece:
            self._hold(piece)
            return []
        if self._line:
            self._line.append(piece)
            piece = b"".join(self._line)
            self._line.clear()
            self._line_bytes = 0
        # `bytes.splitlines`, unlike that of `str`, knows these three line ends only.
        lines = piece.splitlines()
        if last == 13:
            self._after_cr = True
        elif last != 10:
            self._hold(lines.pop())
        return self._take(lines)

    def finish(self) -> list[ServerEvent]:
        """The event that the end of the stream left without its blank line, if any; it may be cut short."""
        lines = [b"".join(self._line), b""] if self._line else [b""]
        self._line.clear()
        return self._take(lines)

    def _take(self, lines: list[bytes]) -> list[ServerEvent]:
        events: list[ServerEvent] = []
        data, bare = self._data, self._bare
        for line in lines:
            if not line:
                if data:
                    events.append(ServerEvent(data[0] if len(data) == 1 else b"\n".join(data), self._name))
                    data.clear()
                    self._data_bytes = 0
                elif bare:
                    events.append(ServerEvent(b"\n".join(bare), self._name))
                    self._data_bytes = 0
                if bare:
                    bare.clear()
                self._name = ""
            elif line.startswith(b"data: "):
                data.append(line[6:])
                self._data_bytes += len(line) - 6
            elif bare or (line[0] == 123 and not data):
                bare.append(line)
                self._data_bytes += len(line)
            elif line[0] == 58:
                self.comments += 1
            else:
                field, _, value = line.partition(b":")
                value = value.removeprefix(b" ")
                if field == b"event":
                    self._name = value.decode("utf-8", "replace")
                elif field in (b"data", b"error"):
                    data.append(value)
                    self._data_bytes += len(value)
                    if field == b"error":
                        self._name = "error"
        if self._data_bytes:
            self._check_size()
        return events

    def _hold(self, piece: bytes) -> None:
        self._line.append(piece)
        self._line_bytes += len(piece)
        self._check_size()

    def _check_size(self) -> None:
        if self._data_bytes + self._line_bytes > self._event_bytes_max:
            raise ModelFault(
                f"the provider sent a single event of over {self._event_bytes_max:,} bytes; "
                "ask for less at once, or raise event_bytes_max"
            )

    def _without_bom(self, piece: bytes) -> bytes:
        assert self._head is not None
        head = self._head + piece
        if len(head) < len(BOM) and BOM.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(BOM)
