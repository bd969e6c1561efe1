"""HTML to plain text or simple Markdown, in time that goes with the length of the page.

The parser of the standard library takes quadratic time on some hostile pages, and holds the interpreter's lock meanwhile. This one walks forward and never
looks for the same missing end twice. It is for reading, not for showing: what it does not know it leaves out.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from typing import Literal

from attrs import frozen

#: What is between these tags is not for readers.
_HIDDEN = frozenset({"script", "style", "noscript", "template", "svg", "iframe", "object", "textarea"})
_BLOCKS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "dd",
        "details",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "hr",
        "html",
        "li",
        "main",
        "nav",
        "ol",
        "p",
        "pre",
        "section",
        "summary",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "title",
        "tr",
        "ul",
    ]
)
#: An empty line goes before these even if nobody closed what came before.
_APART = frozenset({"p", "ul", "ol", "table", "blockquote", "hr", *(f"h{level}" for level in range(1, 7))})
_HEADINGS = {f"h{level}": "#" * level + " " for level in range(1, 7)}
_MARKS = {"b": "**", "strong": "**", "i": "_", "em": "_", "code": "`"}
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9:-]{0,40}")
# Bounded: an endless number would otherwise be turned into an integer.
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}(?![0-9])|#[xX][0-9a-fA-F]{1,6}(?![0-9a-fA-F])|[a-zA-Z][a-zA-Z0-9]{1,31});?")
_HREF = re.compile(r"""\bhref\s*=\s*(?:"([^"]{0,2000})"|'([^']{0,2000})'|([^\s"'>]{1,2000}))""", re.IGNORECASE)
_TAG_CHARS_MAX = 10_000
_BLANKS = re.compile(r"[ \t\r\f\v\u00a0]+")


@frozen
class Readable:
    title: str
    text: str


@frozen
class _Tag:
    name: str
    closing: bool
    #: All of it between the angle brackets.
    source: str


def readable(page: str, *, style: Literal["text", "markdown"] = "markdown") -> Readable:
    """The text of a page. In Markdown, headings, lists, links, emphasis and code keep their marks."""
    marked = style == "markdown"
    pieces: list[str] = []
    title: list[str] = []
    in_title = False
    hrefs: list[str] = []
    preformatted = 0
    for token in _tokens(page):
        if isinstance(token, str):
            if in_title:
                title.append(token)
            elif preformatted:
                pieces.append(token)
            else:
                pieces.append(_BLANKS.sub(" ", token.replace("\n", " ")))
            continue
        if token.name == "title":
            in_title = not token.closing
        elif token.name == "pre":
            preformatted = max(0, preformatted + (-1 if token.closing else 1))
            pieces.append("\n```\n" if marked else "\n")
        elif token.name == "br":
            pieces.append("\n")
        elif token.name == "a" and marked:
            pieces.append(_link(token, hrefs))
        elif token.name in _MARKS and marked and not preformatted:
            pieces.append(_MARKS[token.name])
        elif token.name in _BLOCKS:
            apart = "\n\n" if token.name in _APART else "\n"
            pieces.append("\n" if token.closing else apart + (_opening(token.name) if marked else ""))
    return Readable(" ".join("".join(title).split()), _tidy("".join(pieces)))


def _opening(name: str) -> str:
    return _HEADINGS.get(name, {"li": "- ", "blockquote": "> ", "hr": "---\n"}.get(name, ""))


def _link(tag: _Tag, hrefs: list[str]) -> str:
    if tag.closing:
        href = hrefs.pop() if hrefs else ""
        return f"]({href})" if href else ""
    found = _HREF.search(tag.source)
    href = unescape(next((group for group in found.groups() if group), "") if found else "").strip()
    keep = href if href.lower().startswith(("http://", "https://", "/", "#", "./", "../", "mailto:")) else ""
    if len(hrefs) < 100:
        hrefs.append(keep)
    return "[" if keep and len(hrefs) < 100 else ""


def _tokens(page: str) -> Iterator[str | _Tag]:
    place = 0
    #: ends that are known to be missing from here on: looked for once
    missing: set[str] = set()

    def find(end: str, start: int) -> int:
        if end in missing:
            return -1
        found = page.find(end, start)
        if found < 0:
            missing.add(end)
        return found

    while place < len(page):
        opened = page.find("<", place)
        if opened < 0:
            yield unescape(page[place:])
            return
        if opened > place:
            yield unescape(page[place:opened])
        if page.startswith("<!--", opened):
            end = find("-->", opened + 4)
            place = len(page) if end < 0 else end + 3
        elif page.startswith(("<!", "<?"), opened):
            end = find(">", opened)
            place = len(page) if end < 0 else end + 1
        else:
            closing = page.startswith("</", opened)
            name = _NAME.match(page, opened + (2 if closing else 1))
            end = find(">", opened) if name else -1
            if name is None or end < 0:
                yield "<"  # not a tag after all
                place = opened + 1
                continue
            tag = _Tag(name[0].lower(), closing, page[name.end() : min(end, name.end() + _TAG_CHARS_MAX)])
            place = end + 1
            if tag.name in _HIDDEN and not closing and not tag.source.endswith("/"):
                place = _after_hidden(page, tag.name, place, missing)
            else:
                yield tag


def _after_hidden(page: str, name: str, place: int, missing: set[str]) -> int:
    """Past the closing tag; to the end of the page if there is none, as browsers do."""
    for end in (f"</{name}", f"</{name.upper()}"):
        if end in missing:
            continue
        found = page.find(end, place)
        if found >= 0:
            return page.find(">", found) + 1 or len(page)
        missing.add(end)
    return len(page)


def unescape(text: str) -> str:
    return _ENTITY.sub(lambda found: html.unescape(found[0]), text) if "&" in text else text


def _tidy(text: str) -> str:
    """No more than one empty line in a row, no blanks at the ends of lines."""
    lines: list[str] = []
    fenced = False
    for line in text.split("\n"):
        if line.strip() == "```":
            fenced = not fenced
        kept = line.rstrip() if fenced else line.strip()
        if kept or (lines and lines[-1]):
            lines.append(kept)
    return "\n".join(lines).strip()
