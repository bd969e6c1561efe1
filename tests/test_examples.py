"""The examples run as they stand, and print what they promise."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from trouper import Scripted, open_runtime, tool
from trouper.events import TurnEnded
from trouper.models import call, reply
from trouper.testing.invariants import check_invariants

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(name: str, *arguments: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def module(name: str) -> Any:
    """An example as its own tests would import it."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as changed:
        changed.setattr(sys, "dont_write_bytecode", True)
        spec.loader.exec_module(loaded)
    return loaded


def test_the_page_says_how_each_is_run_without_a_key() -> None:
    page = (EXAMPLES / "README.md").read_text()
    for example in sorted(EXAMPLES.glob("*.py")):
        trying = " --try" if '"--try"' in example.read_text() else ""
        assert re.search(rf"^\| `python examples/{re.escape(example.name)}{trying}( [\d.]+)*` \|", page, re.MULTILINE)


def test_trio_app(tmp_path: Path) -> None:
    out = run("trio_app.py", "--try", cwd=tmp_path).splitlines()
    assert out == ["['6 * 7 = 42.', 'You said: thank you']", "['You said: hello']", "['ada', 'bob']"]


def test_a_rude_customer_of_the_trio_app_ends_his_own_call_only(tmp_path: Path) -> None:
    app = module("trio_app")

    async def serve_them() -> None:
        async with open_runtime(tmp_path / "state") as runtime, trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, partial(app.customer, runtime), [listener])
            port = listener.socket.getsockname()[1]
            for said in (b"", b"bob", b"../bob\n", b"\xff\n", b"bob\n\n", b"bob\n" + b"say it all back to me\n" * 20):
                async with await trio.open_tcp_stream("127.0.0.1", port) as stream:
                    await stream.send_all(said)
            assert await app.call_in(port, "ada", "what is 6 * 7?") == ["6 * 7 = 42."]
            nursery.cancel_scope.cancel()

    trio.run(serve_them)


def test_a_customer_of_the_trio_app_who_hangs_up_interrupts_his_turn(tmp_path: Path) -> None:
    """L15, L21: in the middle of a tool, when nothing is being said that could not be sent."""
    app = module("trio_app")
    paying, stopped = trio.Event(), trio.Event()

    @tool
    async def pay() -> None:
        """Pay."""
        paying.set()
        try:
            await trio.sleep_forever()
        finally:
            stopped.set()

    async def hang_up() -> None:
        model = Scripted([reply(call("pay"))])
        async with (
            open_runtime(tmp_path / "state", model=model, tools=[pay]) as runtime,
            trio.open_nursery() as nursery,
        ):
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            nursery.start_soon(trio.serve_listeners, partial(app.customer, runtime), [listener])
            async with await trio.open_tcp_stream("127.0.0.1", listener.socket.getsockname()[1]) as stream:
                session = await runtime.session("ada")
                with session.watch() as events, trio.fail_after(60):
                    await stream.send_all(b"ada\npay\n")
                    await paying.wait()
                    await stream.aclose()
                    await stopped.wait()
                    async for event in events:
                        if isinstance(event, TurnEnded):
                            assert event.stop_reason == "interrupt"
                            break
            nursery.cancel_scope.cancel()

    trio.run(hang_up)


def test_support_agent_recalls_what_another_session_remembered(tmp_path: Path) -> None:
    out = run("support_agent.py", cwd=tmp_path)
    assert out.splitlines()[0] == "Noted: mornings it is."
    assert "'status': 'on its way'" in out and "'prefers': 'mornings'" in out
    assert out.splitlines()[-1].startswith("Order 17 is on its way")


def test_long_crawl_survives_its_process(tmp_path: Path) -> None:
    """B10: killed in mid-crawl, it goes on; every page once."""
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLES / "long_crawl.py"), "40", "0.02"], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for line in process.stdout:
        if "I will tell you when it is done." in line:
            break
    process.kill()
    process.communicate()
    out = run("long_crawl.py", "40", "0.02", cwd=tmp_path)
    assert "going on with what the last process left behind" in out and "News: Task succeeded" in out
    assert (tmp_path / "crawled.txt").read_text().split() == [str(page) for page in range(40)]
    assert check_invariants(tmp_path / "crawl_state", complete=True) == []
    assert "crawl says:" in run("long_crawl.py", "40", "0.02", cwd=tmp_path)  # Nothing is left to do, and it ends.


def test_the_property_tests_of_a_tool(tmp_path: Path) -> None:
    assert run("test_my_tool.py", cwd=tmp_path).splitlines()[-1] == "ok"


needs_quart = pytest.mark.skipif(
    importlib.util.find_spec("quart_trio") is None, reason="needs quart-trio, which is optional"
)


@needs_quart
def test_web_handler(tmp_path: Path) -> None:
    assert run("web_handler.py", "--try", cwd=tmp_path).splitlines() == ["200 6 * 7 = 42.", "200 You said: and then?"]


@needs_quart
async def test_what_a_client_of_the_web_handler_does_wrong_is_told_in_the_answer() -> None:
    """It was an internal error with a traceback in the server's log, or a connection that broke off."""
    handler = module("web_handler")
    async with open_runtime(durability="memory") as runtime:
        client = handler.make_app(runtime).test_client()
        named = await client.post("/chat/not a name", data="hello")
        empty = await client.post("/chat/ada", data="")
        assert named.status_code == 400 and "is not a valid name" in await named.get_data(as_text=True)
        assert "the prompt is empty" in await empty.get_data(as_text=True)
