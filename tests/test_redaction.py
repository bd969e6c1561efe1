"""J8, I36: no secret of the corpus is written, whichever way it comes."""

from __future__ import annotations

import base64
import json
import logging
from pathlib import Path

import pytest

from trouper import Scripted, ToolContext, ToolError, open_runtime, tool
from trouper.actors import session as session_actor
from trouper.models.scripted import call, reply
from trouper.redaction import Redactor
from trouper.testing import check_invariants

SECRET = 'hunter2-"quoted"-\u00e9-secret'
LOOKS_LIKE = (
    "AIza" + "x" * 35,
    "sk-ant-" + "a1B2" * 8,
    "ghp_" + "Z" * 36,
    "AKIA" + "Q7" * 8,
    "-----BEGIN RSA PRIVATE KEY-----\\nMIIE\\n-----END RSA PRIVATE KEY-----",
)


@pytest.mark.parametrize("key", LOOKS_LIKE)
def test_what_looks_like_a_key_is_cut_out(key: str) -> None:
    cut = Redactor()(f'{{"text":"use {key} please"}}'.encode())
    assert key.encode() not in cut
    assert cut == b'{"text":"use [redacted] please"}'


def test_innocent_text_is_handed_back_as_it_is() -> None:
    data = b'{"text":"ask-me, sk-, AIza and task-runner are fine"}'
    assert Redactor([SECRET])(data) is data


def test_a_known_value_is_cut_out_as_json_and_as_base64() -> None:
    redact = Redactor([SECRET])
    written = rb'{"a":"hunter2-\"quoted\"-\u00e9-secret"}'
    assert redact(written) == b'{"a":"[redacted]"}'
    encoded = base64.b64encode(SECRET.encode())
    assert encoded.rstrip(b"=") not in redact(b'{"a":"' + encoded + b'"}')


@pytest.mark.parametrize(
    ("secret", "data"),
    [
        ("12345678", b'{"at":1712345678.5,"n":9123456789}'),
        ("CallEnded", b'{"type":"CallEnded","call":"c"}'),
        ("arguments", b'{"arguments":{}}'),
        ('":{"text":', b'{"a":{"text":"x"}}'),
    ],
)
def test_the_format_itself_is_never_cut(secret: str, data: bytes) -> None:
    """A password may be the same as a part of a number, a name of the format, or some punctuation: the record stays readable."""
    assert Redactor([secret])(data) is data


def test_a_number_that_is_the_secret_is_cut_whole() -> None:
    assert Redactor(["12345678"])(b'{"pin":12345678,"n":1}') == b'{"pin":"[redacted]","n":1}'


def test_json_within_text_and_keys_of_objects_are_cut_too() -> None:
    redact = Redactor([SECRET])
    nested = json.dumps({"said": json.dumps({SECRET: [SECRET]})}).encode()
    assert b"hunter2" not in redact(nested)
    assert "hunter2" not in str(redact.value({SECRET: [{"a": f"<{SECRET}>"}]}))


def test_a_private_key_is_cut_out_of_plain_text_over_its_lines() -> None:
    key = "-----BEGIN PRIVATE KEY-----\nMIIE\nabc\n-----END PRIVATE KEY-----"
    assert Redactor().text(f"the key:\n{key}\nand more") == "the key:\n[redacted]\nand more"


def test_short_values_are_not_looked_for_and_nothing_is_shown() -> None:
    redact = Redactor(["abc", SECRET])
    assert redact(b"abc") == b"abc"
    assert "hunter2" not in repr(redact)


async def test_a_secret_reaches_neither_journal_nor_history_on_any_way(
    tmp_path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tool that betrays its secret in a result, in an error and in an exception; a model that repeats it, split over its deltas."""

    # A logger of its own: other tests in this process may have silenced the usual one.
    log = logging.Logger("tools of this test")
    log.addHandler(caplog.handler)
    monkeypatch.setattr(session_actor, "tools_logger", log)

    @tool(needs=("secrets",))
    async def betray(how: str, context: ToolContext) -> str:
        """Says what it should not."""
        await context.secrets.set("token", SECRET)
        if how == "error":
            raise ToolError(f"the token {SECRET} was refused")
        if how == "crash":
            raise RuntimeError(f"bad token {SECRET}")
        return f"the token is {SECRET} or {base64.b64encode(SECRET.encode()).decode()}"

    model = Scripted(
        [
            reply(call("betray", how="result"), call("betray", how="error"), call("betray", how="crash")),
            reply(f"I was told {SECRET}, no, {LOOKS_LIKE[0]}.", deltas=9),
        ],
        delay_s=0.02,
    )
    async with open_runtime(tmp_path, model=model, tools=[betray], durability="write") as runtime:
        session = await runtime.session("s")
        result = await session.ask("tell me")
        assert result.error is None
        assert "[redacted]" in result.text
        assert check_invariants(runtime._log, secrets=[SECRET, *LOOKS_LIKE]) == []
        assert "hunter2" not in repr(session.history)
    assert "bad token [redacted]" in caplog.text
    assert "hunter2" not in caplog.text
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "secrets" not in path.parts
    )
    assert b"hunter2" not in written
    assert LOOKS_LIKE[0].encode() not in written


async def test_what_an_earlier_process_stored_is_cut_out_before_anybody_uses_it(tmp_path: Path) -> None:
    """B24, I36: a user who pastes a stored password, or a command that prints it, needs no tool to have looked it up first."""
    model = Scripted([reply("ok")])
    async with open_runtime(tmp_path, model=Scripted([])) as runtime:
        await runtime.session("s")
        await runtime.services("s").secrets.set("password", "hunter2-hunter2")
    async with open_runtime(tmp_path, model=model) as runtime:
        await (await runtime.session("other")).ask("is hunter2-hunter2 a good password?")
    assert "hunter2" not in repr(model.requests)
    assert check_invariants(tmp_path, secrets=["hunter2-hunter2"]) == []
