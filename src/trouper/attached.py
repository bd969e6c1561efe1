"""What goes along with a prompt: files and ready-made media, as parts of the message. What cannot be sent is the caller's mistake, and told where it is made."""

from __future__ import annotations

import base64
import mimetypes
import os
import stat
from collections.abc import Iterable, Sequence
from pathlib import Path

from trouper._errors import UsageError
from trouper.core.messages import Media
from trouper.core.settings import Limits
from trouper.tools.complaint import clipped
from trouper.tools.guards.names import from_disk, on_disk

Attachment = Media | str | Path


def along_with(text: str, attachments: Sequence[Attachment], limits: Limits) -> tuple[Media, ...]:
    """What goes along with this prompt, if it can be a prompt."""
    if not isinstance(text, str):
        raise UsageError(f"a prompt is text, not {type(text).__name__}; use attachments for anything else")
    if len(text) > limits.input_chars:
        raise UsageError(
            f"the prompt has {len(text)} characters, more than Limits.input_chars={limits.input_chars}; attach a file"
        )
    media = () if attachments == () else _all_attached(attachments, limits.attachment_bytes)
    if not text.strip() and not media:
        raise UsageError("the prompt is empty; say something or attach something")
    return media


def _all_attached(attachments: Sequence[Attachment], limit: int) -> tuple[Media, ...]:
    if isinstance(attachments, str | Path | Media) or not isinstance(attachments, Iterable):
        raise UsageError(f"attachments={_shown(attachments)} is no list; write attachments=[...]")
    return tuple(_attached(item, limit) for item in attachments)


def _attached(item: Attachment, limit: int) -> Media:
    """A file or ready-made media as a part of the message; too large or unreadable is the caller's mistake."""
    if isinstance(item, Media):
        if not all(isinstance(each, str) for each in (item.mime_type, item.data or item.uri)):
            raise UsageError(f"{_shown(item)} cannot be attached; give it a mime_type, and data in base64 or a uri")
        size = len(item.data) * 3 // 4 - item.data[-2:].count("=") if item.data else 0
        if size > limit:
            raise UsageError(
                f"attachment {item.name or item.mime_type!r} has {size} bytes, more than Limits.attachment_bytes={limit}; attach a part of it"
            )
        if item.data:
            try:
                base64.b64decode(item.data, validate=True)
            except ValueError as error:
                # In the history, it would have every later request refused too.
                what = f"attachment {item.name or item.mime_type!r} is not base64 ({error})"
                raise UsageError(f"{what}; write base64.b64encode(data).decode(), or give the path of a file") from None
        return item
    if not isinstance(item, str | os.PathLike):
        raise UsageError(f"{_shown(item)} cannot be attached; give the path of a file, or trouper.Media")
    if isinstance(item, str) and item.lower().startswith(("http://", "https://")):
        raise UsageError(
            f"attachment {_shown(item)} is an address; write trouper.Media('image/png', uri=...), or give a file"
        )
    path = Path(item)
    try:
        path = Path(on_disk(str(path)))
        found = path.stat()
        # Looked at first: to open a pipe waits for its other end, and everybody with it.
        if not stat.S_ISREG(found.st_mode):
            raise UsageError(f"attachment {_shown(str(path))} is no file; copy what it holds into one, and attach that")
        size = found.st_size
        if size <= limit:
            with path.open("rb") as file:
                data = file.read(limit + 1)
            size = max(size, len(data))  # Some files, as those of /proc, say less than they hold.
        if size > limit:
            raise UsageError(
                f"attachment {_shown(str(path))} has {size} bytes, more than Limits.attachment_bytes={limit}; attach a part of it"
            )
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have.
        told = error.strerror if isinstance(error, OSError) else error
        raise UsageError(f"attachment {_shown(str(path))} cannot be read: {told}; check the path") from error
    if not data:
        raise UsageError(f"attachment {_shown(str(path))} is empty; leave it out, or write something into it first")
    return Media(_kind(path.name, data), base64.b64encode(data).decode("ascii"), name=from_disk(path.name))


def _kind(name: str, data: bytes) -> str:
    """What a file is. What is text is sent as text: tables of names know few languages, and call some of them by names that no provider takes."""
    kind, coding = mimetypes.guess_type(name)
    if coding is not None:
        return f"application/{coding}"  # The name without its last suffix is that of what is packed.
    if kind is not None and (kind.startswith("text/") or kind == "application/pdf"):
        return kind
    return "text/plain" if _is_text(data) else kind or "application/octet-stream"


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return b"\0" not in data


def _shown(given: object) -> str:
    """How it begins: it may be the bytes of a whole file."""
    return clipped(repr(given), 1_000)
