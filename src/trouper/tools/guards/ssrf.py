"""Which hosts and addresses may be asked for a page (T18). Pure, but for the resolver that is handed in.

A host name is resolved once, *all* its addresses are checked, and the connection goes to one that was checked: a name that answers differently the
next time (rebinding) gains nothing. The list of networks is our own, as `ipaddress.is_private` changes between versions of Python and knows
nothing of the metadata services of clouds.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeAlias
from urllib.parse import SplitResult, urlsplit

from attrs import frozen

from trouper.tools.guards.refusal import Refused

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
#: host -> its addresses as text
Resolver: TypeAlias = Callable[[str, int], Awaitable[Sequence[str]]]

URL_CHARS_MAX = 8192

_DENIED_V4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "carrier-grade NAT, and the metadata service of Alibaba Cloud",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "the metadata service of Azure",
    "169.254.0.0/16": "link-local, and the metadata service of most clouds",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "protocol assignments, and the metadata service of Oracle Cloud",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "6to4 relays",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved, and broadcast",
}
#: Inside 2000::/3, the only part of IPv6 that is the public Internet; everything outside it is refused as one.
_DENIED_V6 = {
    "2001::/23": "protocol assignments, among them Teredo tunnels",
    "2001:db8::/32": "documentation",
    "2002::/16": "6to4, which embeds an IPv4 address",
    "3fff::/20": "documentation",
}
DENIED: tuple[tuple[Network, str], ...] = tuple(
    (ipaddress.ip_network(text), why) for text, why in {**_DENIED_V4, **_DENIED_V6}.items()
)
_PUBLIC_V6 = ipaddress.IPv6Network("2000::/3")
#: IPv6-only networks reach IPv4 through it, so it is as good as the address that it embeds.
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_LOCAL_NAMES = ("localhost", "localdomain", "local", "internal", "home.arpa", "lan", "intranet")
_HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*\Z")
# What inet_aton takes for a number: `2130706433`, `0x7f.1`, `0177.0.0.1`, `127.1`.
_NUMBER = re.compile(r"(0x[0-9a-f]*|[0-9]+)\Z")


class AddressRefused(Refused):
    """A URL, a host or an address that is not asked."""


@frozen
class Target:
    """A URL taken apart, once: what is checked here is what is sent."""

    url: str
    scheme: str
    #: Lower case, ASCII, without a trailing dot; an IPv6 address without brackets.
    host: str
    port: int
    path_and_query: str
    #: The address, if the host is one.
    literal: Address | None

    @property
    def netloc(self) -> str:
        host = f"[{self.host}]" if self.literal and self.literal.version == 6 else self.host
        default = {"http": 80, "https": 443}[self.scheme]
        return host if self.port == default else f"{host}:{self.port}"


def parse_url(url: str) -> Target:
    """Raises `AddressRefused` for all but a plain http or https URL whose host can be read in one way only."""
    shown = repr(url if len(url) <= 200 else url[:200] + "...")
    if len(url) > URL_CHARS_MAX:
        raise AddressRefused(f"the URL has {len(url)} characters; use at most {URL_CHARS_MAX}")
    # Backslashes, blanks and control characters are where two parsers part ways.
    if any(character <= " " or character in '\\"<>^`{|}' or character == "\x7f" for character in url):
        raise AddressRefused(
            f"URL {shown} holds a blank, a backslash or another character that URLs may not; percent-encode it", url=url
        )
    try:
        parts = urlsplit(url)
        port = parts.port
        host = parts.hostname or ""
    except ValueError as error:
        raise AddressRefused(f"URL {shown} cannot be read ({error}); write it as https://host/path", url=url) from None
    scheme = parts.scheme.lower()
    if scheme not in ("http", "https"):
        raise AddressRefused(f"URL {shown} is not http or https; only these are fetched", url=url)
    if "@" in parts.netloc:
        raise AddressRefused(f"URL {shown} has a user or password before its host; leave it out", url=url)
    host, literal = _check_host(host, shown)
    if port is None:
        port = 443 if scheme == "https" else 80
    if port == 0 or (port < 1024 and port not in (80, 443)):
        raise AddressRefused(
            f"port {port} of {shown} is not one for web pages; use 80, 443 or one from 1024 up", url=url
        )
    return Target(_without_fragment(parts), scheme, host, port, _path_and_query(parts), literal)


def check_address(text: str, *, allow: Iterable[Network] = ()) -> Address:
    """The address, if it is on the public Internet (or in `allow`, which is the operator's and never the model's)."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise AddressRefused(f"{text!r} is not an address; give a public host name") from None
    if any(address in network for network in allow if network.version == address.version):
        return address
    if why := denial(address):
        raise AddressRefused(
            f"address {text} is refused: {why}; only hosts on the public Internet are fetched", address=text
        )
    return address


def denial(address: Address) -> str | None:
    """Why this address is not asked, or None."""
    if isinstance(address, ipaddress.IPv6Address):
        if address.scope_id is not None:
            return "it names an interface of this machine"
        if address in _NAT64:
            inner = denial(ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF))
            return f"it embeds an IPv4 address that is {inner}" if inner else None
        if address not in _PUBLIC_V6:
            return "it is outside 2000::/3 (loopback, link-local, site-local, private, multicast, or an embedded IPv4 address)"
    for network, why in DENIED:
        if address.version == network.version and address in network:
            return why
    return None


async def resolve(target: Target, resolver: Resolver, *, allow: Iterable[Network] = ()) -> tuple[Address, ...]:
    """All the addresses of the host, each of them checked. One bad address refuses the host: a mixed answer is an attack or a misconfiguration."""
    allowed = tuple(allow)
    if target.literal is not None:
        return (check_address(str(target.literal), allow=allowed),)
    if not allowed and any(target.host == name or target.host.endswith("." + name) for name in _LOCAL_NAMES):
        raise AddressRefused(
            f"host {target.host!r} is a name of the local network; only hosts on the public Internet are fetched"
        )
    found = await resolver(target.host, target.port)
    if not found:
        raise AddressRefused(f"host {target.host!r} has no address; check its spelling")
    return tuple(dict.fromkeys(check_address(text, allow=allowed) for text in found))


async def system_resolver(host: str, port: int) -> Sequence[str]:
    """The system's, in a worker thread."""
    import trio

    try:
        answers = await trio.socket.getaddrinfo(host, port, type=trio.socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise AddressRefused(f"host {host!r} cannot be resolved ({error}); check its spelling", host=host) from None
    return [str(answer[4][0]) for answer in answers]


def _check_host(host: str, shown: str) -> tuple[str, Address | None]:
    if ":" in host:
        try:
            return host, ipaddress.IPv6Address(host)
        except ValueError:
            raise AddressRefused(f"the host of {shown} is not an IPv6 address; check it") from None
    host = _ascii_host(host, shown).lower().removesuffix(".")
    if not _HOST.match(host) or len(host) > 253:
        raise AddressRefused(f"the host of {shown} is not a host name; write it as https://host/path")
    if _NUMBER.match(host.rpartition(".")[2]):
        try:
            return host, ipaddress.IPv4Address(host)
        except ValueError:
            raise AddressRefused(
                f"the host of {shown} is a number in disguise; write IPv4 addresses as four decimal numbers without leading zeros"
            ) from None
    return host, None


def _ascii_host(host: str, shown: str) -> str:
    if host.isascii():
        return host
    import idna

    try:
        return idna.encode(host, uts46=True).decode("ascii")
    except idna.IDNAError:
        raise AddressRefused(f"the host of {shown} is not a valid international name; check its spelling") from None


def _path_and_query(parts: SplitResult) -> str:
    from urllib.parse import quote

    # What is not ASCII is encoded; what is encoded stays as it is.
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    query = quote(parts.query, safe="/%:@!$&'()*+,;=~-._?[]")
    return f"{path}?{query}" if query else path


def _without_fragment(parts: SplitResult) -> str:
    return parts._replace(fragment="").geturl()
