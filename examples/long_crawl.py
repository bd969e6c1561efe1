"""A long crawl in the background. Run it, kill it, run it again: it goes on, and its one notification arrives.

python long_crawl.py [pages] [seconds per page]
"""

import sys
from pathlib import Path

import trio

from trouper import Session, ToolContext, open_runtime, tool
from trouper.events import TextDelta, ToolProgress, TurnEnded

PAGES = int(sys.argv[1]) if len(sys.argv) > 1 else 20
PAGE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0.05
BOOK = Path("crawled.txt")


@tool(background=True, idempotent=True)  # idempotent: after a crash it may be run again
async def crawl(context: ToolContext, pages: int) -> dict[str, int]:
    """Crawl a site."""
    # What is done is written down, so that another attempt does not do it twice.
    for page in range(pages_done(), pages):
        await trio.sleep(PAGE_S)
        note_page(page)
        context.report_progress(page + 1, pages, "pages")
    return {"pages": pages, "attempt": context.attempt}


def pages_done() -> int:
    return len(BOOK.read_text().splitlines()) if BOOK.exists() else 0


def note_page(page: int) -> None:
    with BOOK.open("a") as book:
        book.write(f"{page}\n")


async def main() -> None:
    async with open_runtime("./crawl_state", tools=[crawl]) as runtime:
        session = await runtime.session("crawler")
        with session.watch() as events:
            if session.tasks(state="running").tasks:
                print("going on with what the last process left behind")
            else:
                await session.ask(f"run crawl pages={PAGES}")
            async for event in events:
                match event:
                    case ToolProgress(current=current, total=total):
                        print(f"{current:.0f} of {total:.0f} pages")
                    case TextDelta(text=text):
                        print(text, end="", flush=True)
                    case TurnEnded(turn=turn):
                        print()
                        if turn == session.state.turns and not is_anything_left(session):
                            return


def is_anything_left(session: Session) -> bool:
    """A crawl that goes on, or news of one that nobody was told yet. If every page was there already, there is neither."""
    return bool(session.state.tasks.live or session.state.notifications.pending)


if __name__ == "__main__":
    try:
        trio.run(main)
    except KeyboardInterrupt:
        print("stopped; run it again, and it goes on")
