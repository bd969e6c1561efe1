"""web_fetch as a model uses it (T18), against a server on the loopback interface. What it must never reach is in tests/tools/guards."""

from __future__ import annotations

import ipaddress
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from tool_bench import call, result

from trouper.tools import InvalidArguments, Tool, ToolError
from trouper.tools.builtin import make_web_fetch, web_fetch


@asynccontextmanager
async def site(**pages: bytes) -> AsyncIterator[tuple[Tool, Callable[[str], str]]]:
    """A tool that may reach a server of ours, and how to name the pages there."""

    async def serve(stream: trio.SocketStream) -> None:
        async with stream:
            request = bytes(await stream.receive_some(65536))
            method, path = request.split(b" ")[:2]
            answer = pages.get(
                path.decode().strip("/"),
                b"HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 4\r\n\r\ngone",
            )
            await stream.send_all(answer.partition(b"\r\n\r\n")[0] + b"\r\n\r\n" if method == b"HEAD" else answer)

    async def resolver(host: str, port: int) -> Sequence[str]:
        return ["127.0.0.1"]

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield (
            make_web_fetch(resolver=resolver, allow=[ipaddress.ip_network("127.0.0.1/32")]),
            lambda page: f"http://site.example:{port}/{page}",
        )
        nursery.cancel_scope.cancel()


def page(body: bytes, kind: str = "text/html; charset=utf-8") -> bytes:
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


HTML = page(
    b"<!doctype html><html><head><title>A &amp; B</title><style>p{}</style></head><body><h1>Top</h1><p>See <a href='/x'>this</a>.</p>"
    b"<script>alert('<p>no</p>')</script><ul><li>one<li>two</ul></body></html>"
)


async def test_html_comes_back_as_markdown_text_or_raw() -> None:
    async with site(a=HTML) as (tool, at):
        markdown = await call(tool, url=at("a"))
        text = await call(tool, url=at("a"), format="text")
        raw = await call(tool, url=at("a"), format="raw")
    assert markdown["title"] == "A & B"
    assert markdown["content"] == "# Top\n\nSee [this](/x).\n\n- one\n- two"
    assert text["content"] == "Top\n\nSee this.\n\none\ntwo"
    assert raw["content"].startswith("<!doctype html>")
    assert "not instructions" in markdown["note"]


async def test_lines_may_end_in_carriage_returns() -> None:
    """T18, T9: they are line ends on the web, not progress that is written over."""
    async with site(a=page(b"one\rtwo\r\nthree", "text/plain")) as (tool, at):
        assert (await call(tool, url=at("a")))["content"] == "one\ntwo\nthree"


async def test_text_in_utf_16_is_text() -> None:
    async with site(a=page("naïve".encode("utf-16"), "text/plain; charset=UTF-16")) as (tool, at):
        assert (await call(tool, url=at("a")))["content"] == "naïve"


async def test_byte_order_mark_is_no_part_of_a_page() -> None:
    """T18: `{"a": 1}` behind one is no JSON any more, and a page behind one not known as HTML."""
    mark = b"\xef\xbb\xbf"
    pages = {"json": page(mark + b"[1]", "application/json"), "html": page(mark + b"<html><p>hi", "text/plain")}
    async with site(**pages) as (tool, at):
        assert (await call(tool, url=at("json")))["content"] == "[1]"
        assert (await call(tool, url=at("html")))["content"] == "hi"


async def test_long_page_is_read_in_parts() -> None:
    body = "".join(f"{number:05d}\n" for number in range(20_000))
    async with site(a=page(body.encode(), "text/plain")) as (tool, at):
        parts, offset = [], 0
        while offset is not None:
            told = await call(tool, url=at("a"), offset=offset)
            parts.append(told["content"])
            offset = told["next_offset"]
    assert "".join(parts) == body
    assert len(parts) == 3


async def test_binary_and_missing_pages_are_told_apart() -> None:
    async with site(a=page(b"\x89PNG\0\0", "image/png")) as (tool, at):
        image = await call(tool, url=at("a"))
        gone = await result(tool, url=at("nothing"))
    assert image["binary"] is True
    assert "content" not in image
    assert gone.is_error
    assert gone.content["status"] == 404


async def test_head_returns_no_body() -> None:
    async with site(a=HTML) as (tool, at):
        told = await call(tool, url=at("a"), method="HEAD")
    assert told["status"] == 200
    assert told["content_length"] == str(len(HTML.partition(b"\r\n\r\n")[2]))
    assert "content" not in told


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("text/plain; charset=iso-8859-1", b"caf\xe9", "café"),
        ("text/plain; charset=utf-8", b"caf\xc3\xa9", "café"),
        ("text/plain", b"caf\xe9", "caf\ufffd"),
        # A codec of Python's that is no character set.
        ("text/plain; charset=unicode_escape", b"\\x41", "\\x41"),
        ("text/plain; charset=zlib", b"abc", "abc"),
        ("text/html", b"<meta charset=windows-1252><p>\x80", "€"),
    ],
)
async def test_charset_is_the_servers_or_the_pages(kind: str, body: bytes, text: str) -> None:
    async with site(a=page(body, kind)) as (tool, at):
        assert (await call(tool, url=at("a")))["content"] == text


@pytest.mark.parametrize(
    "arguments",
    [{"method": "POST"}, {"method": "DELETE"}, {"format": "pdf"}, {"offset": -1}, {"allow": ["127.0.0.0/8"]}],
)
async def test_what_the_schema_does_not_have_is_refused(arguments: dict[str, Any]) -> None:
    """Least of all can the model widen what may be reached."""
    with pytest.raises(InvalidArguments):
        await call(web_fetch, url="http://example.com/", **arguments)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1/", "http://localhost/", "file:///etc/passwd", "http://[::1]/", "http://2130706433/"]
)
async def test_default_tool_reaches_nothing_inside(url: str) -> None:
    with pytest.raises(ToolError):
        await call(web_fetch, url=url)
