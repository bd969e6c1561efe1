"""What `fetch` says on the wire and makes of odd answers (T18). The attacks are in tool_attacks.py."""

from __future__ import annotations

import gzip
import ipaddress
import shutil
import ssl
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path

import pytest
import trio
from tool_attacks import LOOPBACK, always, names, page_from, reply, serving

from trouper.tools.guards.fetch import FetchFailed, fetch
from trouper.tools.guards.ssrf import AddressRefused, check_address, parse_url, resolve


async def test_request_carries_the_name_and_nothing_of_the_surroundings() -> None:
    seen: list[bytes] = []

    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        seen.append(request)
        await stream.send_all(reply(b"ok", "Set-Cookie: a=b"))

    async with serving(handler) as port:
        url = f"http://public.example:{port}/a b?q=ü#part".replace(" ", "%20")
        page = await fetch(url, resolver=names(public="127.0.0.1"), allow=LOOPBACK)
        await fetch(url, resolver=names(public="127.0.0.1"), allow=LOOPBACK)
    assert seen[0].split(b"\r\n")[0] == b"GET /a%20b?q=%C3%BC HTTP/1.1"
    assert f"Host: public.example:{port}".encode() in seen[0]
    assert {line.split(b":")[0].lower() for line in seen[1].split(b"\r\n")[1:] if line} == {
        *(b"host", b"user-agent", b"accept", b"accept-encoding", b"connection")
    }
    assert page.body == b"ok"
    assert "#" not in page.url


async def test_redirects_are_followed_by_hand_and_remembered() -> None:
    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        path = request.split(b" ")[1]
        hops = {b"/": "/one", b"/one": "two?x=1", b"/two?x=1": None}
        target = hops[path]
        await stream.send_all(
            reply(b"there") if target is None else reply(b"", f"Location: {target}", status="307 Moved")
        )

    page = await page_from(handler)
    assert page.body == b"there"
    assert [url.rpartition("/")[2] for url in page.redirects] == ["", "one"]


@pytest.mark.parametrize(
    "location",
    [
        *("file:///etc/passwd", "http://127.0.0.2/", "//127.0.0.3/", "http://u@public.example/", "http://0x7f.1/"),
        *("http://[::1", "//[", "http://[x]/", "http://public.example]/", "http://\u2100.example/"),
    ],
)
async def test_redirect_is_checked_like_a_first_address(location: str) -> None:
    with pytest.raises(AddressRefused):
        await page_from(always(reply(b"", f"Location: {location}", status="302 Found")))


async def test_redirect_to_a_path_in_utf_8_is_followed() -> None:
    """T18."""

    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        found = request.startswith(b"GET /caf%C3%A9 ")
        await stream.send_all(reply(b"here") if found else reply(b"", "Location: /café", status="302 Found"))

    page = await page_from(handler)
    assert (page.body, len(page.redirects)) == (b"here", 1)


async def test_head_asks_for_no_body() -> None:
    page = await page_from(always(reply(b"", length=12345)), method="HEAD")
    assert (page.body, page.content_length) == (b"", "12345")


@pytest.mark.parametrize(
    ("encoding", "body"),
    [
        ("gzip", gzip.compress(b"hello" * 100, mtime=0)),
        ("deflate", zlib.compress(b"hello" * 100)),
        ("identity", b"hello" * 100),
        ("X-GZIP", gzip.compress(b"hello" * 100, mtime=0)),
        ("gzip", gzip.compress(b"hello" * 40, mtime=0) + gzip.compress(b"hello" * 60, mtime=0)),
        ("gzip", gzip.compress(b"hello" * 100, mtime=0) + b"padding"),
    ],
    ids=["gzip", "deflate", "identity", "X-GZIP", "gzip piece by piece", "gzip with something behind it"],
)
async def test_encodings_are_undone(encoding: str, body: bytes) -> None:
    assert (await page_from(always(reply(body, f"Content-Encoding: {encoding}")))).body == b"hello" * 100


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (reply(b"short", length=1000), "could not be fetched"),
        (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000 + b"\r\n\r\n", "could not be fetched"),
        (
            b"HTTP/1.1 200 OK\r\n" + b"".join(b"X%d: y\r\n" % number for number in range(20_000)) + b"\r\n",
            "could not be fetched",
        ),
        (b"SSH-2.0-OpenSSH_9\r\n", "could not be fetched"),
        (b"", "the connection was closed before an answer came"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nhello!", "could not be fetched"),
        (reply(b"not gzip", "Content-Encoding: gzip"), "not compressed as it says"),
        (reply(b"x", "Content-Encoding: br"), "not decoded"),
        (reply(b"x", "Content-Encoding: gzip\r\nContent-Encoding: gzip"), "encoded as 'gzip, gzip'"),
        (reply(gzip.compress(b"hello" * 100)[:-9], "Content-Encoding: gzip"), "in the middle of its compressed data"),
    ],
    ids=[
        "false-length",
        "huge-header",
        "many-headers",
        "not-http",
        "nothing",
        "two-lengths",
        "false-gzip",
        "unasked-encoding",
        "two-encodings",
        "broken-off-gzip",
    ],
)
async def test_answer_that_cannot_be_trusted_is_a_failure(answer: bytes, said: str) -> None:
    """security.md, row Response bombs: huge header, false Content-Length."""
    with pytest.raises(FetchFailed, match=said):
        await page_from(always(answer))


async def test_body_shorter_than_what_is_sent_ends_at_its_length() -> None:
    assert (await page_from(always(reply(b"12345extra", length=5)))).body == b"12345"


async def test_endless_hints_meet_the_deadline(autojump_clock: object) -> None:
    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        while True:
            await stream.send_all(b"HTTP/1.1 103 Early Hints\r\n\r\n")
            await trio.sleep(1)

    with pytest.raises(FetchFailed, match="not complete after 30 s"):
        await page_from(handler)


async def test_name_that_never_resolves_meets_the_deadline(autojump_clock: object) -> None:
    async def resolver(host: str, port: int) -> Sequence[str]:
        await trio.sleep_forever()
        raise AssertionError

    with pytest.raises(FetchFailed, match="not complete after 30 s"):
        await fetch("http://public.example/", resolver=resolver)


async def test_next_address_is_tried_when_one_refuses() -> None:
    async with serving(always(reply(b"ok"))) as port:
        both = (ipaddress.ip_network("127.0.0.0/8"),)
        page = await fetch(f"http://public.example:{port}/", resolver=names(public="127.0.0.9,127.0.0.1"), allow=both)
    assert page.body == b"ok"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl program to make a certificate")
async def test_tls_is_checked_against_the_name_not_the_address(tmp_path: Path) -> None:
    await trio.run_process(
        [
            *(
                "openssl",
                "req",
                "-x509",
                "-newkey",
                "rsa:2048",
                "-nodes",
                "-days",
                "2",
                "-keyout",
                "key",
                "-out",
                "cert",
            ),
            *("-subj", "/CN=public.example", "-addext", "subjectAltName=DNS:public.example"),
        ],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    client = ssl.create_default_context(cafile=str(tmp_path / "cert"))
    told: list[str | None] = []
    server.sni_callback = lambda _socket, name, _context: told.append(name)

    async def handler(stream: trio.SocketStream) -> None:
        secured = trio.SSLStream(stream, server, server_side=True, https_compatible=True)
        try:
            await secured.receive_some(65536)
            await secured.send_all(reply(b"secret"))
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(secured)

    resolver = names(public="127.0.0.1", other="127.0.0.1")
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    port = listeners[0].socket.getsockname()[1]
    failures: list[str] = []
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, handler, listeners)
        page = await fetch(f"https://public.example:{port}/", resolver=resolver, allow=LOOPBACK, tls=client)
        for url, tls in ((f"https://other.example:{port}/", client), (f"https://public.example:{port}/", None)):
            try:
                await fetch(url, resolver=resolver, allow=LOOPBACK, tls=tls)
            except FetchFailed as error:
                failures.append(error.message)
        nursery.cancel_scope.cancel()
    assert page.body == b"secret"
    assert told[0] == "public.example"
    assert len(failures) == 2
    assert "certificate" in failures[0].lower()


@pytest.mark.parametrize(
    "address", ["1.1.1.1", "8.8.8.8", "93.184.216.34", "2606:4700:4700::1111", "2a00:1450:4001::1", "64:ff9b::808:808"]
)
def test_public_addresses_are_let_through(address: str) -> None:
    assert str(check_address(address)) == str(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    ("url", "netloc", "target"),
    [
        ("https://Example.COM./a?b", "example.com", "/a?b"),
        ("http://example.com:8080", "example.com:8080", "/"),
        ("https://bücher.example/", "xn--bcher-kva.example", "/"),
        ("http://[2606:4700::1]:8080/x", "[2606:4700::1]:8080", "/x"),
        ("HTTPS://example.com:443/%2e%2e/", "example.com", "/%2e%2e/"),
    ],
)
def test_url_is_sent_as_it_was_checked(url: str, netloc: str, target: str) -> None:
    parsed = parse_url(url)
    assert (parsed.netloc, parsed.path_and_query) == (netloc, target)


async def test_host_without_addresses_is_refused() -> None:
    async def resolver(host: str, port: int) -> Sequence[str]:
        return []

    with pytest.raises(AddressRefused, match="no address"):
        await resolve(parse_url("http://nothing.example/"), resolver)
