"""The control socket: how a command changes something in a root that another process owns.

`trouper chat` and `trouper run` serve `<root>/control.sock`, a Unix socket of mode 0600 in a directory of mode 0700. One JSON object a line each way; see `requests`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from trouper import codec
from trouper._errors import UsageError, WorldError
from trouper.cli.arguments import to_type
from trouper.cli.owner import NAME, address
from trouper.core.messages import Json

LINE_BYTES_MAX = 1_048_576
CLIENTS_MAX = 16
#: A client that sends nothing for so long, or does not read its answer, is let go.
IDLE_S = 30.0
_ACCEPT_AGAIN_S = 0.1
#: How long a command waits for the owner's answer.
ANSWER_S = 30.0
#: What an owner has begun with when it ends is answered if it takes no longer than this.
CLOSING_S = 2.0
#: Where to look for what may have come of a request that was never answered.
_SEEN_IN = {
    "cancel": "tasks",
    "approve": "approvals",
    "deny": "approvals",
    "interrupt": "sessions",
    "send": "sessions",
    "close": "sessions",
    "acknowledge": "notifications --all",
    "schedule": "schedules",
    "unschedule": "schedules",
    "forget": "memory",
}
#: Requests that do the same again if they are made again.
_REPEATABLE = frozenset({"ping", "remember"})

Answer = Callable[[Json], Awaitable[dict[str, Json]]]


class OwnerUnreachable(WorldError):
    """A process owns the root, and gives no answer."""

    exit_code = 75


class OwnerForeign(WorldError):
    """Another user's process listens where the owner would. It is told nothing, and nothing that it says counts."""

    exit_code = 77


class OwnerSilent(OwnerUnreachable):
    """It takes no commands, or none any more, so nothing has come of this one: it can be made again."""


@asynccontextmanager
async def serving(root: Path, answer: Answer) -> AsyncIterator[None]:
    """Answer requests inside this block. The caller owns the root's lock, so whatever socket is there is a dead process's."""
    listener = _listen(root)
    ours = os.lstat(root / NAME)
    slots = trio.CapacityLimiter(CLIENTS_MAX)
    begun: set[trio.CancelScope] = set()
    try:
        async with trio.open_nursery() as nursery:

            async def accept() -> None:
                while True:
                    try:
                        stream, _ = await listener.accept()
                    except OSError:
                        # Out of descriptors or memory, or the client has gone again: whoever listens goes on.
                        await trio.sleep(_ACCEPT_AGAIN_S)
                        continue
                    if slots.available_tokens < 1 or not _is_ours(stream):
                        stream.close()
                        continue
                    nursery.start_soon(_serve, trio.SocketStream(stream), answer, slots, begun)

            nursery.start_soon(accept)
            try:
                yield
            finally:
                for scope in begun:
                    scope.deadline = trio.current_time() + CLOSING_S
                nursery.cancel_scope.cancel()
    finally:
        listener.close()
        with contextlib.suppress(OSError):
            if os.path.samestat(os.lstat(root / NAME), ours):
                os.unlink(root / NAME)


def is_in_the_way(path: Path) -> bool:
    """Whether something stands there that is no socket, so that somebody may want to keep it."""
    try:
        return not stat.S_ISSOCK(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def check_place(root: Path) -> None:
    """Nothing of the user's is replaced."""
    if is_in_the_way(root / NAME):
        raise WorldError(
            f"{str(root / NAME)!r} is no socket, and the socket of whoever runs a root has that name; "
            "move it away, or give another --root"
        )


def _listen(root: Path) -> trio.socket.SocketType:
    plain = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # Made under another name: nobody can connect before its mode is right.
    building = root / f"{NAME}.{os.getpid()}"
    try:
        check_place(root)
        with address(root) as place:
            if building.is_socket():
                building.unlink()
            plain.bind(f"{place}/{building.name}")
            try:
                os.chmod(building, 0o600)
                plain.listen(CLIENTS_MAX)
                os.rename(building, root / NAME)
            except BaseException:
                with contextlib.suppress(OSError):
                    building.unlink()
                raise
        plain.setblocking(False)
        return trio.socket.from_stdlib_socket(plain)
    except BaseException:
        plain.close()
        raise


def _is_ours(stream: trio.socket.SocketType | socket.socket) -> bool:
    """Whether the other side is the same user, where the system can say."""
    if not hasattr(socket, "SO_PEERCRED"):
        return True
    _, uid, _ = struct.unpack("3i", stream.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return bool(uid == os.geteuid())


async def _serve(
    stream: trio.abc.Stream, answer: Answer, slots: trio.CapacityLimiter, begun: set[trio.CancelScope]
) -> None:
    received = bytearray()
    async with slots, stream:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while (line := await _line(stream, received)) is not None:
                # Shielded: whoever asks an owner that is ending is told what came of it.
                with trio.CancelScope(shield=True) as scope:
                    begun.add(scope)
                    try:
                        await _reply(stream, line, answer)
                    finally:
                        begun.discard(scope)
                if scope.cancelled_caught:
                    return


async def _reply(stream: trio.abc.Stream, line: bytes, answer: Answer) -> None:
    try:
        reply = await answer(codec.loads(line))
    except codec.UndecodableRecord:
        reply = {"ok": False, "error": "the line is no JSON; send one object a line", "exit_code": 2}
    with trio.move_on_after(IDLE_S) as reading:
        await stream.send_all(codec.dumps(reply) + b"\n")
    if reading.cancelled_caught:
        await stream.aclose()


async def _line(stream: trio.abc.Stream, received: bytearray) -> bytes | None:
    """The next line; None at the end, after a long silence, or if it is too long to be a request. `received`: what came so far, and stays for the next."""
    end = received.find(b"\n")
    with trio.move_on_after(IDLE_S):
        while end < 0:
            data = await stream.receive_some(65_536)
            if not data or len(received) + len(data) > LINE_BYTES_MAX:
                return None
            found = data.find(b"\n")
            end = len(received) + found if found >= 0 else -1
            received += data
        line = bytes(received[: end + 1])
        del received[: end + 1]
        return line
    return None


def ask_owner(root: Path, request: dict[str, Json]) -> dict[str, Json] | None:
    """The owner's answer to a request; None if nobody listens. Blocks.

    Raises `OwnerSilent` where the request can be made again, because nothing has come of it, or because it makes no difference.
    """
    received = bytearray()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as plain:
        plain.settimeout(ANSWER_S)
        try:
            with address(root) as place:
                plain.connect(f"{place}/{NAME}")
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return None
        except BlockingIOError:  # More wait to be heard than fit.
            raise OwnerSilent(
                f"the process that owns {str(root)!r} takes no more requests just now; try again", root=str(root)
            ) from None
        if not _is_ours(plain):
            raise OwnerForeign(
                f"a process of another user listens at {str(root / NAME)!r}; run as that user, or give another --root",
                root=str(root),
            )
        line = codec.dumps(request) + b"\n"
        if len(line) > LINE_BYTES_MAX:
            raise UsageError(
                f"the request takes {len(line)} bytes, and the process that owns {str(root)!r} takes {LINE_BYTES_MAX}; make it shorter",
                root=str(root),
            )
        try:
            plain.sendall(line)
            while not received.endswith(b"\n") and (data := plain.recv(65_536)):
                received += data
        except (ConnectionResetError, BrokenPipeError):
            # It did not read to the end of the line: it ends, or it serves as many as it may, or it is another user's.
            raise OwnerSilent(
                f"the process that owns {str(root)!r} hung up; look whether it still runs, then try again",
                root=str(root),
            ) from None
        except TimeoutError:
            raise _unanswered(root, request, f"did not answer within {ANSWER_S:g} s") from None
    if not received.endswith(b"\n"):
        raise _unanswered(root, request, "ended before it answered")
    answer = _understood(bytes(received))
    if answer is None:
        raise _unanswered(root, request, "gave an answer that makes no sense")
    match answer.get("begun"):
        case True:
            raise _unanswered(root, request, "ended before it answered")
        case False:
            raise OwnerSilent(
                f"the process that owns {str(root)!r} is ending; try again when it has ended", root=str(root)
            )
    return answer


def _understood(line: bytes) -> dict[str, Json] | None:
    """What an owner says, if it has the form of an answer: that it is done, what is wrong and how that ends a command, or what was begun."""
    try:
        answer = codec.loads(line)
    except codec.UndecodableRecord:
        return None
    match answer:
        case {"ok": True} | {"ok": False, "begun": bool()}:
            return dict(answer)
        case {"ok": False, "error": str(), "exit_code": int(code)} if code is not True and 0 < code < 256:
            return dict(answer)
        case _:
            return None


def _unanswered(root: Path, request: dict[str, Json], what: str) -> OwnerUnreachable:
    """The request may have been carried out."""
    do = str(request.get("do"))
    if do in _REPEATABLE:
        return OwnerSilent(f"the process that owns {str(root)!r} {what}; try again", root=str(root))
    return OwnerUnreachable(
        f"the process that owns {str(root)!r} {what}, so this may be done or not: "
        f"look with {to_type(_SEEN_IN.get(do, 'sessions'))} before you try again",
        root=str(root),
    )
