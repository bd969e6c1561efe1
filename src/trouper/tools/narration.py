"""One short line per call and phase (T11), for people who watch: `Read File: notes.txt`, `Read File failed`. Secrets and long values are never shown."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from urllib.parse import urlsplit, urlunsplit

from trouper.core.messages import Json
from trouper.foreign import Redact, chain_of
from trouper.tools.contract import Phase, Tool
from trouper.tools.terminal_text import clean_text

LINE_MAX = 120
_VALUE_MAX = 48
#: Characters of a text that are looked at.
_SCANNED_MAX = 4_000
_log = logging.getLogger(__name__)
_HIDDEN = "[hidden]"
_SECRET_NAME = re.compile(
    r"pass(?:word|wd|phrase|code)?$|secret|token|credential|authori[sz]ation|cookie|api_?key|private_?key|access_?key|^auth$|^key$|^pin$|^otp$",
    re.IGNORECASE,
)
# What keys look like, wherever they stand: well-known prefixes, JSON web tokens, bearer headers, long runs of mixed letters and digits.
_SECRET_VALUE = re.compile(
    r"(?:sk|pk|rk)[-_][A-Za-z0-9_-]{8,}|AIza[A-Za-z0-9_-]{8,}|gh[pousr]_[A-Za-z0-9]{8,}|github_pat_\w{8,}|xox[a-z]-[A-Za-z0-9-]{8,}|AKIA[A-Z0-9]{8,}"
    r"|eyJ[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]+)*|-----BEGIN [A-Z ]+-----[^\n]*|(?i:bearer|basic)\s+[A-Za-z0-9+/=._~-]{8,}"
    r"|(?i:password|passwd|secret|token|api[-_]?key)\s*[=:]\s*\S+"
    r"|(?<![A-Za-z0-9_-])(?=[A-Za-z_-]{0,64}[0-9])(?=[0-9_-]{0,64}[A-Za-z])[A-Za-z0-9_-]{32,}"
)
#: Characters that turn the direction of what follows: a line could read as something else than it says.
_BIDI = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_URL = re.compile(r"[a-z][a-z0-9+.-]{1,20}://[^\s\"'<>]{1,2000}", re.IGNORECASE)


def narration(tool: Tool, phase: Phase, arguments: Mapping[str, Json] | None = None, redact: Redact = str) -> str:
    """The line for this call and phase: the tool's own, if it has one to say, else one made of its name and its first short argument.

    `redact`: for what is logged of a narration that raises; what looks like a secret is not logged anyhow.
    """
    if tool.narrate is not None:
        try:
            # The tool's own words are cleaned like any other: it is handed all arguments, and may be careless with them.
            if own := tool.narrate(phase, _shown_arguments(tool, arguments or {})):
                return one_line(own)
        except KeyboardInterrupt:
            raise
        except BaseException as raised:  # A plain function: nothing else that it raises comes from outside (I23).
            told = redacted(chain_of(raised, redact))
            _log.error("the narration of tool %r raised; the default line is used: %s", tool.name, told)
    subject = _subject(tool, arguments or {})
    about = f"{tool.display_name}: {subject}" if subject else tool.display_name
    match phase:
        case "started":
            return one_line(about)
        case "waiting":
            return one_line(f"{about} (waiting)")
        case "completed":
            return one_line(f"{about} (done)")
        case "failed":
            return one_line(f"{about} (failed)")


def one_line(text: str) -> str:
    """`text` as one short line without escapes and without what looks like a secret."""
    if len(text) > _SCANNED_MAX:
        # The last word may be half a key, which no pattern would know.
        text = text[:_SCANNED_MAX].rpartition(" ")[0]
    line = " ".join(redacted(_BIDI.sub("", clean_text(text))).split())
    return line if len(line) <= LINE_MAX else line[: LINE_MAX - 3] + "..."


def redacted(text: str) -> str:
    """`text` without what looks like a key, a token, or the user and query of a URL."""
    return _SECRET_VALUE.sub(_HIDDEN, _URL.sub(_bare_url, text))


def is_secret_name(name: str) -> bool:
    """Whether an argument of this name is taken for a secret."""
    return _SECRET_NAME.search(name) is not None


def _bare_url(found: re.Match[str]) -> str:
    try:
        parts = urlsplit(found[0])
    except ValueError:
        return _HIDDEN
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _shown(value: Json) -> Json:
    match value:
        case str():
            # Cut only after redaction: half a key is a secret too.
            line = one_line(value)
            return line if len(line) <= _VALUE_MAX else line[:_VALUE_MAX] + "..."
        case dict():
            return {key: _HIDDEN if is_secret_name(key) else _shown(each) for key, each in value.items()}
        case list():
            return [_shown(each) for each in value]
        case _:
            return value


def _shown_arguments(tool: Tool, arguments: Mapping[str, Json]) -> dict[str, Json]:
    """The arguments that may be shown, long texts cut, hidden ones replaced."""
    properties = tool.parameters.get("properties", {})
    shown: dict[str, Json] = {}
    for name, value in arguments.items():
        part = properties.get(name)
        if is_secret_name(name) or (
            isinstance(part, Mapping) and (part.get("writeOnly") or part.get("format") == "password")
        ):
            shown[name] = _HIDDEN
        else:
            shown[name] = _shown(value)
    return shown


def _subject(tool: Tool, arguments: Mapping[str, Json]) -> str:
    """The first argument that is short text or a number, and no secret."""
    for value in _shown_arguments(tool, arguments).values():
        if value == _HIDDEN or isinstance(value, bool):
            continue
        if isinstance(value, str) and value.strip():
            return value
        if isinstance(value, (int, float)):
            return str(value)
    return ""
