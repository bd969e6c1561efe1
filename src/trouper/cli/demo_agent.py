"""The process of the demo that is killed: a runtime, one session, one slow tool. Reads requests as JSON lines, writes events as JSON lines.

<- {"ask": "what is 6 * 7?"}
-> {"ready": ...}  {"text": "6 "}  {"thinking": ...}  {"progress": [3, 40]}  {"event": {"type": "TurnEnded", ...}}
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import trio

from trouper import ToolContext, codec, open_runtime, tool
from trouper.cli.endings import ended
from trouper.cli.stdin_lines import lines_of
from trouper.events import (
    CallAnnounced,
    CaughtUp,
    TextDelta,
    ThinkingDelta,
    ToolOutput,
    ToolProgress,
    ToolStatus,
)
from trouper.models.simulated import Simulated
from trouper.session import Session
from trouper.tools import Param, Tool
from trouper.tools.builtin import BUILTIN

SESSION = "demo"


def pages_done(notebook: Path) -> int:
    return len(notebook.read_text().splitlines()) if notebook.exists() else 0


def note_page(notebook: Path, page: int) -> None:
    with notebook.open("a") as book:
        book.write(f"{page} {os.getpid()}\n")


def make_survey(notebook: Path, page_s: float) -> Tool:
    @tool(background=True, idempotent=True)
    async def survey(
        context: ToolContext, pages: Annotated[int, Param("How many pages there are", ge=1, le=1000)]
    ) -> dict[str, int]:
        """Survey a site, page by page. Slow."""
        # Each page that is done is written down first, so that a new attempt goes on where the last one ended.
        done = pages_done(notebook)
        for page in range(done + 1, pages + 1):
            await trio.sleep(page_s)
            note_page(notebook, page)
            context.report_progress(page, pages, "pages")
        return {"pages": pages, "attempts": context.attempt}

    return survey


def say(message: dict[str, Any]) -> None:
    # One write a line: what the reader gets is whole lines, also when we are killed.
    os.write(sys.stdout.fileno(), codec.dumps(message) + b"\n")


async def report(session: Session, started: trio.Event) -> None:
    with session.watch() as events:
        say({"ready": os.getpid(), "next": session.statistics().events})
        started.set()
        async for event in events:
            match event:
                case TextDelta(text=text):
                    say({"text": text})
                case ThinkingDelta(text=text):
                    say({"thinking": text})
                case ToolProgress(current=current, total=total):
                    say({"progress": [current, total]})
                case CallAnnounced() | ToolOutput() | ToolStatus() | CaughtUp():
                    pass  # Told live and gone; the demo has no use for it.
                case _:
                    say({"event": codec.event_to_json(event)})


async def main(root: Path, notebook: Path, page_s: float, word_s: float) -> int:
    tools = [make_survey(notebook, page_s), BUILTIN["multiply"], BUILTIN["get_current_time"]]
    async with open_runtime(root, model=Simulated(delay_s=word_s), tools=tools) as runtime:
        session = await runtime.session(SESSION)
        async with trio.open_nursery() as nursery:
            started = trio.Event()
            nursery.start_soon(report, session, started)
            await started.wait()
            # Shutting the pipe is how the demo says that it is over.
            async for line in lines_of(sys.stdin.fileno()):
                nursery.start_soon(session.send, codec.loads(line.encode())["ask"])
            nursery.cancel_scope.cancel()
    return 0


if __name__ == "__main__":
    # Whatever goes wrong is a line, as with any command. If the demo has gone, nobody is left to tell.
    sys.exit(
        ended(lambda: trio.run(main, Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3]), float(sys.argv[4])))
    )
