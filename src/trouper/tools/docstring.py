"""Reads a docstring: its first paragraph, and what it says of each parameter (Google, numpy or Sphinx style, if simple)."""

from __future__ import annotations

import inspect
import re

_SECTION = re.compile(
    r"(args|arguments|parameters|returns|raises|yields|examples?|notes?|see also)\s*:?\s*$", re.IGNORECASE
)
_PARAMETER_SECTIONS = frozenset({"args", "arguments", "parameters"})
_GOOGLE = re.compile(r"\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")
_NUMPY = re.compile(r"\*{0,2}(\w+)\s*(?::.*)?$")
_SPHINX = re.compile(r":param\s+(?:[^:]*\s)?(\w+):\s*(.*)$")
_SPHINX_FIELD = re.compile(r":\w+[^:]*:")


def summary(doc: str | None) -> str:
    """The first paragraph as one line; empty if there is none."""
    if not doc:
        return ""
    paragraph = inspect.cleandoc(doc).split("\n\n", 1)[0]
    return " ".join(line.strip() for line in paragraph.splitlines())


def parameter_texts(doc: str | None) -> dict[str, str]:
    """What the docstring says of each parameter, as one line each. Anything that is not understood is left out."""
    if not doc:
        return {}
    lines = inspect.cleandoc(doc).splitlines()
    texts: dict[str, list[str]] = {}
    current: list[str] | None = None
    numpy = in_section = False
    entry_indent: int | None = None
    for index, line in enumerate(lines):
        stripped = line.strip()
        indent = len(line) - len(line.lstrip())
        if found := _SPHINX.match(stripped):
            current = texts.setdefault(found[1], [])
            current.append(found[2])
            in_section, entry_indent = False, indent
            continue
        if _SPHINX_FIELD.match(stripped):
            current = None
            continue
        if indent == 0 and (section := _SECTION.match(stripped)):
            in_section = section[1].lower() in _PARAMETER_SECTIONS
            numpy = index + 1 < len(lines) and set(lines[index + 1].strip()) == {"-"}
            current, entry_indent = None, None
            continue
        if not stripped or set(stripped) == {"-"}:
            continue
        if in_section and (entry_indent is None or indent <= entry_indent):
            found = (_NUMPY if numpy else _GOOGLE).match(stripped)
            if found is None or (indent == 0 and not numpy):
                in_section, current = False, None
                continue
            entry_indent = indent
            current = texts.setdefault(found[1], [])
            if not numpy:
                current.append(found[2])
        elif current is not None:
            current.append(stripped)
    return {name: text for name, parts in texts.items() if (text := " ".join(part for part in parts if part))}
