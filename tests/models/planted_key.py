"""Where a key could show, and the forms that it could have there (M3, I36)."""

from __future__ import annotations

import base64
import traceback
from urllib.parse import quote


def forms_of(key: str) -> tuple[str, ...]:
    return (key, quote(key, safe=""), base64.b64encode(key.encode()).decode().rstrip("="))


def assert_none_of(forms: tuple[str, ...], text: str) -> None:
    for form in forms:
        assert form not in text, f"the key shows in {text[:500]!r}"


def everything_about(error: BaseException) -> str:
    """All that an error handler could print: the whole chain with the locals of every frame, and every attribute."""
    shown = ["".join(traceback.TracebackException.from_exception(error, capture_locals=True).format())]
    todo: list[BaseException | None] = [error]
    while todo:
        exc = todo.pop()
        if exc is None:
            continue
        shown += [repr(exc), str(exc), repr(vars(exc)), repr(exc.args)]
        todo += [exc.__cause__, exc.__context__]
    return "\n".join(shown)
