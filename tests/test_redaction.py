"""J8, I36: no secret of the corpus is written, whichever way it comes."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus, unquote

import attrs
import pytest
import trio

from trouper import CommandRejected, Media, Rule, Scripted, ToolContext, ToolError, open_runtime, redaction, tool
from trouper.actors import session as session_actor
from trouper.core.messages import Thinking
from trouper.core.task_record import DETAIL_MAX_CHARS
from trouper.core.task_text import SUMMARY_MAX_CHARS
from trouper.events import ToolOutput, ToolProgress, ToolStatus
from trouper.models import Fallback
from trouper.models._errors import ModelFault
from trouper.models.chunks import Chunk
from trouper.models.protocol import ModelRequest
from trouper.models.scripted import call, reply, think
from trouper.redaction import Redactor
from trouper.testing import check_invariants
from trouper.tools.hooks import BeforeTool, Hooks, Rewrite

QUOTES = "\"'"
SECRET = 'hunter2-"quoted"-\u00e9-secret'
JWT = "eyJhbGciOiJIUzI1NiIsInR5cCI6IkpXVCJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.SflKxwRJSMeKKF2QT4fwpMeJf36POk6yJV_adQssw5c"
PRIVATE_KEY = "-----BEGIN RSA PRIVATE KEY-----\nMIIEpAIBAAKCAQEA7\nb+/c=\n-----END RSA PRIVATE KEY-----"
LOOKS_LIKE = (
    "AIza" + "x" * 35,
    "sk-ant-" + "a1B2" * 8,
    "sk-proj-" + "a1_-" * 12,
    "sk_live_" + "a1B2" * 6,
    *(f"gh{kind}_" + "Z" * 36 for kind in "pousr"),
    "github_pat_" + "11ABCDE_" * 8,
    "glpat-" + "a1B2" * 5,
    "xoxb-123456789012-abcdefghijkl",
    "xapp-1-A0123456789-abcdef",
    "hooks.slack.com/services/T00000000/B00000000/XXXXXXXXXXXXXXXXXXXXXXXX",
    "AKIA" + "Q7" * 8,
    "ASIA" + "Q7" * 8,
    "ya29." + "a0Af_" * 8,
    "GOCSPX-" + "a1B2" * 7,
    "hf_" + "aB" * 17,
    JWT,
    # Unsigned, and encrypted: five parts, of which the second may be empty.
    ".".join(JWT.split(".")[:2]) + ".",
    JWT.split(".")[0] + "..48V1_ALb6US04U3b.5eym8TW_c8SuK0ltJ3rpYI.XFBoMYUZodetZdvTiFvSkQ",
    PRIVATE_KEY,
    PRIVATE_KEY.replace("RSA ", ""),
    PRIVATE_KEY.replace("RSA", "EC"),
    PRIVATE_KEY.replace("RSA", "OPENSSH"),
    PRIVATE_KEY.replace("-----\nMII", "-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,0123\n\nMII"),
)
#: What announces a secret stays, so that one can see what was there.
ANNOUNCED = (
    ("Authorization: Bearer ", "abcdefgh", ""),
    ("authorization: Basic ", "dXNlcjpwYXNz", ""),
    ('{"Authorization": "token ', "0123456789abcdef", '"}'),
    ("curl -H 'bearer ", "0a1b2c3d4e5f6a7b8c", "' x"),
    ("X-Goog-Api-Key: ", "abcdef0123456789", ""),
    ("OPENAI_API_KEY=", "abcdef0123456789", ""),
    ("aws_secret_access_key = ", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""),
    ('"SecretAccessKey": "', "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", '"'),
    ("postgres://ada:", "p4ss!word", "@db.example:5432/x"),
    ("see https://user:", "hunter2", "@host/path, and go on"),
)


@pytest.mark.parametrize("key", LOOKS_LIKE)
@pytest.mark.parametrize("before", ["use ", "", "a line\n", "tab\t", "é", "(", "key=", '"'])
def test_what_looks_like_a_key_is_cut_out(key: str, before: str) -> None:
    """As JSON writes it and as it is, and whatever stands before it: in JSON a line end is the letter n."""
    redact = Redactor()
    written = json.dumps({"text": f"{before}{key} please"})
    assert json.loads(redact(written.encode())) == {"text": f"{before}[redacted] please"}
    assert redact.text(f"{before}{key} please") == f"{before}[redacted] please"
    within = json.dumps(json.dumps([f"{before}{key}"]))
    assert json.loads(json.loads(redact(within.encode()))) == [f"{before}[redacted]"]


@pytest.mark.parametrize(("before", "key", "after"), ANNOUNCED)
def test_what_follows_the_name_of_a_secret_is_cut_out(before: str, key: str, after: str) -> None:
    redact = Redactor()
    assert redact.text(before + key + after) == f"{before}[redacted]{after}"
    written = json.dumps({"text": before + key + after})
    assert json.loads(redact(written.encode())) == {"text": f"{before}[redacted]{after}"}


@pytest.mark.parametrize(
    "text",
    [
        "ask-me, sk-, AIza and task-runner are fine; risk-assessment-of-the-whole-thing too",
        "the bearer representatives, and a Bearer authentication scheme",
        "Authorization: none. The api_key: your_key_here; token counts",
        "http://localhost:8080/a@b, https://example.com/x:y, mailto:ada@example.com, git@host:path",
        "eyJ, eyJhbGciOiJIUzI1NiJ9 and eyJhbGciOiJIUzI1NiJ9.x",
        "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
        "secretAccessKey is a field; my_npm_config",
    ],
)
def test_innocent_text_is_handed_back_as_it_is(text: str) -> None:
    data = json.dumps({"text": text}).encode()
    assert Redactor([SECRET])(data) is data
    assert Redactor([SECRET]).text(text) is text


@pytest.mark.parametrize(
    "hostile", ["-----BEGIN PRIVATE KEY-----\nA", "a:b://", "bearer ", "eyJaaaaaaaa.", "sk-", "A: b "]
)
def test_a_long_hostile_text_is_looked_through(hostile: str) -> None:
    """Security: each is a beginning over and over; quadratic patterns would not come back."""
    text = hostile * (300_000 // len(hostile))
    redact = Redactor([SECRET])
    redact.text("-----BEGIN PRIVATE KEY-----" + text)
    redact.settled(text)


@pytest.mark.parametrize("secret", [SECRET, LOOKS_LIKE[0], JWT, PRIVATE_KEY])
def test_a_long_text_is_looked_through_in_slices_that_halve_no_secret(
    secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redaction, "_SLICE", 500)
    monkeypatch.setattr(redaction, "_LONGEST", 250)
    redact = Redactor([SECRET])
    for shift in range(0, 500, 7):
        text = "x " * 400 + "y" * shift + " " + secret + " " + "é " * 700
        assert b"".join(redact.pieces(text)).decode() == text.replace(secret, "[redacted]")


@pytest.mark.parametrize(
    "secret",
    [SECRET, "correct horse battery staple", LOOKS_LIKE[0], JWT, PRIVATE_KEY, "Authorization: Bearer abc123def456"],
)
def test_what_is_settled_never_halves_a_secret(secret: str) -> None:
    """J8: told in two pieces at any place, each redacted by itself, nothing of the secret is left."""
    redact = Redactor([SECRET, "correct horse battery staple"])
    text = f"It is {secret} and that is all. "
    for cut in range(len(text)):
        first = text[: redact.settled(text[:cut])]
        second = text[len(first) : redact.settled(text)]
        told = redact.text(first) + redact.text(second)
        assert told == redact.text(text), (first, second)


def test_text_without_end_is_not_held_back_for_ever() -> None:
    redact = Redactor()
    assert redact.settled("half way") == 5 and redact.settled("half way", paused=True) == 8
    assert redact.settled("the token is: Bearer", paused=True) == 14
    assert redact.settled("." * 100) == 0
    assert redact.settled("." * 20_000) == 20_000
    assert redact.settled("-----BEGIN RSA PRIVATE KEY-----\n" + "A\n" * 20_000) > 0


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


@pytest.mark.parametrize("user", ["", "u", "us", "usr", "user"])
def test_a_known_value_is_cut_out_of_longer_base64_and_of_urls(user: str) -> None:
    """Basic authentication is base64 of `user:password`: the value may begin at any bit."""
    redact = Redactor([SECRET])
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        before, after = redact.text(encode(f"{user}:{SECRET}:more".encode()).decode()).split("[redacted]")
        # What is left on either side are the others, and at most two characters that hold some bits of the value.
        assert len(before) <= len(user) * 4 // 3 + 4 and len(after) <= 12
    assert SECRET not in unquote(redact.text(f"https://host/?q={quote(SECRET, safe='')}"))


def _quoted_amid_quotes(secret: str) -> str:
    return repr(f'He said "{secret}"')[len("'He said \"") : -2]


@pytest.mark.parametrize(
    "secret", ["wJalrXUt/K7MDENG+bPx=Rfi", "correct horse/battery", "p\"a\\ss'word", "it's a secret", SECRET]
)
@pytest.mark.parametrize(
    "write", [quote, quote_plus, repr, lambda secret: str(KeyError(secret)), _quoted_amid_quotes, json.dumps]
)
def test_a_known_value_is_cut_out_however_python_writes_it(write: Callable[[str], str], secret: str) -> None:
    """I36: in a URL's path, in a form, in an exception's text. Most values look the same in all of them, and what was given out as a key mostly not."""
    written, redact = f"<{write(secret).strip(QUOTES)}>", Redactor([secret])
    assert redact.text(written) == "<[redacted]>"
    assert json.loads(redact(json.dumps({"said": written}).encode())) == {"said": "<[redacted]>"}


#: Pictures and signatures in which something looks like a key; each base64, in either alphabet.
_DATA = "iVBORw0KGgoAAAANSUhEUgAA" * 40
_PICTURE = f"{_DATA}xxxxAIza{'Sy0123456789abcd' * 4}{_DATA}"
_SIGNATURE = f"gAAAAABn{'Zm9vYmFy' * 8}_-sk-{'abcdEFGH0123-_' * 60}"


@pytest.mark.parametrize("data", [_PICTURE, _PICTURE + "AA==", _SIGNATURE])
def test_what_is_encoded_keeps_what_looks_like_a_key_by_chance(data: str) -> None:
    """I7: a long picture may lose some characters, and a signature with a hole in it is refused by its provider for ever."""
    redact = Redactor([SECRET])
    written = json.dumps({"data": data}).encode()
    assert redact(written) is written
    assert redact.text(data) is data
    known = base64.b64encode(SECRET.encode() * 2).decode()
    assert "[redacted]" in redact.text(_DATA + known + data)


def test_a_picture_within_a_text_keeps_what_looks_like_a_key_by_chance() -> None:
    text = f"![it](data:image/png;base64,{_PICTURE}) and the key {LOOKS_LIKE[0]}."
    assert Redactor().text(text) == text.replace(LOOKS_LIKE[0], "[redacted]")


@pytest.mark.parametrize(
    ("before", "key"),
    [
        ("", "sk-" + "a1B2" * 300),
        ("x" * 2_000, LOOKS_LIKE[0]),
        ("-" * 2_000, LOOKS_LIKE[1]),
        ("token: Bearer ", "a1B2" * 300),
        (_DATA + " ", LOOKS_LIKE[0]),
    ],
)
def test_a_long_key_and_one_behind_a_long_run_are_no_data(before: str, key: str) -> None:
    """I36."""
    assert Redactor().text(before + key) == before + "[redacted]"


async def test_attachments_and_signatures_come_back_byte_for_byte_whatever_they_look_like(tmp_path: Path) -> None:
    """I7: after journal, reload and send."""
    model = Scripted([reply(think("hm", _SIGNATURE), "seen")], exhausted="repeat")
    for _ in range(2):
        async with open_runtime(tmp_path, model=model, durability="write") as runtime:
            session = await runtime.session("s")
            await session.ask("look", attachments=[Media("image/png", _PICTURE)])
    asked, said = model.requests[-1].messages[:2]
    assert [part.data for part in asked.parts if isinstance(part, Media)] == [_PICTURE]
    assert [part.signature for part in said.parts if isinstance(part, Thinking)] == [_SIGNATURE]


def test_short_values_are_not_looked_for_and_nothing_is_shown() -> None:
    redact = Redactor(["abc", SECRET])
    assert redact(b"abc") == b"abc"
    assert "hunter2" not in repr(redact)


@pytest.mark.parametrize("key", LOOKS_LIKE)
def test_keys_that_differ_in_a_secret_only_stay_two(key: str) -> None:
    """I36, B14: what is cut out of them cannot be told from what is left, and what is left is written as it is."""
    redactor = Redactor([SECRET])
    keys = [redactor.key(f"{before}{key}{more}") for before in ("", "alert: ") for more in ("x1", "y2", f" {SECRET}")]
    assert len(set(keys)) == len(keys) and keys == [redactor.text(clean) for clean in keys]
    assert not any(key in clean or SECRET in clean for clean in keys)
    assert redactor.key("\ud800") != redactor.key("\ud801") and redactor.key("disk full") == "disk full"


async def test_notifications_whose_dedupe_keys_look_like_secrets_are_not_merged(tmp_path: Path, autojump_clock) -> None:
    """I36, B14: each is queued once, also after a restart, and its key stands in no file."""
    keys = [f"https://bot:{word}@example.org/alerts" for word in ("swordfish", "marlin")]
    asked: list[str] = []
    for _ in range(2):
        async with open_runtime(tmp_path, model=Scripted([reply("noted")], exhausted="repeat")) as runtime:
            session = await runtime.session("a")
            with session.hold_notifications():
                asked += [await session.notify("Alert", dedupe_key=key) for key in (*keys, *keys)]
                assert {each.id for each in session.pending_notifications()} <= set(asked)
    assert asked == asked[:2] * 4 and asked[0] != asked[1]
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert b"swordfish" not in written and b"marlin" not in written and b"example.org/alerts" in written
    assert check_invariants(tmp_path) == []


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


async def test_what_a_check_of_a_call_raises_is_logged_without_the_secret_that_it_quotes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I36: hooks and policies see what is said and called as it came, and what they stumble over is often in their error."""

    @tool
    async def look(where: str) -> str:
        """Looks."""
        return where

    def stumble(event: Any) -> None:
        raise ValueError(f"no idea what {event!r} is")

    def fails(arguments: Any) -> bool:
        raise ValueError(f"no idea what {arguments!r} is")

    logged: list[str] = []
    stumbling = (Hooks(before_turn=stumble), Hooks(before_tool=stumble), Hooks(after_turn=stumble), Hooks())
    for number, hooks in enumerate(stumbling):
        caplog.clear()
        model = Scripted([reply(call("look", where=SECRET)), reply("So be it.")])
        rules = [Rule("*", "deny", fails)]
        async with open_runtime(
            tmp_path / str(number), model=model, tools=[look], hooks=[hooks], policies=rules
        ) as runtime:
            session = await runtime.session("s")
            await runtime.services("s").secrets.set("token", SECRET)
            with suppress(CommandRejected):
                await session.ask(f"with {SECRET}")
        logged.append(caplog.text)
    assert all("no idea what" in text and "[redacted]" in text for text in logged)
    assert SECRET not in "".join(logged)


async def test_a_secret_that_comes_word_by_word_reaches_no_record(tmp_path, autojump_clock, monkeypatch) -> None:
    """J8, I36: a model that is slow enough for notes between the words; a background run whose output does the same."""
    phrase = "correct horse battery staple"
    told = f"It is {phrase}, and Authorization: Bearer abc123def456ghi7, and {PRIVATE_KEY} and no more."

    monkeypatch.setenv("TROUPER_API_KEY", phrase)

    @tool(background=True, budget_s=0.5)
    async def chatter(context: ToolContext) -> str:
        """Says it piece by piece."""
        for word in told.split(" "):
            context.output("stdout", word + " ")
            await trio.sleep(0.6)
        return told

    model = Scripted([reply(call("chatter")), reply(told, deltas=len(told) // 4), reply("ok")], delay_s=0.2)
    async with open_runtime(tmp_path, model=model, tools=[chatter], durability="memory") as runtime:
        session = await runtime.session("s")
        await session.ask("tell me")
        await trio.sleep(60)
        assert [task.state.value for task in runtime.tasks()] == ["succeeded"]
        records = [json.dumps(record.payload.decode()) for record in runtime._log.records()]
    assert sum("TaskOutputWritten" in record for record in records) > 3
    assert sum("NoteProgress" in record for record in records) > 3
    artifacts = [path.read_text() for path in (tmp_path / "files").rglob("*") if path.is_file()]
    assert len(artifacts) == 2
    for part in ("correct horse", "battery staple", "abc123def456", "MIIEpAIB", "b+/c="):
        assert not [each for each in (*records, *artifacts) if part in each], part


@pytest.mark.parametrize("background", [False, True])
async def test_what_a_tool_says_while_it_runs_is_seen_without_its_secrets(tmp_path: Path, background: bool) -> None:
    """I36: whoever watches gets frames, and puts them on a screen or into a log."""

    @tool(needs=("secrets",), background=background)
    async def betray(context: ToolContext) -> str:
        """Says what it should not, while it works."""
        await context.secrets.set("token", SECRET)
        context.status(f"asking with {SECRET}")
        context.report_progress(1, 2, "calls", f"with {SECRET}")
        context.report_progress(2, 2, SECRET, "in the unit")
        context.output("stdout", f"> token: {SECRET}\n")
        context.output(SECRET, "in the name of the stream")
        return "done"

    model = Scripted([reply(call("betray")), reply("ok")])
    async with open_runtime(tmp_path, model=model, tools=[betray], durability="memory") as runtime:
        async with (await runtime.session("s")).turn("go") as turn:
            seen = [event async for event in turn]
        assert check_invariants(runtime._log, secrets=[SECRET]) == []
    said = [event for event in seen if isinstance(event, ToolStatus | ToolProgress | ToolOutput)]
    assert [type(event).__name__ for event in said] == ["ToolStatus", *["ToolProgress"] * 2, *["ToolOutput"] * 2]
    assert all("[redacted]" in repr(event) for event in said)
    assert SECRET not in repr(seen)


async def test_a_secret_at_the_cut_of_a_long_result_leaves_no_half(tmp_path) -> None:
    """J8, T9: what is known to be secret is taken out before the rest is cut."""
    secret = "Zq" * 100

    @tool(needs=("secrets",))
    async def betray(before: int, after: int, context: ToolContext) -> str:
        """Says it where the cut is."""
        await context.secrets.set("token", secret)
        return "x" * before + secret + "y" * 100_000 + secret + "z" * after

    calls = [call("betray", before=26_100 - 20 * n, after=39_250 - 20 * n) for n in range(10)]
    model = Scripted([reply(*calls), reply("done")])
    async with open_runtime(tmp_path, model=model, tools=[betray], durability="write") as runtime:
        assert (await (await runtime.session("s")).ask("go")).text == "done"
    written = b"".join(
        path.read_bytes() for path in tmp_path.rglob("*") if path.is_file() and "secrets" not in path.parts
    )
    assert b"ZqZqZq" not in written


async def test_a_secret_at_the_cut_of_what_the_model_is_told_leaves_no_half(
    tmp_path: Path, autojump_clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I36, L19, B9: of arguments that do not fit, of a tool that is not there, of what a run says and how it ended only the beginning is told."""
    secret = "Zq" * 30
    monkeypatch.setenv("TROUPER_API_KEY", secret)

    @tool
    async def count(n: int) -> int:
        """Counts."""
        return n

    @tool(background=True, budget_s=0.0)
    async def work(before: int, context: ToolContext) -> str:
        """Works."""
        context.status("x" * before + secret)
        await trio.sleep(1)
        context.report_progress(label="x" * before + secret)
        await trio.sleep(1)
        return "x" * before + secret

    def rewriting(before: BeforeTool) -> Rewrite | None:
        return Rewrite({"n": "y" * 50 + secret}) if before.arguments.get("n") == 7 else None

    said = ["x" * before + secret for before in range(0, 130, 20)]
    wrong = [call("count", n=each) for each in said] + [call("count", **{each: 1}) for each in said]
    working = [call("work", before=limit - 30) for limit in (DETAIL_MAX_CHARS, SUMMARY_MAX_CHARS)]
    model = Scripted([reply(*wrong, *map(call, said), call("count", n=7), *working), reply("ok")], exhausted="repeat")
    async with open_runtime(
        tmp_path, model=model, tools=[count, work], hooks=[Hooks(before_tool=rewriting)], durability="write"
    ) as runtime:
        session = await runtime.session("s")
        await session.ask("go")
        await trio.sleep(60)
        assert [task.state.value for task in runtime.tasks()] == ["succeeded"] * 2
        assert "ZqZqZq" not in repr(session.state)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert b"ZqZqZq" not in written
    assert check_invariants(tmp_path) == []


async def test_a_secret_at_the_cut_of_what_is_wrong_with_an_output_leaves_no_half(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """J8, I36: of a reply that misses its schema, and of what a class says against it, only the beginning is told."""
    secret = "Zq" * 30
    monkeypatch.setenv("TROUPER_API_KEY", secret)

    @attrs.frozen
    class Short:
        word: str = attrs.field(validator=attrs.validators.matches_re("[a-z]{1,9}"))

    wrong = ["y" * before + secret for before in range(0, 200, 20)]
    for shape, said in ((int, [json.dumps(each) for each in wrong]), (Short, [json.dumps({"word": w}) for w in wrong])):
        async with open_runtime(tmp_path, model=Scripted(said), durability="write") as runtime:
            session = await runtime.session(shape.__name__)
            for _ in range(0, len(said), 2):
                result = await session.ask("go", output=shape)
                assert result.error is not None and result.error.kind == "invalid_output"
            assert "ZqZqZq" not in repr(session.state)
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())  # noqa: ASYNC240
    assert b"ZqZqZq" not in written


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


class _CarelessClient:
    """A model whose errors quote what only it and a secret store know: in its reply, as its session ends, and as it is closed."""

    name = "careless"

    def __init__(self, kind: type[Exception] = ValueError) -> None:
        self._kind = kind

    @asynccontextmanager
    async def stream(self, request: ModelRequest) -> AsyncIterator[AsyncIterator[Chunk]]:
        raise self._kind(f"no reply with {SECRET}")
        yield

    def forget_session(self, session: str) -> None:
        raise ValueError(f"cannot forget it with {SECRET}")

    async def aclose(self) -> None:
        raise ValueError(f"cannot be closed with {SECRET}")


async def test_what_a_model_s_client_raises_is_logged_without_the_secret_that_it_quotes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """I36: the whole of its error goes into the log, and nowhere else."""
    async with open_runtime(tmp_path, model=_CarelessClient()) as runtime:
        session = await runtime.session("s")
        await runtime.services("s").secrets.set("token", SECRET)
        result = await session.ask("go")
        assert result.error is not None and SECRET not in result.error.message
        await session.close()
    for told in ("no reply with", "cannot forget it with", "cannot be closed with"):
        assert f"{told} [redacted]" in caplog.text
    assert SECRET not in caplog.text


async def test_what_a_model_s_client_raises_before_another_answers_is_logged_without_the_secret_that_it_quotes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """M6, I36: its error ends nothing, and goes into the log all the same; one of ours in the words of its client."""
    model = Fallback(_CarelessClient(), _CarelessClient(ModelFault), Scripted([reply("Here I am.")]))
    async with open_runtime(tmp_path, model=model) as runtime:
        session = await runtime.session("s")
        await runtime.services("s").secrets.set("token", SECRET)
        assert (await session.ask("go")).text == "Here I am."
    assert "ValueError: no reply with [redacted]" in caplog.text
    assert "failed before any progress (no reply with [redacted])" in caplog.text
    assert SECRET not in caplog.text
