"""Tools for the tests of the command line: slow as long as a file is not there."""

from __future__ import annotations

import logging
import os
import sys
import time
from pathlib import Path

import trio

from trouper import ToolContext, tool


async def _gate(name: str) -> None:
    gate = trio.Path(os.environ["TEST_GATES"]) / name
    while not await gate.exists():
        await trio.sleep(0.01)


@tool(background=True, idempotent=True)
async def harvest(context: ToolContext, field: str = "north") -> dict[str, str | int]:
    """Harvest a field. Slow: ends when somebody opens the gate."""
    await trio.Path(os.environ["TEST_GATES"], f"started-{field}-{context.attempt}").touch()
    context.report_progress(1, 2, "rows")
    await _gate(f"open-{field}")
    return {"field": field, "attempt": context.attempt}


@tool(background=True)
async def deploy(place: str = "here") -> str:
    """Deploy something, in the background, and not twice: ends when somebody opens the gate."""
    await _gate("deployed")
    return f"deployed {place}"


@tool(policy="requires_approval")
async def sell(what: str) -> str:
    """Sell something; somebody has to agree."""
    return f"sold {what}"


@tool
async def ponder() -> str:
    """Ponder until somebody interrupts."""
    await trio.sleep_forever()
    return "never"


@tool
async def pay(amount: int, password: str = "") -> str:
    """Pay an amount, which nobody sees the end of."""
    await trio.sleep_forever()
    return f"paid {amount}"


@tool
async def hold_up() -> str:
    """Hold up everything, as no tool should, until somebody opens the gate."""
    gates = Path(os.environ["TEST_GATES"])
    (gates / "held-up").touch()
    while not (gates / "let-go").exists():
        time.sleep(0.01)  # noqa: ASYNC251
    return "held up"


@tool
def debug(what: str = "here\x1b[31m\x1b]52;c;c3RvbGVu\x07") -> str:
    """Print something, as anybody does who looks for a mistake; in a thread."""
    print("printed", what)
    print("to stderr", file=sys.stderr)
    logging.getLogger("mine").warning("logged")
    return "debugged"


@tool
async def announce() -> str:
    """Print something at once."""
    print("at once")
    return "announced"


@tool
def inquire() -> str:
    """Read a name from stdin, which is the chat's."""
    return input("What is your name? ")


@tool
async def tidy_up() -> str:
    """Tidy up, which nobody can cancel, until somebody opens the gate."""
    with trio.CancelScope(shield=True):
        await _gate("tidied")
    return "tidy"


@tool
async def shout(loud: str = "\x1b]52;c;c3RvbGVu\x07\x1b[2J\x1b[31mBOO\u202eevil\x9b31m") -> str:
    """Say something that would drive a terminal if it got there."""
    return loud
