"""Some lines of a file of any size (T14): one pass over it, holding no more than what is shown."""

from __future__ import annotations

import codecs
from collections.abc import Iterable

from attrs import define, field

from trouper.core.messages import Json
from trouper.threads import check_cancelled
from trouper.tools.builtin.session_files import FILE_READ_MAX
from trouper.tools.errors import ToolError
from trouper.tools.guards.descriptors import new_hash
from trouper.tools.guards.linear_grep import is_binary
from trouper.tools.terminal_text import RETURN_SIGN, returns_shown

LINES_MAX = 2000
READ_BYTES_MAX = 50 * 1024
_MARK = b"\xef\xbb\xbf"


def read_lines(pieces: Iterable[bytes], path: str, offset: int, limit: int, column: int) -> dict[str, Json]:
    """Lines `offset` and on, the first from byte `column`: as many as fit both limits. With size and hash of the whole file."""
    digest, size, binary = new_hash(), 0, False
    excerpt = _Excerpt(offset)
    for piece in pieces:
        check_cancelled()
        binary = binary or (size == 0 and is_binary(piece))
        digest.update(piece)
        excerpt.take(piece.removeprefix(_MARK) if size == 0 else piece, column)
        size += len(piece)
        if size > FILE_READ_MAX:
            raise ToolError(f"file {path!r} has more than {FILE_READ_MAX} bytes; look for a part of it with a command")
    about: dict[str, Json] = {"path": path, "size": size, "hash": digest.hexdigest()}
    if binary:
        return {**about, "binary": True, "note": "The file is binary, so it is not shown."}
    return {**about, **excerpt.shown(path, limit, column)}


@define
class _Excerpt:
    """The bytes from a line on: one more than can be shown, to know whether there are any."""

    offset: int
    line_ends: int = 0
    #: Bytes of the first line that is wanted, before `column`.
    passed_over: int = 0
    last: bytes = b""
    found: bytearray = field(factory=bytearray)
    _begun: bool = False
    _line_over: bool = False

    def take(self, piece: bytes, column: int) -> None:
        if not piece:
            return
        ends = piece.count(b"\n")
        if not self._begun and self.line_ends + ends >= self.offset - 1:
            self._begun = True
            start = 0
            for _ in range(self.offset - 1 - self.line_ends):
                start = piece.index(b"\n", start) + 1
            self._gather(piece[start:], column)
        elif self._begun:
            self._gather(piece, column)
        self.line_ends += ends
        self.last = piece[-1:]

    def _gather(self, piece: bytes, column: int) -> None:
        if not self._line_over and (missing := column - 1 - self.passed_over) > 0:
            # A column beyond the end of its line leaves nothing of the line.
            end = piece.find(b"\n")
            self._line_over = 0 <= end < missing
            skipped = end if self._line_over else min(missing, len(piece))
            self.passed_over += skipped
            piece = piece[skipped:]
        room = READ_BYTES_MAX + 1 - len(self.found)
        if room > 0:
            self.found += piece[:room]

    def shown(self, path: str, limit: int, column: int) -> dict[str, Json]:
        total = self.line_ends + (self.last not in (b"", b"\n"))
        if self.offset > max(total, 1):
            raise ToolError(
                f"file {path!r} has {total} lines, and line {self.offset} is past its end; use a smaller offset"
            )
        if self.passed_over < column - 1:
            raise ToolError(
                f"line {self.offset} of {path!r} has {self.passed_over} bytes, and column {column} is past its end; use a smaller column"
            )
        data = bytes(self.found)
        end = lines = 0
        cut_line = False
        while lines < limit and end < len(data):
            after = data.find(b"\n", end) + 1 or len(data)
            if after > READ_BYTES_MAX:
                cut_line = lines == 0  # a single line that does not fit: its start is better than nothing
                end = READ_BYTES_MAX if cut_line else end
                break
            end, lines = after, lines + 1
        # A cut may fall into a character, which then belongs to what follows. Bytes that are no UTF-8 show as replacements.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        plain = decoder.decode(data[:end], final=not cut_line).replace("\r\n", "\n")
        text = returns_shown(plain)
        following = self.offset + lines
        excerpt: dict[str, Json] = {
            "content": text,
            "first_line": self.offset,
            "lines": lines + cut_line,
            "total_lines": total,
            "next_offset": following if following <= total else None,
        }
        if cut_line:
            excerpt["next_column"] = column + end - len(decoder.getstate()[0])
            excerpt["note"] = (
                f"Only a part of line {self.offset} is shown; go on with offset {self.offset} and column {excerpt['next_column']}, "
                f"or with offset {following + 1}."
            )
        elif following <= total:
            excerpt["note"] = f"There are {total - following + 1} more lines; go on with offset {following}."
        if text != plain:
            said = f"'{RETURN_SIGN}' stands for a carriage return within a line."
            excerpt["note"] = f"{excerpt['note']} {said}" if "note" in excerpt else said
        return excerpt
