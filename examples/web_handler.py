"""A web handler on trio that streams a turn as it is spoken: `POST /chat/<session>` with the question as its body.

Needs `pip install quart-trio`.

    python web_handler.py           serve on port 8043
    python web_handler.py --try     ask it two questions without a network
"""

import sys

import trio

from trouper import Runtime, open_runtime
from trouper.events import TextDelta

try:
    from quart import request
    from quart_trio import QuartTrio
except ImportError:
    sys.exit("this example needs quart-trio: pip install quart-trio")


def make_app(runtime: Runtime) -> QuartTrio:
    app = QuartTrio(__name__)

    @app.post("/chat/<name>")
    async def chat(name: str):
        question = (await request.get_data()).decode()
        session = await runtime.session(name)  # An invalid name, or a busy session, is a named error: see below.

        async def spoken():
            # A client that goes away cancels this generator: the turn is interrupted, and recorded as such.
            async with session.turn(question) as turn:
                async for event in turn:
                    if isinstance(event, TextDelta):
                        yield event.text.encode()

        return spoken(), 200, {"Content-Type": "text/plain; charset=utf-8"}

    return app


async def main(just_try: bool) -> None:
    async with open_runtime("./web_state") as runtime:
        app = make_app(runtime)
        if not just_try:
            await app.run_task("127.0.0.1", 8043)
            return
        client = app.test_client()
        for question in ("what is 6 * 7?", "and then?"):
            response = await client.post("/chat/ada", data=question)
            print(response.status_code, (await response.get_data()).decode())


if __name__ == "__main__":
    trio.run(main, "--try" in sys.argv)
