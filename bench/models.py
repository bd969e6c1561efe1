"""The Gemini client against Google's own, on the same server in another process.

CPU per event is this process's own time for a whole reply, divided by its events: reading, parsing and handing out; the server's time is not in it. The three
clients take turns, and the median of all replies counts. Two kinds of reply:

- as fast as the server can: our client reads what comes so fast in gulps of 2 ms, so that many events share a wake-up. The goal is at most 1/8 of Google's client.
- an event at a time, 1 ms apart: each is handed out as it comes, and costs a wake-up of the process. That is the floor, for any client on trio: the row below
  shows a reader on a bare trio socket that throws the bytes away. Most of it is paid to caches that have gone cold, so that it depends on what else runs.

    python bench/models.py [--quick] [--json]
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median

import trio

from _report import Row, parse_arguments, print_rows
from trouper.core.messages import Message, Text, ToolSpec
from trouper.models.chunks import TextChunk
from trouper.models.gemini import Gemini
from trouper.models.gemini_request import RequestBuilder
from trouper.models.protocol import ModelRequest
from trouper.testing.server import Event, Item, Stall, serve_gemini

EVENTS = 400
PAUSE_S = 0.001
SDK = "google-genai"
HELLO = ModelRequest(messages=(Message("user", (Text("Tell me a story."),)),))


def reply(events: int, *, pause: bool) -> list[Item]:
    """Events as Google sends them: a few words, the figures so far, and who said it."""
    items: list[Item] = []
    for i in range(events):
        candidate = {"content": {"parts": [{"text": f"word {i} of a story, "}], "role": "model"}, "index": 0}
        items.append(
            Event(
                {
                    "candidates": [{**candidate, "finishReason": "STOP"} if i == events - 1 else candidate],
                    "usageMetadata": {
                        "promptTokenCount": 12,
                        "candidatesTokenCount": i * 5,
                        "totalTokenCount": 12 + i * 5,
                        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": 12}],
                    },
                    "modelVersion": "gemini-3-flash",
                    "responseId": "p4Q2aZbbK9ib",
                }
            )
        )
        if pause:
            items.append(Stall(PAUSE_S))
    return items


async def serve_until_told(pause: bool) -> None:
    async with serve_gemini([reply(EVENTS, pause=pause)], repeat_last=True) as server:
        print(server.url, flush=True)
        await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True)
        print(server.connections_opened, len(server.requests), flush=True)


@contextmanager
def server_process(*, pause: bool) -> Iterator[tuple[str, Callable[[], tuple[int, int]]]]:
    """Its address, and a function that stops it and tells of connections and requests."""
    command = [sys.executable, __file__, "serve", "paused" if pause else "fast"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None

        def stop() -> tuple[int, int]:
            process.stdin.write("\n")  # type: ignore[union-attr]
            process.stdin.flush()  # type: ignore[union-attr]
            connections, requests = process.stdout.readline().split()  # type: ignore[union-attr]
            return int(connections), int(requests)

        try:
            yield process.stdout.readline().strip(), stop
        finally:
            process.kill()


async def ours(url: str, repeats: int) -> list[float]:
    """Seconds of CPU per event, for each repeat."""
    times = []
    async with Gemini("gemini-3-flash", api_key="bench-key", base_url=url) as model:
        for _ in range(repeats + 1):
            words = 0
            start = time.process_time()
            async with model.stream(HELLO) as chunks:
                async for chunk in chunks:
                    words += type(chunk) is TextChunk
            times.append((time.process_time() - start) / EVENTS)
            assert words == EVENTS
    return times[1:]


async def bare(url: str, repeats: int) -> list[float]:
    """The floor: the same bytes read from a trio socket, and thrown away."""
    port = int(url.rsplit(":", 1)[1])
    body = b'{"contents":[{"role":"user","parts":[{"text":"Tell me a story."}]}]}'
    head = b"POST /v1beta/models/gemini-3-flash:streamGenerateContent?alt=sse HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
    times = []
    for _ in range(repeats):
        start = time.process_time()
        async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
            await stream.send_all(head % len(body) + body)
            while not (await stream.receive_some(65536)).endswith(b"0\r\n\r\n"):
                pass
        times.append((time.process_time() - start) / EVENTS)
    return times


async def theirs(url: str, repeats: int) -> list[float]:
    from google import genai
    from google.genai import types

    times = []
    client = genai.Client(api_key="bench-key", http_options=types.HttpOptions(base_url=url)).aio
    config = types.GenerateContentConfig(automatic_function_calling=types.AutomaticFunctionCallingConfig(disable=True))
    for _ in range(repeats + 1):
        words = 0
        start = time.process_time()
        async for event in await client.models.generate_content_stream(
            model="gemini-3-flash", contents="Tell me a story.", config=config
        ):
            words += event.text is not None
        times.append((time.process_time() - start) / EVENTS)
        assert words == EVENTS
    await client.aclose()
    return times[1:]


def stream_rows(repeats: int) -> list[Row]:
    rows = []
    for name, pause in (("as fast as it can", False), ("an event at a time", True)):
        our_times: list[float] = []
        their_times: list[float] = []
        bare_times: list[float] = []
        with server_process(pause=pause) as (url, stop):
            for _ in range(3):
                our_times += trio.run(ours, url, repeats)
                their_times += asyncio.run(theirs(url, repeats))
                bare_times += trio.run(bare, url, repeats)
            connections, requests = stop()
        value = median(our_times) * 1e6
        rows.append(Row(f"CPU per event, sent {name}", value, "us", SDK, median(their_times) * 1e6))
        rows.append(Row("the same", value, "us", "bare trio, bytes thrown away", median(bare_times) * 1e6))
    # Each client, ours and theirs, makes all its requests on one connection; the bare reads have one each.
    rows.append(Row("connections", connections - 3 * repeats, "", "requests", requests - 3 * repeats))
    return rows


def body_rows(repeats: int) -> list[Row]:
    """A request's body one turn later, in a short history and in a long one."""
    from google.genai import types

    tools = tuple(
        ToolSpec(f"tool_{i}", "Does a thing.", {"type": "object", "properties": {"path": {"type": "string"}}})
        for i in range(20)
    )
    history = tuple(
        Message("user" if i % 2 == 0 else "assistant", (Text(f"message {i}: " + "some words " * 30),))
        for i in range(802)
    )

    def next_body_s(length: int) -> float:
        times = []
        for _ in range(repeats * 10):
            builder = RequestBuilder()
            builder.body(ModelRequest(history[:length], tools=tools, session="s"), "gemini-3-flash")
            later = ModelRequest(history[: length + 2], tools=tools, session="s")
            start = time.perf_counter()
            builder.body(later, "gemini-3-flash")
            times.append(time.perf_counter() - start)
        return median(times)

    def sdk_encode_s(length: int) -> float:
        contents = [types.Content(role="user", parts=[types.Part(text=message.text)]) for message in history[:length]]
        times = []
        for _ in range(max(3, repeats // 2)):
            start = time.perf_counter()
            for content in contents:
                content.model_dump(mode="json", exclude_none=True, by_alias=True)
            times.append(time.perf_counter() - start)
        return median(times)

    short, long = next_body_s(10), next_body_s(800)
    return [
        Row("body of a turn after 800 messages", long * 1e6, "us", "after 10 messages", short * 1e6),
        Row("the same", long * 1e6, "us", f"{SDK}: dumping its contents", sdk_encode_s(800) * 1e6),
    ]


def main() -> None:
    arguments = parse_arguments(__doc__)
    repeats = 4 if arguments.quick else 12
    print_rows([*stream_rows(repeats), *body_rows(repeats)], as_json=arguments.json)


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        trio.run(serve_until_told, sys.argv[2] == "paused")
    else:
        main()
