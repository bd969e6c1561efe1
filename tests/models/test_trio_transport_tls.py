"""M2: the transport under TLS, which is how providers are reached."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
import trio
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from trouper.models._errors import ModelFault, NetworkFault
from trouper.models.http import Endpoint, _trusted_roots


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate for 127.0.0.1 that vouches for itself, in one file."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.UTC)
    signed = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "certificate.pem"
    path.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + signed.public_bytes(serialization.Encoding.PEM)
    )
    return path


@pytest.fixture
def _trusted(certificate: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    _trusted_roots.cache_clear()
    yield
    _trusted_roots.cache_clear()


@asynccontextmanager
async def server(certificate: Path, *pieces: bytes) -> AsyncIterator[tuple[str, list[int]]]:
    """Answers each request with these pieces, each in a record of its own. Its address, and requests per connection."""
    counts: list[int] = []
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)

    async def talk(transport: trio.SocketStream) -> None:
        number = len(counts)
        counts.append(0)
        stream = trio.SSLStream(transport, context, server_side=True, https_compatible=True)
        try:
            while True:
                got = b""
                while b"\r\n\r\n" not in got:
                    piece = await stream.receive_some()
                    if not piece:
                        return
                    got += piece
                counts[number] += 1
                for piece in pieces:
                    await stream.send_all(piece)
                    await trio.lowlevel.checkpoint()
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, talk, listeners)
        yield f"https://127.0.0.1:{listeners[0].socket.getsockname()[1]}", counts
        nursery.cancel_scope.cancel()


@pytest.mark.usefixtures("_trusted")
async def test_replies_of_many_records_on_one_connection(certificate: Path) -> None:
    """M2: also one of more than a record's or a read's size."""
    bodies = [b"word %d" % i for i in range(50)] + [bytes(300_000)]
    chunks = [b"%x\r\n%s\r\n" % (len(body), body) for body in bodies]
    head = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
    async with server(certificate, head, *chunks, b"0\r\n\r\n") as (url, counts), Endpoint(url, provider="x") as end:
        for _ in range(3):
            async with end.open("/x", b"{}") as stream:
                assert await stream.read_all(1_000_000) == b"".join(bodies)
        assert counts == [3]


@pytest.mark.usefixtures("_trusted")
async def test_a_cancelled_reply_closes_its_connection(certificate: Path) -> None:
    """M2."""
    async with (
        server(certificate, b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhi") as (url, counts),
        Endpoint(url, provider="x") as end,
    ):
        for _ in range(2):
            with trio.CancelScope() as scope:
                async with end.open("/x", b"{}") as stream:
                    assert await stream.receive() == b"hi"
                    scope.cancel()
                    await stream.receive()
            assert scope.cancelled_caught
        assert counts == [1, 1]


async def test_a_certificate_that_nobody_vouches_for_is_not_tried_again(certificate: Path) -> None:
    """M1: another try would end the same way."""
    async with server(certificate) as (url, counts):
        with pytest.raises(NetworkFault, match="not trusted") as caught:
            async with Endpoint(url, provider="x").open("/x", b"{}"):
                pass
        assert not caught.value.retryable
        assert "SSL_CERT_FILE" in caught.value.message
        assert sum(counts) == 0


async def connect(stream: trio.SocketStream) -> None:
    """A proxy that makes the connections that it is asked for."""
    asked = bytes(await stream.receive_some()).split()[1].decode()
    host, _, port = asked.rpartition(":")
    async with stream, await trio.open_tcp_stream(host, int(port)) as there, trio.open_nursery() as nursery:
        await stream.send_all(b"HTTP/1.1 200 Connection established\r\n\r\n")

        async def pass_on(source: trio.SocketStream, sink: trio.SocketStream) -> None:
            with suppress(trio.BrokenResourceError):
                while piece := await source.receive_some():
                    await sink.send_all(piece)
            nursery.cancel_scope.cancel()

        nursery.start_soon(pass_on, stream, there)
        nursery.start_soon(pass_on, there, stream)


async def test_a_certificate_that_nobody_vouches_for_is_named_behind_a_proxy_as_well(certificate: Path) -> None:
    """M1: where it is mostly the proxy's own; there were no words on what was wrong, and it was asked again and again."""
    listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
    proxy = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}"
    async with server(certificate) as (url, counts), trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, connect, listeners)
        endpoint = Endpoint(url, provider="x", proxy=proxy)
        with pytest.raises(
            NetworkFault, match=r"'x', or of the proxy on the way, is not trusted .*self.signed"
        ) as caught:
            async with endpoint.open("/x", b"{}"):
                pass
        assert not caught.value.retryable
        assert "SSL_CERT_FILE" in caught.value.message
        assert sum(counts) == 0
        await endpoint.aclose()
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("proxy", [None, "http://127.0.0.1:9"])
@pytest.mark.parametrize("content", [None, b"no certificate"])
async def test_roots_that_cannot_be_read_are_named_and_not_the_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, proxy: str | None
) -> None:
    """M1, M3: nobody is connected to for that, and another try would end the same way."""
    if content is not None:
        (tmp_path / "roots.pem").write_bytes(content)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "roots.pem"))
    _trusted_roots.cache_clear()
    try:
        with pytest.raises(ModelFault, match="correct SSL_CERT_FILE") as caught:
            async with Endpoint("https://127.0.0.1:9", provider="x", proxy=proxy).open("/x", b"{}"):
                pass
    finally:
        _trusted_roots.cache_clear()
    assert not caught.value.retryable
