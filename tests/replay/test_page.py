"""The page of a journal: everything is on it, and nothing in it can do anything (security.md: tool results are data)."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
import trio

from trouper import Scripted, ToolError, UsageError, open_runtime, tool
from trouper.core.messages import NO_USAGE, Usage
from trouper.journal import JournalDamaged
from trouper.models import call, reply, think
from trouper.models.chunks import UsageChunk
from trouper.replay import Page, open_journal

HOSTILE = "</pre><script>alert(1)</script><img src=http://x.test/ onerror=alert(2)>\x1b[31m\u202e\x00 \u00fc"


class Read(HTMLParser):
    """The page as a browser takes it: elements with their attributes, and text."""

    def __init__(self, page: Page) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text = ""
        self.source = "".join(page)
        self.feed(self.source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data


@tool
async def look(where: str) -> str:
    """Look somewhere."""
    if where == "nowhere":
        raise ToolError(f"nothing there: {HOSTILE}")
    return HOSTILE


async def _talk(root: Path) -> None:
    first = (*think("Let me think. " + HOSTILE), *reply("I look. " + HOSTILE, call("look", where=HOSTILE)))
    usage = UsageChunk(Usage(input=40, output=2))
    model = Scripted([first, reply(call("look", where="nowhere")), (usage, *reply("It is " + "x" * 10_000))])
    async with open_runtime(root, model=model, tools=[look], durability="write") as runtime:
        await (await runtime.session("one")).ask("what is there? " + HOSTILE)
        await (await runtime.session("two", model=Scripted([]))).ask("hello")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    trio.run(_talk, tmp_path / "state")
    return tmp_path / "state"


def test_a_page_has_every_session_record_and_event(root: Path) -> None:
    journal = open_journal(root)
    page = Page(journal)
    read = Read(page)
    assert page.problem is None and list(page.sessions) == ["one", "two"]
    assert page.sessions["one"].state.spent.usage != NO_USAGE and "42" in read.text
    ids = [attributes["id"] for tag, attributes in read.elements if tag == "section"]
    assert ids == [f"r{record.seq}" for record in journal.records()]
    for record in journal.records():
        assert type(record.cause).__name__ in read.text
        for event in record.events:
            assert type(event).__name__ in read.text
    for told in ("what is there?", "Let me think.", "I look.", "nothing there", "turn 1 ended", "end_turn", "hello"):
        assert told in read.text
    links = [attributes["href"] for tag, attributes in read.elements if tag == "a"]
    assert {link.removeprefix("#") for link in links if link} <= set(ids)


def test_nothing_that_was_said_becomes_part_of_the_page(root: Path) -> None:
    """Whatever a model or a tool says is text on it; and the page may neither run nor load anything."""
    read = Read(Page(open_journal(root)))
    assert {tag for tag, _ in read.elements}.isdisjoint({"script", "img", "iframe", "link", "object", "form"})
    assert not [attributes for _, attributes in read.elements if any(name.startswith("on") for name in attributes)]
    assert "<script>alert(1)</script>" in read.text
    policy = [attributes for tag, attributes in read.elements if "http-equiv" in attributes]
    assert [each["content"] for each in policy] == ["default-src 'none'; style-src 'unsafe-inline'"]
    assert read.source.isascii() and "\x1b" not in read.source and "\\u{202e}\\u{0} \u00fc" in read.text


def test_a_long_text_is_cut_and_a_long_journal_is_shown_in_parts(root: Path) -> None:
    journal = open_journal(root)
    assert "and 6006 more characters" in Read(Page(journal)).text
    part = Read(Page(journal, after=2, limit=3))
    assert [attributes["id"] for tag, attributes in part.elements if tag == "section"] == ["r3", "r4", "r5"]
    left = sum(1 for _ in journal.records()) - 5
    assert f"{left} more records are not on this page" in part.text
    alone = Page(journal, "two")
    assert list(alone.sessions) == ["two"] and "I look." not in Read(alone).text


def test_a_damaged_journal_is_shown_as_far_as_it_can_be_read(root: Path) -> None:
    """J10: never a silent skip."""
    [segment] = root.glob("segment-*.log")
    data = bytearray(segment.read_bytes())
    data[data.index(b"nothing there")] ^= 1
    segment.write_bytes(data)
    page = Page(open_journal(root))
    read = Read(page)
    assert isinstance(page.problem, JournalDamaged) and "Not all of it can be shown" in read.text
    assert str(page.problem) in read.text and "I look." in read.text and "turn 1 ended" not in read.text


def test_misuse_is_named(root: Path) -> None:
    journal = open_journal(root)
    with pytest.raises(UsageError, match="no session 'nobody'"):
        Page(journal, "nobody")
    for bad in (-1, 1.5, "2", True):
        with pytest.raises(UsageError, match="makes no sense"):
            Page(journal, after=bad)  # type: ignore[arg-type]
        with pytest.raises(UsageError, match="makes no sense"):
            Page(journal, limit=bad)  # type: ignore[arg-type]
