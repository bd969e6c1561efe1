"""A trio application: customers connect over TCP, say a line, and get the reply as it is spoken. One session each; hang up, come back, go on.

python trio_app.py              serve on port 8042
python trio_app.py --try        serve, and let two customers talk to it
"""

import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from functools import partial

import trio

from trouper import Runtime, TrouperError, open_runtime
from trouper.events import TextDelta


async def customer(runtime: Runtime, stream: trio.SocketStream) -> None:
    """The first line is the customer's name, each other one a question."""
    async with trio.open_nursery() as nursery:
        into, lines = trio.open_memory_channel[str](16)
        nursery.start_soon(listen, stream, into, nursery.cancel_scope)
        await converse(runtime, lines, stream)
        nursery.cancel_scope.cancel()


async def listen(stream: trio.SocketStream, into: trio.MemorySendChannel[str], call: trio.CancelScope) -> None:
    """Somebody has to listen while an answer is under way, or a customer who hangs up would not be noticed before there is something to say."""
    with suppress(trio.BrokenResourceError):
        async with aclosing(read_lines(stream)) as lines:
            async for line in lines:
                await into.send(line)
    call.cancel()  # Hung up. What leaves `session.turn()` early interrupts the turn, and the tools that it waits for.


async def converse(runtime: Runtime, lines: trio.MemoryReceiveChannel[str], stream: trio.SocketStream) -> None:
    """Whatever goes wrong is the end of this call, not of the server."""
    try:
        session = await runtime.session(await lines.receive())
        async for line in lines:
            async with session.turn(line) as turn:
                async for event in turn:
                    if isinstance(event, TextDelta):
                        await stream.send_all(event.text.encode())
            await stream.send_all(b"\n")
    except TrouperError as error:  # A name that is none, an empty question, a second call by the same customer...
        with suppress(trio.BrokenResourceError):
            await stream.send_all(f"{error}\n".encode())
    except trio.BrokenResourceError:
        pass  # Hung up.


async def read_lines(stream: trio.SocketStream) -> AsyncGenerator[str, None]:
    buffer = b""
    async for data in stream:
        *lines, buffer = (buffer + data).split(b"\n")
        for line in lines:
            yield line.decode(errors="replace")


async def call_in(port: int, name: str, *questions: str) -> list[str]:
    stream = await trio.open_tcp_stream("127.0.0.1", port)
    answers = []
    async with stream:
        await stream.send_all(f"{name}\n".encode())
        for question in questions:
            await stream.send_all(f"{question}\n".encode())
            answer = b""
            while not answer.endswith(b"\n"):
                answer += await stream.receive_some()
            answers.append(answer.decode().strip())
    return answers


async def main(port: int, just_try: bool) -> None:
    async with open_runtime("./trio_app_state") as runtime, trio.open_nursery() as nursery:
        serve = lambda stream: customer(runtime, stream)  # noqa: E731
        # This machine only: nobody is asked for a password here.
        listeners = await nursery.start(partial(trio.serve_tcp, host="127.0.0.1"), serve, port)
        if just_try:
            port = listeners[0].socket.getsockname()[1]
            print(await call_in(port, "ada", "what is 6 * 7?", "thank you"))
            print(await call_in(port, "bob", "hello"))
            print([session.id for session in runtime.sessions()])
            nursery.cancel_scope.cancel()
        else:
            print(f"nc 127.0.0.1 {port}, and your name in the first line; Ctrl-C ends it", flush=True)


if __name__ == "__main__":
    trying = "--try" in sys.argv
    trio.run(main, 0 if trying else 8042, trying)
