"""Whose machine an address is: some need no key, and some must not be sent one that was meant for others.

The key of the environment is for the provider whose variable it is, or for the address that the environment gives with it. Nobody else is sent it unasked;
a proxy on this very machine may have it.
"""

from __future__ import annotations

from ipaddress import ip_address


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
