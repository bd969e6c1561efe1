"""A support agent that knows its customers: what one session remembers, another recalls; and so does the next process.

The script stands in for a model, so that the example runs without a key; with one, write model=Gemini("gemini-3-flash").
"""

import trio

from trouper import Scripted, open_runtime, tool
from trouper.events import CallEnded
from trouper.models import call, reply
from trouper.tools.builtin import recall, remember

ORDERS = {"17": "on its way", "18": "delivered"}


@tool(readonly=True)
async def order_status(order_id: str) -> dict[str, str]:
    """Look up one order."""
    return {"order": order_id, "status": ORDERS.get(order_id, "unknown")}


async def monday() -> None:
    script = [
        reply(
            call(
                "remember", scope="customers", key="ada", value={"prefers": "mornings"}, summary="Ada prefers mornings"
            )
        ),
        reply("Noted: mornings it is."),
    ]
    async with open_runtime(
        "./support_state", model=Scripted(script), tools=[order_status, remember, recall]
    ) as runtime:
        session = await runtime.session("ada-monday", system="You are a support agent.")
        print((await session.ask("Please deliver in the morning, always.")).text)


async def tuesday() -> None:
    script = [
        reply(call("order_status", order_id="17"), call("recall", scope="customers", key="ada")),
        reply("Order 17 is on its way; you will have it in the morning, as you like it."),
    ]
    async with open_runtime(
        "./support_state", model=Scripted(script), tools=[order_status, remember, recall]
    ) as runtime:
        session = await runtime.session("ada-tuesday", system="You are a support agent.")
        async with session.turn("Where is order 17?") as turn:
            async for event in turn:
                if isinstance(event, CallEnded):
                    print(event.outcome.value, event.content)
            result = await turn.wait_ended()
        print(result.text)


if __name__ == "__main__":
    trio.run(monday)
    trio.run(tuesday)
