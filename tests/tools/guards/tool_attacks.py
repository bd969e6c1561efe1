"""The attacks of security.md that concern tools, as functions.

Each tries one attack on the guards as they are. It returns if the attack failed, and raises `Breached` if it succeeded. `test_attacks_fail.py` runs them all;
`test_controls_matter.py` switches one control off and expects `Breached`, so that no attack here is one that would fail anyway.
"""

from __future__ import annotations

import gzip
import ipaddress
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import trio

from trouper._errors import ConfigError
from trouper.tools.guards import fetch as fetch_module
from trouper.tools.guards import processes
from trouper.tools.guards.descriptors import FileRefused
from trouper.tools.guards.fence import _places, build
from trouper.tools.guards.fetch import FetchFailed, FetchLimits, fetch
from trouper.tools.guards.processes import CommandLimits
from trouper.tools.guards.refusal import Refused
from trouper.tools.guards.rooted import Quota, RootedFiles
from trouper.tools.guards.ssrf import check_address, parse_url, resolve

SECRET = b"the operator's secret"
#: What the loopback server of the tests may be reached by; everything else stays refused.
LOOPBACK = (ipaddress.ip_network("127.0.0.1/32"),)
FETCH_LIMITS = FetchLimits(wire_bytes_max=100_000, decoded_bytes_max=200_000, deadline_s=30.0)
COMMAND_LIMITS = CommandLimits(timeout_s=60.0, grace_s=0.1, kept_bytes=4096, processes_max=20, file_bytes_max=100_000)
QUOTA = Quota(bytes_max=10_000, entries_max=20, file_bytes_max=5_000)
Attack = Callable[[Path], Awaitable[None]]


class Breached(AssertionError):
    """The attack worked."""


# -- files -------------------------------------------------------------------------------------------------------------------


def tree(tmp: Path) -> RootedFiles:
    """`tmp/state/files/one`, and things outside it that an attacker wants."""
    (tmp / "state").mkdir(mode=0o700, exist_ok=True)
    os.chmod(tmp / "state", 0o700)
    files = RootedFiles(tmp / "state", "files", "one", quota=QUOTA)
    files.write("inside.txt", b"inside")
    evil = tmp / "state" / "files" / "one-evil"
    evil.mkdir()
    for place in (tmp / "secret.txt", tmp / "state" / "files" / "secret.txt", evil / "secret.txt"):
        place.write_bytes(SECRET)
    return files


def refuses(action: Callable[[], object], saying: str = "") -> None:
    try:
        found = action()
    except Refused as error:
        if saying not in error.message:
            raise Breached(f"refused for another reason: {error.message}") from None
        return
    except Exception as error:
        raise Breached(f"got through to the system: {error!r}") from error
    raise Breached(f"allowed: {found!r}")


async def climb_with_dots(tmp: Path) -> None:
    files = tree(tmp)
    refuses(lambda: files.read("../secret.txt"))
    refuses(lambda: files.read("a/../../secret.txt"))
    refuses(lambda: files.write("../planted.txt", b"x"))


async def go_to_a_sibling_with_the_same_prefix(tmp: Path) -> None:
    files = tree(tmp)
    refuses(lambda: files.read("../one-evil/secret.txt"))


async def name_an_absolute_path(tmp: Path) -> None:
    files = tree(tmp)
    refuses(lambda: files.read(str(tmp / "secret.txt")))
    refuses(lambda: files.read("/proc/self/environ"))


async def read_through_a_link(tmp: Path) -> None:
    files = tree(tmp)
    (files.root / "link").symlink_to(tmp / "secret.txt")
    refuses(lambda: files.read("link"))


async def read_through_a_linked_parent(tmp: Path) -> None:
    files = tree(tmp)
    (files.root / "up").symlink_to(tmp)
    refuses(lambda: files.read("up/secret.txt"))
    refuses(lambda: files.list("up"))


async def write_through_a_linked_parent(tmp: Path) -> None:
    files = tree(tmp)
    (files.root / "up").symlink_to(tmp)
    refuses(lambda: files.write("up/planted.txt", b"x"))
    if (tmp / "planted.txt").exists():
        raise Breached("wrote outside")


async def write_through_a_dangling_link(tmp: Path) -> None:
    files = tree(tmp)
    (files.root / "new.txt").symlink_to(tmp / "planted.txt")
    with suppress(FileRefused):
        files.write("new.txt", b"x")
    if (tmp / "planted.txt").exists():
        raise Breached("wrote outside")


def swapping(files: RootedFiles, victim: str, target: Path) -> Callable[..., int]:
    """`os.open` on a machine where somebody turns `victim` into a link just before it is opened: the worst moment there is."""

    def swap_then_open(path: str, flags: int, *rest: int, dir_fd: int | None = None) -> int:
        place = files.root / victim
        if path == victim and not place.is_symlink():
            place.rename(files.root / "moved-away")
            place.symlink_to(target)
        return os.open(path, flags, *rest, dir_fd=dir_fd)

    return swap_then_open


async def swap_a_file_between_check_and_open(tmp: Path) -> None:
    from trouper.tools.guards import descriptors

    files = tree(tmp)
    original = descriptors.open_in
    descriptors.open_in = swapping(files, "inside.txt", tmp / "secret.txt")
    try:
        refuses(lambda: files.read("inside.txt"))
    finally:
        descriptors.open_in = original


async def swap_a_directory_between_check_and_open(tmp: Path) -> None:
    from trouper.tools.guards import rooted

    files = tree(tmp)
    files.write("dir/secret.txt", b"mine")
    original = rooted.open_in
    rooted.open_in = swapping(files, "dir", tmp)
    try:
        refuses(lambda: files.read("dir/secret.txt"))
    finally:
        rooted.open_in = original


async def read_a_hard_link(tmp: Path) -> None:
    files = tree(tmp)
    os.link(tmp / "secret.txt", files.root / "hard")
    refuses(lambda: files.read("hard"))


async def open_a_pipe(tmp: Path) -> None:
    files = tree(tmp)
    os.mkfifo(files.root / "pipe")
    refuses(lambda: files.read("pipe"), "pipe")
    refuses(lambda: files.write("pipe", b"x"), "pipe")


async def delete_the_root(tmp: Path) -> None:
    files = tree(tmp)
    for path in (".", "", "./."):
        refuses(lambda path=path: files.delete(path, recursive=True))  # type: ignore[misc]


async def delete_through_a_link(tmp: Path) -> None:
    files = tree(tmp)
    (tmp / "precious").mkdir()
    (tmp / "precious" / "data").write_bytes(b"1")
    files.make_directory("dir")
    (files.root / "dir" / "link").symlink_to(tmp / "precious")
    files.delete("dir", recursive=True)
    if not (tmp / "precious" / "data").exists():
        raise Breached("deleted outside")


async def use_deceptive_names(tmp: Path) -> None:
    files = tree(tmp)
    for name in ("line\nbreak", "txt.\u202eexe", "caf\u0065\u0301", "zero\u200bwidth", "esc\x1b[2J", "\u2028"):
        refuses(lambda name=name: files.write(name, b"x"))  # type: ignore[misc]


async def use_a_nul_in_a_name(tmp: Path) -> None:
    files = tree(tmp)
    refuses(lambda: files.read("inside.txt\0.png"))


async def use_an_endless_name(tmp: Path) -> None:
    files = tree(tmp)
    refuses(lambda: files.write("n" * 4096, b"x"), "bytes; use at most")
    refuses(lambda: files.write("n/" * 4096, b"x"), "bytes; use at most")


async def plant_a_link_in_place_of_the_root(tmp: Path) -> None:
    (tmp / "state" / "files").mkdir(parents=True, mode=0o700)
    os.chmod(tmp / "state", 0o700)
    (tmp / "elsewhere").mkdir(mode=0o700)
    (tmp / "state" / "files" / "one").symlink_to(tmp / "elsewhere")
    try:
        RootedFiles(tmp / "state", "files", "one").write("a", b"x")
    except ConfigError:
        return
    raise Breached("followed the planted link")


async def own_the_root_as_another_user(tmp: Path) -> None:
    from trouper.tools.guards import descriptors

    files = tree(tmp)
    original = descriptors._effective_uid
    descriptors._effective_uid = lambda: os.geteuid() + 1
    try:
        files.write("a", b"x")
    except ConfigError as error:
        if "belongs to user" in error.message:
            return
        raise
    finally:
        descriptors._effective_uid = original
    raise Breached("wrote into another user's directory")


async def let_others_write_the_root(tmp: Path) -> None:
    files = tree(tmp)
    os.chmod(tmp / "state", 0o777)
    try:
        files.write("a", b"x")
    except ConfigError:
        return
    raise Breached("used a root that anybody can change")


async def run_with_an_open_umask(tmp: Path) -> None:
    old = os.umask(0)
    try:
        RootedFiles(tmp / "deep" / "state", "files", "one").write("sub/a", b"x")
    finally:
        os.umask(old)
    for path in (tmp / "deep", *(tmp / "deep").rglob("*")):
        if path.stat().st_mode & 0o077:
            raise Breached(f"{path.name} is open to others: {oct(path.stat().st_mode)}")


async def fill_the_disk(tmp: Path) -> None:
    files = tree(tmp)

    def fill() -> None:
        for number in range(40):
            files.write(f"big{number}", bytes(1000))

    refuses(fill, "limits are")


async def make_entries_without_end(tmp: Path) -> None:
    files = tree(tmp)

    def fill() -> None:
        for number in range(40):
            files.make_directory(f"d{number}")

    refuses(fill, "limits are")


# -- addresses ---------------------------------------------------------------------------------------------------------------

#: Everything of security.md, and some more, as a host would be written in a URL.
HOSTILE_HOSTS = (
    *(
        "169.254.169.254",
        "127.0.0.1",
        "127.1",
        "2130706433",
        "0x7f.1",
        "0177.0.0.1",
        "0x7f000001",
        "017700000001",
        "0",
        "0.0.0.0",
    ),
    *(
        "10.0.0.1",
        "172.16.0.1",
        "172.31.255.255",
        "192.168.1.1",
        "192.0.0.192",
        "100.100.100.200",
        "100.64.0.1",
        "224.0.0.1",
    ),
    *("255.255.255.255", "240.0.0.1", "198.18.0.1", "168.63.129.16", "127.0.0.1.", "127。0。0。1", "①②⑦.⓪.⓪.①"),
    *(
        "[::1]",
        "[::]",
        "[::ffff:a9fe:a9fe]",
        "[::ffff:127.0.0.1]",
        "[::127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[64:ff9b::a9fe:a9fe]",
    ),
    *(
        "[64:ff9b:1::1]",
        "[2002:7f00:1::]",
        "[2002:a9fe:a9fe::1]",
        "[fec0::1]",
        "[fe80::1]",
        "[fc00::1]",
        "[fd00:ec2::254]",
        "[ff02::1]",
    ),
    *("[2001:0:7f00:1::]", "[2001:db8::1]", "[100::1]", "[fe80::1%25eth0]", "[::ffff:0:127.0.0.1]", "[5f00::1]"),
    *("localhost", "localhost.", "LOCALHOST", "a.localhost", "metadata.google.internal", "printer.local"),
)


async def inet_aton_resolver(host: str, port: int) -> Sequence[str]:
    """What a lenient resolver makes of a host: it takes every numeric form, and knows no name but localhost."""
    import socket

    try:
        return [socket.inet_ntoa(socket.inet_aton(host))]
    except OSError:
        return ["127.0.0.1"]


async def fetch_from_inside(tmp: Path) -> None:
    for host in HOSTILE_HOSTS:
        try:
            addresses = await resolve(parse_url(f"http://{host}/"), inet_aton_resolver)
        except Refused:
            continue
        raise Breached(f"{host} leads to {addresses}")


async def embed_a_private_address(tmp: Path) -> None:
    for text in ("::ffff:10.0.0.1", "::10.0.0.1", "64:ff9b::10.0.0.1", "2002:a00:1::", "2001:0:a00:1::"):
        refuses(lambda text=text: check_address(text))  # type: ignore[misc]


async def smuggle_a_host(tmp: Path) -> None:
    for url in (
        "http://good.example@127.0.0.1/",
        "http://good.example\\@127.0.0.1/",
        "http://127.0.0.1\t/",
        "http://good.example\n.evil/",
        "file:///etc/passwd",
        "ftp://good.example/",
        "gopher://127.0.0.1:25/x",
        "http:///etc/passwd",
        "http://good.example:22/",
        "http://[::1",
        "//good.example/",
        "http://good.example:99999/",
    ):
        refuses(lambda url=url: parse_url(url))  # type: ignore[misc]


Handler = Callable[[trio.SocketStream, bytes], Awaitable[None]]


def reply(body: bytes, *headers: str, status: str = "200 OK", length: int | None = None) -> bytes:
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(body) if length is None else length}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


@asynccontextmanager
async def serving(handler: Handler, host: str = "127.0.0.1") -> AsyncIterator[int]:
    async def serve(stream: trio.SocketStream) -> None:
        request = b""
        try:
            while b"\r\n\r\n" not in request:
                data = await stream.receive_some(65536)
                if not data:
                    return
                request += data
            await handler(stream, request)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # the other side has had enough, which is often the point
        finally:
            await trio.aclose_forcefully(stream)

    listeners = await trio.open_tcp_listeners(0, host=host)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(trio.serve_listeners, serve, listeners)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def always(answer: bytes) -> Handler:
    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        await stream.send_all(answer)

    return handler


def names(**known: str) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    """A resolver: `public="127.0.0.1"` answers for `public.example`. Several addresses: separated by commas."""

    async def resolver(host: str, port: int) -> Sequence[str]:
        return known[host.removesuffix(".example")].split(",")

    return resolver


async def redirect_to_the_inside(tmp: Path) -> None:
    """The first host is allowed; the one that it redirects to is not."""
    async with serving(always(reply(SECRET)), host="127.0.0.2") as inner:
        away = reply(b"", f"Location: http://inner.example:{inner}/", status="302 Found")
        async with serving(always(away)) as port:
            try:
                page = await fetch(
                    f"http://public.example:{port}/",
                    resolver=names(public="127.0.0.1", inner="127.0.0.2"),
                    allow=LOOPBACK,
                    limits=FETCH_LIMITS,
                )
            except Refused:
                return
    raise Breached(f"fetched {page.body!r}")


async def rebind_the_name(tmp: Path) -> None:
    """The name leads to a public host when it is checked, and inside from then on."""
    async with serving(always(reply(b"public"))) as port:
        inside = await trio.open_tcp_listeners(port, host="127.0.0.2")
        answers = iter(["127.0.0.1"])

        async def resolver(host: str, port: int) -> Sequence[str]:
            return [next(answers, "127.0.0.2")]

        async with trio.open_nursery() as nursery:

            async def serve(stream: trio.SocketStream) -> None:
                async with stream:
                    await stream.receive_some(65536)
                    await stream.send_all(reply(SECRET))

            nursery.start_soon(trio.serve_listeners, serve, inside)
            page = await fetch(f"http://public.example:{port}/", resolver=resolver, allow=LOOPBACK, limits=FETCH_LIMITS)
            nursery.cancel_scope.cancel()
    if page.body != b"public":
        raise Breached(f"fetched {page.body!r}")


async def mix_a_private_address_in(tmp: Path) -> None:
    async with serving(always(reply(b"public"))) as port:
        try:
            page = await fetch(
                f"http://public.example:{port}/",
                resolver=names(public="127.0.0.1,10.0.0.1"),
                allow=LOOPBACK,
                limits=FETCH_LIMITS,
            )
        except Refused:
            return
    raise Breached(f"fetched {page.body!r}")


async def redirect_in_circles(tmp: Path) -> None:
    """Six hops, then a page: one hop too many."""
    hops = iter(range(6))

    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        again = next(hops, None) is not None
        await stream.send_all(reply(b"", "Location: /again", status="301 Moved") if again else reply(b"at last"))

    try:
        await page_from(handler)
    except FetchFailed as error:
        if "redirects more than 5" in error.message:
            return
        raise
    raise Breached("followed them all")


async def route_through_an_ambient_proxy(tmp: Path) -> None:
    """The environment names a proxy; a page asked for through it would be the proxy's to make up."""
    async with serving(always(reply(b"from the proxy"))) as proxy, serving(always(reply(b"from the server"))) as port:
        saved = {name: os.environ.get(name) for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY")}
        os.environ.update(dict.fromkeys(saved, f"http://127.0.0.1:{proxy}"))
        try:
            page = await fetch(
                f"http://public.example:{port}/",
                resolver=names(public="127.0.0.1"),
                allow=LOOPBACK,
                limits=FETCH_LIMITS,
            )
        finally:
            for name, value in saved.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value
    if page.body != b"from the server":
        raise Breached("the proxy of the environment was used")


async def page_from(answer: Handler, **options: Any) -> fetch_module.Page:
    """What `fetch` makes of a server. Raises what it raises, and not a group of one as a nursery would."""
    failure: Refused
    async with serving(answer) as port:
        try:
            return await fetch(
                f"http://public.example:{port}/",
                resolver=names(public="127.0.0.1"),
                allow=LOOPBACK,
                limits=FETCH_LIMITS,
                **options,
            )
        except Refused as error:
            failure = error
    raise failure


async def send_a_compression_bomb(tmp: Path) -> None:
    bomb = gzip.compress(bytes(20_000_000), 9)
    page = await page_from(always(reply(bomb, "Content-Encoding: gzip")))
    if len(page.body) > FETCH_LIMITS.decoded_bytes_max or not page.cut:
        raise Breached(f"{len(page.body)} bytes from {len(bomb)}")


async def send_chunks_without_end(tmp: Path) -> None:
    """A few megabytes stand for no end at all."""

    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _ in range(300):
            await stream.send_all(b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        await stream.send_all(b"0\r\n\r\n")

    page = await page_from(handler)
    if not page.cut or len(page.body) > 100_000:
        raise Breached(f"{len(page.body)} bytes, cut: {page.cut}")


async def drip_slowly(tmp: Path) -> None:
    """One byte a second, for five minutes of virtual time."""

    async def handler(stream: trio.SocketStream, request: bytes) -> None:
        await stream.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300\r\n\r\n")
        for _ in range(300):
            await stream.send_all(b".")
            await trio.sleep(1)

    try:
        await page_from(handler)
    except FetchFailed as error:
        if "was not complete" in error.message:
            return
        raise
    raise Breached("waited for all of it")


async def nest_encodings(tmp: Path) -> None:
    try:
        page = await page_from(always(reply(gzip.compress(gzip.compress(b"x")), "Content-Encoding: gzip, gzip")))
    except FetchFailed as error:
        if "not decoded" in error.message:
            return
        raise
    raise Breached(f"decoded {page.body!r}")


# -- patterns ----------------------------------------------------------------------------------------------------------------

_PATTERN_SCRIPT = """
import re, resource, sys
from trouper.tools.guards import linear_grep
if {backtracking}:
    linear_grep._compile = lambda pattern, ignore_case, literal: re.compile(pattern.encode())
searcher = linear_grep.compile_pattern({pattern!r})
# From here on: a second or two of the processor, then the end.
used = int(resource.getrusage(resource.RUSAGE_SELF).ru_utime) + 1
resource.setrlimit(resource.RLIMIT_CPU, (used + 1, used + 1))
list(searcher.search(b"a" * 100_000 + b"!"))
"""
BACKTRACKING = False


async def hang_a_search(tmp: Path) -> None:
    """In a process whose processor time is bounded, as a search that hangs would hang the tests."""
    script = _PATTERN_SCRIPT.format(backtracking=BACKTRACKING, pattern="(a+)+$")
    ended = await trio.run_process([sys.executable, "-c", script], check=False, stderr=subprocess.DEVNULL)
    if ended.returncode != 0:
        raise Breached(f"ended with {ended.returncode}")


# -- processes ---------------------------------------------------------------------------------------------------------------


async def run(
    tmp: Path, *argv: str, limits: CommandLimits | None = None, listener: processes.Listener | None = None
) -> processes.Finished:
    directory = os.open(tmp, os.O_RDONLY)
    try:
        return await processes.run(
            argv,
            directory=directory,
            environment=processes.scrubbed_environment(tmp),
            limits=limits or COMMAND_LIMITS,
            listener=listener,
        )
    finally:
        os.close(directory)


def python(script: str) -> tuple[str, ...]:
    return (sys.executable, "-I", "-S", "-c", textwrap.dedent(script))


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except OSError:
        return False
    return state not in (b"Z", b"X")


def end(pid: int) -> None:
    """After a breach, so that the tests leave nothing behind either."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


DAEMON = """
    import os, signal, sys, time
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    reader, writer = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            for stream in (0, 1, 2):
                os.close(stream)
            open("daemon.pid", "w").write(str(os.getpid()))
            os.write(writer, b"x")
            time.sleep(600)
        os._exit(0)
    os.read(reader, 1)
"""


async def leave_a_daemon(tmp: Path) -> None:
    """Forks twice, leaves its session, ignores SIGTERM, closes its streams: nothing ties it to the command any more."""
    await run(tmp, *python(DAEMON))
    pid = int((tmp / "daemon.pid").read_text())
    if alive(pid):
        end(pid)
        raise Breached("the daemon lives on")


async def ignore_the_request_to_stop(tmp: Path) -> None:
    """Ends within the grace period when cancelled, though it and its child ignore SIGTERM."""
    script = """
        import os, signal, time
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        pid = os.fork()
        if pid == 0:
            time.sleep(600)
        print(os.getpid(), pid, flush=True)
        time.sleep(600)
    """
    said: list[str] = []
    with trio.CancelScope() as scope:

        def listener(stream: str, text: str) -> None:
            said.append(text)
            scope.cancel()

        await run(tmp, *python(script), listener=listener)
    pids = [int(word) for word in "".join(said).split()]
    survivors = [pid for pid in pids if alive(pid)]
    for pid in survivors:
        end(pid)
    if survivors or len(pids) != 2:
        raise Breached(f"{survivors} of {pids} live on")


async def kill_the_warden(tmp: Path) -> None:
    script = """
        import os, signal, time
        if os.fork() == 0:
            os.setsid()
            open("stray.pid", "w").write(str(os.getpid()))
            os.kill(int(os.environ["WARDEN"]), signal.SIGKILL)
            time.sleep(600)
        time.sleep(600)
    """
    (tmp / "script.py").write_text(textwrap.dedent(script))
    finished = await run(tmp, "sh", "-c", f"WARDEN=$PPID exec {sys.executable} -I -S script.py")
    pid = int((tmp / "stray.pid").read_text())
    if alive(pid):
        end(pid)
        raise Breached("the stray lives on")
    assert finished.outcome == "lost"


def fenced() -> bool:
    """Whether this system lets us put a command into a group of its own."""
    found = build("trouper-test-probe", 1) if os.geteuid() == 0 else None
    if found is not None:
        found.remove()
    return found is not None


def fences() -> list[str]:
    """The groups of this process's commands that are still there."""
    return [str(found) for place in _places() for found in Path(place).glob(f"trouper-{os.getpid()}-*")]


async def kill_the_warden_and_hide(tmp: Path) -> None:
    """Leaves its session, clears its environment and kills its warden: only the fence still knows it."""
    if not fenced():
        pytest.skip("no control groups to be had here")
    script = """
        import os, signal, sys, time
        if len(sys.argv) == 1:
            if os.fork() == 0:
                os.setsid()
                if os.fork() == 0:
                    os.execve(sys.executable, [sys.executable, "-I", "-S", "script.py", os.environ["WARDEN"]], {})
                os._exit(0)
            time.sleep(600)
        open("stray.pid", "w").write(str(os.getpid()))
        os.kill(int(sys.argv[1]), signal.SIGKILL)
        time.sleep(600)
    """
    (tmp / "script.py").write_text(textwrap.dedent(script))
    finished = await run(tmp, "sh", "-c", f"WARDEN=$PPID exec {sys.executable} -I -S script.py")
    pid = int((tmp / "stray.pid").read_text())
    if alive(pid):
        end(pid)
        raise Breached("the stray lives on")
    assert finished.outcome == "lost"


async def breed_processes(tmp: Path) -> None:
    """A hundred stand for a bomb: a real one would be everybody's if the control failed."""
    script = """
        import os, time
        for number in range(100):
            if os.fork() == 0:
                time.sleep(600)
        time.sleep(2)
        print("bred", flush=True)
    """
    finished = await run(tmp, *python(script))
    if finished.outcome != "too_many_processes":
        raise Breached(f"all of them lived: {finished.outcome}")


async def print_without_end(tmp: Path) -> None:
    finished = await run(tmp, "sh", "-c", "head -c 5000000 /dev/zero | tr '\\0' x")
    if len(finished.stdout.text) > 10_000 or not finished.stdout.cut or "left out" not in finished.stdout.text:
        raise Breached(f"kept {len(finished.stdout.text)} characters")


async def read_the_keys_of_the_host(tmp: Path) -> None:
    os.environ["SOME_API_KEY"] = "sk-secret"
    try:
        finished = await run(tmp, "env")
    finally:
        del os.environ["SOME_API_KEY"]
    if "sk-secret" in finished.stdout.text:
        raise Breached("the key was there")


async def write_a_huge_file(tmp: Path) -> None:
    finished = await run(tmp, "sh", "-c", "head -c 1000000 /dev/zero > big; echo done")
    if (tmp / "big").stat().st_size > COMMAND_LIMITS.file_bytes_max:
        raise Breached(f"{(tmp / 'big').stat().st_size} bytes: {finished}")


async def gain_privileges(tmp: Path) -> None:
    finished = await run(tmp, "grep", "NoNewPrivs", "/proc/self/status")
    if finished.stdout.text.split() != ["NoNewPrivs:", "1"]:
        raise Breached(finished.stdout.text)
