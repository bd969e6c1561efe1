"""A web handler on trio that streams a turn as it is spoken: `POST /chat/<session>` with the question as its body.

Needs `pip install quart-trio`.

    python web_handler.py           serve on port 8043
    python web_handler.py --try     ask it two questions without a network
"""

import sys
from collections.abc import AsyncIterator

import trio

from trouper import Runtime, UsageError, open_runtime
from trouper.events import TextDelta

try:
    from quart import Response, request
    from quart_trio import QuartTrio
except ImportError:
    sys.exit("this example needs quart-trio: pip install quart-trio")


def make_app(runtime: Runtime) -> QuartTrio:
    app = QuartTrio(__name__)

    @app.post("/chat/<name>")
    async def chat(name: str) -> Response:
        question = str(await request.get_data(as_text=True))
        session = await runtime.session(name)  # An invalid name is a UsageError: see below.

        async def spoken() -> AsyncIterator[bytes]:
            try:
                # A client that goes away cancels this generator: the turn is interrupted, and recorded as such.
                async with session.turn(question) as turn:
                    async for event in turn:
                        if isinstance(event, TextDelta):
                            yield event.text.encode()
            except UsageError as error:  # An empty question, a session that is busy. The status has gone out already.
                yield f"{error}\n".encode()

        return Response(spoken(), content_type="text/plain; charset=utf-8")

    @app.errorhandler(UsageError)
    async def refused(error: UsageError) -> Response:
        return Response(f"{error}\n", 400, content_type="text/plain; charset=utf-8")

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
            print(response.status_code, await response.get_data(as_text=True))


if __name__ == "__main__":
    trio.run(main, "--try" in sys.argv)
