"""Whose machine an address is: some need no key, and some must not be sent one that was meant for others.

The key of the environment is for the provider whose variable it is, or for the address that the environment gives with it. Nobody else is sent it unasked;
a proxy on this very machine may have it.
"""

from __future__ import annotations

import os
import re
from base64 import b64encode
from ipaddress import ip_address
from urllib.parse import unquote, urlsplit, urlunsplit

from attrs import frozen

from trouper._errors import ConfigError


@frozen
class Address:
    """Where a client asks, and whose choice that was."""

    url: str
    #: The host of the provider itself.
    own_host: str
    #: Nobody gave another than the environment's, or than the usual one.
    chosen_by_environment: bool

    def may_have_key_of_environment(self, host: str) -> bool:
        """`host`: the one that the address leads to."""
        return self.chosen_by_environment or host == self.own_host or is_loopback(host)


def address_of(given: str | None, variable: str, usual: str) -> Address:
    """The address that was given; else that of the environment; else the provider's own."""
    from_environment = os.environ.get(variable, "").strip() or None
    return Address(
        checked_url(given or from_environment or usual),
        urlsplit(usual).hostname or "",
        given is None or given == from_environment,
    )


def checked_url(given: object) -> str:
    """An address that paths can be written behind, without blanks around it."""
    url = given.strip() if isinstance(given, str) else ""
    if not host_in(url) or urlsplit(url).scheme not in ("http", "https") or not url.isprintable():
        raise ConfigError(
            f"base_url {without_userinfo(str(given))!r} is not an http(s) address; write e.g. 'https://host/path'"
        )
    if "?" in url or "#" in url:
        # Without what follows: it may be a key.
        raise ConfigError(
            f"base_url {without_userinfo(re.split('[?#]', url)[0])!r} goes on with '?' or '#', behind which no path can stand; "
            "leave that out, and give a key as api_key= or in headers="
        )
    return url


def without_userinfo(url: str) -> str:
    # To the last @, though it may be part of a path: rather too much hidden than a password with a slash in it shown.
    return re.sub(r"//.*@", "//", url)


def with_userinfo_apart(url: str) -> tuple[str, str]:
    """An address without the name and password that stand in it, and these as the `authorization` that they mean; "" if there are none."""
    parts = urlsplit(url)
    given, at, host = parts.netloc.rpartition("@")
    if not at:
        return url, ""
    name, _, password = given.partition(":")
    plain = f"{unquote(name)}:{unquote(password)}"
    return urlunsplit(parts._replace(netloc=host)), f"Basic {b64encode(plain.encode()).decode()}"


def passwords_in(url: str) -> tuple[str, ...]:
    """What must not show of an address: its password, and the name and password that are sent together. Nothing if it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return ()
    name, password = unquote(parts.username or ""), unquote(parts.password or "")
    return (password, f"{name}:{password}") if password else ()


def host_in(url: str) -> str:
    """The host that an address names; "" for what is none, with a port that cannot be one, say."""
    try:
        parts = urlsplit(url)
        return parts.hostname or "" if parts.port != 0 else ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """This very machine."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_local(host: str) -> bool:
    """A machine of one's own, or of one's own network: those mostly want no key."""
    try:
        address = ip_address(host)
    except ValueError:
        return "." not in host or host.endswith((".local", ".internal", ".localhost", ".lan"))
    return address.is_loopback or address.is_private or address.is_link_local
