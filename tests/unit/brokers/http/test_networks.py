from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from postroad.brokers.http.networks import network, why_refused

v4 = st.integers(0, 2**32 - 1).map(IPv4Address)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.31.255.255",
        "192.168.0.1",
        "169.254.169.254",
        "100.100.100.200",
        "0.0.0.0",
        "::",
        "::1",
        "fe80::1",
        "fe80::1%eth0",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:a9fe:a9fe",
        "64:ff9b::7f00:1",
        "ff02::1",
        "2002:7f00:1::",
        "::127.0.0.1",
        "2001:0:0:0:0:0:80ff:fffe",
        "168.63.129.16",
        "192.0.0.192",
        "255.255.255.255",
        "224.0.0.1",
        "localhost",
        "",
        "1.2.3",
    ],
)
def test_refused(address: str) -> None:
    assert why_refused(address)


@pytest.mark.parametrize("address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "172.32.0.1"])
def test_allowed(address: str) -> None:
    assert why_refused(address) is None


@given(v4)
@example(IPv4Address("192.88.99.1"))
def test_an_address_is_judged_the_same_inside_an_ipv6_address(inner: IPv4Address) -> None:
    number = int(inner)
    forms = [
        IPv6Address(0xFFFF << 32 | number),
        IPv6Address(int(IPv6Address("64:ff9b::")) | number),
        IPv6Address(int(IPv6Address("2002::")) | number << 80),
        IPv6Address(int(IPv6Address("2001::")) | number ^ 0xFFFFFFFF),
    ]
    plain = why_refused(str(inner))
    for form in forms:
        assert (why_refused(str(form)) is None) is (plain is None), form


@given(v4 | st.integers(0, 2**128 - 1).map(IPv6Address))
def test_nothing_that_python_calls_private_is_allowed(address: IPv4Address | IPv6Address) -> None:
    if why_refused(str(address)) is None:
        assert not (address.is_loopback)
        assert not (address.is_link_local)
        assert not (address.is_multicast)
        assert not (address.is_unspecified)
        assert not address.is_private or address in ip_network("2001::/23") or address.version == 6


def test_what_is_allowed_by_setting() -> None:
    allowed = (ip_network("10.0.0.0/8"),)
    assert why_refused("10.1.2.3", allowed) is None
    assert why_refused("::ffff:10.1.2.3", allowed) is None
    assert why_refused("127.0.0.1", allowed)
    assert why_refused("fd00::1", allowed)


def test_networks_of_settings() -> None:
    assert network("10.0.0.1/8") == ip_network("10.0.0.0/8")
    assert network("127.0.0.1") == ip_network(ip_address("127.0.0.1"))
    assert network("internal") is None
