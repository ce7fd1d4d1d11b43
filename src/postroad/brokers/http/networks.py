"""Which addresses may be connected to: none of a private or special network, unless a setting allows it. Pure.

A host name is looked up once, and the address that the socket connects to is the one that is checked: a second answer
of the name server (DNS rebinding), a number in another notation or an IPv4 address inside an IPv6 one makes no
difference.
"""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Network", "network", "why_refused"]

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address

# Of the registries of special addresses (RFC 6890), and where clouds answer with a machine's credentials.
_SPECIAL: Final = {
    "0.0.0.0/8": "this host",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "private to a provider, and metadata of a cloud",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "metadata of a cloud",
    "169.254.0.0/16": "link-local, and metadata of a cloud",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "special, and metadata of a cloud",
    "192.0.2.0/24": "for documentation",
    "192.88.99.0/24": "special",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "for benchmarks",
    "198.51.100.0/24": "for documentation",
    "203.0.113.0/24": "for documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
    "::/128": "this host",
    "::1/128": "loopback",
    "64:ff9b:1::/48": "private",
    "100::/64": "discarded",
    "2001:db8::/32": "for documentation",
    "3fff::/20": "for documentation",
    "5f00::/16": "special",
    "fc00::/7": "private, and metadata of a cloud",
    "fe80::/10": "link-local",
    "fec0::/10": "private",
    "ff00::/8": "multicast",
}
_NETWORKS: Final = [(ip_network(text), why) for text, why in _SPECIAL.items()]

# Networks whose addresses lead to an IPv4 address, which they hold in these bits.
_EMBEDDING: Final = [
    (ip_network("::ffff:0:0/96"), 0),
    (ip_network("::ffff:0:0:0/96"), 0),
    (ip_network("::/96"), 0),
    (ip_network("64:ff9b::/96"), 0),
    (ip_network("2002::/16"), 80),
]
_TEREDO: Final = ip_network("2001::/32")


def network(text: str) -> Network | None:
    """A network, or a single address, as a setting names it; None if it is neither."""
    try:
        return ip_network(text, strict=False)
    except ValueError:
        return None


@lru_cache(maxsize=1024)
def why_refused(address: str, allowed: Sequence[Network] = ()) -> str | None:
    """Why no connection to this address may be made: the kind of its network. None if one may be.

    An IPv6 address that leads to an IPv4 address is judged by both. What is no IP address at all is refused.
    """
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return "no IP address"
    inner = _inner(found)
    if any(_within(each, one) for one in allowed for each in (found, inner) if each is not None):
        return None
    for each in (found, inner):
        for one, why in _NETWORKS:
            if each is not None and _within(each, one):
                return why
    return None


def _inner(address: Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address leads to."""
    if isinstance(address, IPv4Address):
        return None
    if address in _TEREDO:  # the client's address, inverted, is what a relay would send to
        return IPv4Address(~int(address) & 0xFFFFFFFF)
    for one, shift in _EMBEDDING:
        if address in one:
            return IPv4Address(int(address) >> shift & 0xFFFFFFFF)
    return None


def _within(address: Address, one: Network) -> bool:
    return address.version == one.version and address in one
