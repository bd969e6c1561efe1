"""Attachments that a provider cannot be sent as they are: told in words, so that the model knows of them and nobody wonders where they went."""

from __future__ import annotations

import base64
import binascii

from trouper.core.messages import Json, Media
from trouper.models import wire_json

_NAME_MAX = 200


def text_of(media: Media) -> str | None:
    """The text of an inline text file; `None` if it is none."""
    if media.data is None or not media.mime_type.startswith("text/"):
        return None
    try:
        return base64.b64decode(media.data).decode("utf-8", "replace")
    except (binascii.Error, ValueError):
        return None


def note_of(media: Media) -> str:
    """What stands in the place of an attachment that cannot be sent."""
    what = media.mime_type or "data"
    name = f" {media.name[:_NAME_MAX]!r}" if media.name else ""
    if media.uri is not None:
        return f"[An attachment of type {what}{name}, which cannot be shown here, is at {media.uri}]"
    return f"[An attachment of type {what}{name} cannot be shown here]"


def answer_text(content: Json) -> str:
    """A tool's result as text: text as it is, anything else as JSON."""
    return content if isinstance(content, str) else wire_json.encode(content).decode()
