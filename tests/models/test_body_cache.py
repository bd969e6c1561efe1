"""What a client keeps for the next request of a session goes with the session."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from trouper import Gemini, open_runtime
from trouper.journal.memory_disk import MemoryDisk
from trouper.journal.reader import Reader
from trouper.models import Done, Fallback, Recorded, Scripted, TextChunk, reply
from trouper.models.anthropic import Anthropic
from trouper.models.openai_compatible import OpenAICompatible
from trouper.testing.invariants import check_invariants, records_of
from trouper.testing.server import Item, TestServer, serve_anthropic, serve_gemini, serve_openai

ANSWER: list[Item] = [TextChunk("Yes."), Done("end_turn")]
SERVERS = {"openai": serve_openai, "anthropic": serve_anthropic, "gemini": serve_gemini}


def serve(form: str) -> AbstractAsyncContextManager[TestServer]:
    return SERVERS[form]([ANSWER], repeat_last=True)


def client(form: str, server: TestServer) -> Any:
    match form:
        case "openai":
            return OpenAICompatible("m", api_key="test-key", base_url=server.url + "/v1")
        case "anthropic":
            return Anthropic("m", api_key="test-key", base_url=server.url)
        case _:
            return Gemini("m", api_key="test-key", base_url=server.url)


@pytest.mark.parametrize("form", SERVERS)
async def test_nothing_is_kept_for_a_session_that_was_closed(form: str) -> None:
    """The messages of its last request stay in memory with what was encoded of them: for as long as there may be another."""
    disk = MemoryDisk()
    async with serve(form) as server, client(form, server) as model:
        async with open_runtime("/state", model=model, durability="memory", disk=disk) as runtime:
            for name in ("open", "closed"):
                assert (await (await runtime.session(name)).ask("hello")).text == "Yes."
            await (await runtime.session("closed")).close()
            assert list(model._builder._cache._kept) == ["open"]
            assert (await (await runtime.session("open")).ask("again")).text == "Yes."
    assert not check_invariants(records_of(Reader(disk, "/state")))


class Keeping(Scripted):
    """Tells which sessions it was to forget."""

    def __init__(self) -> None:
        super().__init__([reply("Yes.")], exhausted="repeat")
        self.forgotten: list[str] = []

    def forget_session(self, session: str) -> None:
        self.forgotten.append(session)


async def test_models_that_wrap_others_pass_it_on(autojump_clock, open_checked, tmp_path) -> None:
    first, second = Keeping(), Keeping()
    model = Recorded(Fallback(first, second), tmp_path / "recording.json")
    async with open_checked(model) as runtime:
        session = await runtime.session("s")
        assert (await session.ask("hello")).text == "Yes."
        assert first.forgotten == second.forgotten == []
        await session.close()
        assert first.forgotten == second.forgotten == ["s"]


async def test_a_client_that_fails_over_it_keeps_no_session_from_ending(autojump_clock, open_checked, caplog) -> None:
    """I23: foreign code ends its own call."""

    class Failing(Keeping):
        def forget_session(self, session: str) -> None:
            raise RuntimeError("a bug")

    async with open_checked(Failing()) as runtime:
        session = await runtime.session("s")
        await session.close()
        assert [info.phase for info in runtime.sessions()] == ["closed"]
    assert "a client of Failing failed as a session ended" in caplog.text
