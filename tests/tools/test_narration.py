"""T11: one short line per call and phase; secrets and long values never shown."""

from __future__ import annotations

import logging
from typing import Annotated, Any, get_args

import pytest

from trouper.tools import Param, narration, tool
from trouper.tools.contract import Phase
from trouper.tools.narration import LINE_MAX, redacted

KEYS = [
    "sk-proj-abcdefghijklmnop",
    "AIzaSyA-1234567890abcdefghijkl",
    "ghp_0123456789abcdefghij",
    "xoxb-123456789012-abcdef",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc_def",
    "Bearer abcdef0123456789",
    "d41d8cd98f00b204e9800998ecf8427e0123456789",
    "password=hunter2!",
    "https://user:hunter2@example.com/?token=abc",
]


@tool
async def read_file(path: str, offset: int = 0) -> None: ...


@pytest.mark.parametrize(
    ("phase", "line"),
    [
        ("started", "Read File: notes.txt"),
        ("waiting", "Read File: notes.txt (waiting)"),
        ("completed", "Read File: notes.txt (done)"),
        ("failed", "Read File: notes.txt (failed)"),
    ],
)
def test_default_line_names_tool_and_first_argument(phase: Phase, line: str) -> None:
    assert narration(read_file, phase, {"path": "notes.txt", "offset": 5}) == line


def test_line_without_a_telling_argument() -> None:
    assert narration(read_file, "started") == "Read File"
    assert narration(read_file, "started", {"path": "", "offset": 7}) == "Read File: 7"
    assert narration(read_file, "started", {"flag": True, "list": [1]}) == "Read File"


@pytest.mark.parametrize("key", KEYS)
def test_what_looks_like_a_secret_is_never_shown(key: str) -> None:
    """I36."""

    @tool(narrate=lambda phase, arguments: f"using {arguments['text']} and {arguments['more']}")
    async def use(text: str, more: Any = None) -> None: ...

    for phase in get_args(Phase):
        for line in (
            narration(read_file, phase, {"path": f"x {key}"}),
            narration(use, phase, {"text": key, "more": {"deep": [key]}}),
        ):
            assert key not in line
            assert "hunter2" not in line
    # Not even its first half, where a long text is cut.
    assert key[:12] not in narration(read_file, "started", {"path": "y" * 36 + " " + key})


@pytest.mark.parametrize(
    "name", ["password", "api_key", "apiKey", "token", "client_secret", "Authorization", "passphrase", "key", "otp"]
)
def test_argument_with_a_secret_name_is_hidden(name: str) -> None:
    @tool(narrate=lambda phase, arguments: str(arguments))
    async def login(user: str) -> None: ...

    for arguments in ({name: "plain-word"}, {"user": "me", "headers": {name: "plain-word"}}):
        assert "plain-word" not in narration(login, "started", arguments)
        assert "plain-word" not in narration(read_file, "started", arguments)


def test_parameter_marked_secret_is_hidden() -> None:
    @tool
    async def unlock(phrase: Annotated[str, Param(secret=True)], door: str = "") -> None: ...

    assert narration(unlock, "started", {"phrase": "open sesame", "door": "front"}) == "Unlock: front"


@pytest.mark.parametrize("value", ["x" * 100_000, "word " * 50_000, "a\nb\x1b[31m\rc" * 100, "\u202e" * 300])
def test_line_is_one_short_line(value: str) -> None:
    for line in (
        narration(read_file, "completed", {"path": value}),
        narration(read_file.with_(narrate=lambda phase, arguments: value), "started"),
    ):
        assert len(line) <= LINE_MAX
        assert "\n" not in line
        assert "\x1b" not in line
        assert "\u202e" not in line


def test_own_narration_is_used_and_may_decline() -> None:
    @tool(narrate=lambda phase, arguments: f"Reading {arguments['path']}" if phase == "started" else None)
    async def look(path: str) -> None: ...

    assert narration(look, "started", {"path": "a"}) == "Reading a"
    assert narration(look, "completed", {"path": "a"}) == "Look: a (done)"


@pytest.mark.parametrize("kind", [KeyError, SystemExit, GeneratorExit, BaseException])
def test_own_narration_that_raises_falls_back(caplog: pytest.LogCaptureFixture, kind: type[BaseException]) -> None:
    """T11, I23."""

    def raising(phase: Phase, arguments: Any) -> str:
        raise kind

    broken = read_file.with_(narrate=raising)
    with caplog.at_level(logging.ERROR):
        assert narration(broken, "started", {"path": "a"}) == "Read File: a"
    assert "narration of tool 'read_file' raised" in caplog.text


@pytest.mark.parametrize("key", KEYS)
def test_of_an_own_narration_that_raises_no_secret_is_logged(caplog: pytest.LogCaptureFixture, key: str) -> None:
    """I36: neither what looks like one, nor what is known to be one, nor one in the error that led to it."""

    def raising(phase: Phase, arguments: Any) -> str:
        try:
            raise KeyError(key)
        except KeyError as error:
            raise ValueError("not with tulips in it") from error

    narration(read_file.with_(narrate=raising), "started", {"path": "a"}, lambda text: text.replace("tulips", "[cut]"))
    assert "ValueError: not with [cut] in it" in caplog.text
    assert key not in caplog.text
    assert "hunter2" not in caplog.text
    assert "tulips" not in caplog.text


def test_ordinary_text_is_not_redacted() -> None:
    for text in (
        "src/trouper/tools/narration.py",
        "What is the weather in Delft?",
        "https://example.com/a/b",
        "order 17",
    ):
        assert redacted(text) == text
