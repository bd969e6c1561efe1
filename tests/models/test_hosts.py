"""M3: addresses, headers and keys as they are given: what cannot work is told where it is given, in words, and without a key that may stand in it."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from trouper import Anthropic, Gemini, OpenAICompatible
from trouper._errors import ConfigError
from trouper.core.messages import Message, Text
from trouper.models import AuthFailed, ModelRequest

KEY = "a-planted-key-0123456789"
CLIENTS = [OpenAICompatible, Anthropic, Gemini]
ASK = ModelRequest((Message("user", (Text("hi"),)),))


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(
    "url",
    [
        *("host/v1", "ftp://host", "http://", "http://host:99999/v1", "http://host:port/v1", "http://[::1/v1"),
        *("http://ho\nst", f"https://host/v1?key={KEY}", f"https://host/v1#{KEY}", f"https://{KEY}@host:port", 5),
    ],
)
def test_an_address_that_no_request_can_be_sent_to_is_refused(kind: Any, url: Any) -> None:
    with pytest.raises(ConfigError, match="base_url") as caught:
        kind("m", api_key=KEY, base_url=url)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("kind", CLIENTS)
def test_blanks_around_an_address_are_no_part_of_it(kind: Any) -> None:
    """As they come with a line of a file."""
    assert "'http://host:8000/v2'" in repr(kind("m", api_key=KEY, base_url=" http://host:8000/v2/\n"))


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("headers", [{"x-number": 5}, {7: KEY}, [("x", KEY)], KEY])
def test_headers_that_are_no_texts_are_refused(kind: Any, headers: Any) -> None:
    with pytest.raises(ConfigError, match="headers=") as caught:
        kind("m", api_key=KEY, headers=headers)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("name", ["Content-Length", "transfer-encoding"])
def test_headers_that_say_where_a_body_ends_are_refused(kind: Any, name: str) -> None:
    """M3: the request was sent with them, beside a body of another length."""
    with pytest.raises(ConfigError, match=f"headers= has '{name}'"):
        kind("m", api_key=KEY, headers={name: "5"})


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize("proxy", [5, httpx.Proxy("http://host:3128", auth=("me", KEY))])
def test_a_proxy_that_is_no_text_is_refused(kind: Any, proxy: Any) -> None:
    """M3."""
    with pytest.raises(ConfigError, match="proxy=") as caught:
        kind("m", api_key=KEY, proxy=proxy)
    assert KEY not in str(caught.value)


@pytest.mark.parametrize("kind", CLIENTS)
@pytest.mark.parametrize(("answer", "says"), [("", "is empty"), (None, "not plain"), (f"{KEY}\n{KEY}", "not plain")])
async def test_a_function_that_gives_no_key_fails_as_a_wrong_key_does(kind: Any, answer: Any, says: str) -> None:
    """M1: by name, and with the reason."""
    model = kind("m", api_key=lambda: answer, base_url="http://127.0.0.1:9")
    with pytest.raises(AuthFailed, match=f"{says}.*function") as caught:
        async with model.stream(ASK):
            pass
    assert KEY not in str(caught.value)
