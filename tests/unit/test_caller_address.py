"""Whose address a request through proxies counts for: the table, and what a caller may claim in vain."""

from __future__ import annotations

import pytest

from relay.websocket_listener import caller_address, parse_proxies
from routing.errors import LocalError

TRUSTED = parse_proxies(["127.0.0.1", "10.0.0.0/8", "2001:db8:cd::/48"])


@pytest.mark.parametrize(
    ("socket_address", "forwarded_for", "address"),
    [
        ("198.51.100.7", "", "198.51.100.7"),
        ("198.51.100.7", "203.0.113.9", "198.51.100.7"),  # not a trusted proxy: its word counts for nothing
        ("127.0.0.1", "", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9", "203.0.113.9"),
        ("127.0.0.1", "192.0.2.1, 203.0.113.9", "203.0.113.9"),  # the first is the caller's own claim
        ("127.0.0.1", "203.0.113.9, 10.1.2.3", "203.0.113.9"),  # a CDN before our proxy
        ("127.0.0.1", "192.0.2.1,203.0.113.9 ,10.1.2.3, 10.9.9.9", "203.0.113.9"),
        ("127.0.0.1", "10.1.2.3", "10.1.2.3"),  # our own network
        ("127.0.0.1", "garbage", "127.0.0.1"),
        ("127.0.0.1", "203.0.113.9, ,10.1.2.3", "10.1.2.3"),
        ("127.0.0.1", "203.0.113.9:4711", "203.0.113.9"),
        ("127.0.0.1", "[2001:db8::1]:4711", "2001:db8::1"),
        ("127.0.0.1", "2001:db8::1", "2001:db8::1"),
        ("::ffff:127.0.0.1", "203.0.113.9", "203.0.113.9"),  # a dual-stack socket
        ("2001:db8:cd::5", "203.0.113.9", "203.0.113.9"),
        ("fe80::1%eth0", "203.0.113.9", "fe80::1"),
        ("127.0.0.1", "203.0.113.9, " + "10.0.0.1, " * 40 + "10.0.0.1", "10.0.0.1"),  # too long to follow
    ],
)
def test_callers(socket_address: str, forwarded_for: str, address: str) -> None:
    assert caller_address(socket_address, forwarded_for, TRUSTED) == address


@pytest.mark.parametrize("text", ["localhost", "10.0.0.1/8", "", "300.1.1.1"])
def test_bad_proxies_are_named(text: str) -> None:
    with pytest.raises(LocalError, match="trusted proxy"):
        parse_proxies([text])
