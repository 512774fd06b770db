"""Whom this node has sent anything to lately: an IP in here proves nothing about who else gets in.

A NAT or firewall lets in whom one has written to. Only what comes from an address that is *not* here shows
that strangers get in.
"""

from __future__ import annotations

from relay.targets import plain_host

CONTACT_SECONDS = 600.0
"""Longer than NATs and firewalls remember a UDP flow after its last packet (wanlab's and most: 5 minutes)."""

MAX_CONTACTS = 1024
"""Of a node with some hundred connections that also searches; the oldest go first."""


class Contacts:
    """Hosts and when they were last written to."""

    def __init__(self) -> None:
        self._hosts: dict[str, float] = {}

    def note(self, host: str, now: float) -> None:
        """Something was, or is about to be, sent there. What is no IP address is passed over."""
        host = plain_host(host)
        if not host:
            return
        self._hosts.pop(host, None)
        self._hosts[host] = now  # at the end: a dict keeps its order
        if len(self._hosts) > MAX_CONTACTS:
            del self._hosts[next(iter(self._hosts))]

    def has(self, host: str, now: float) -> bool:
        """Whether it was written to lately."""
        noted = self._hosts.get(plain_host(host))
        return noted is not None and now - noted < CONTACT_SECONDS

    def recent(self, now: float) -> list[str]:
        """Hosts written to lately, the latest first."""
        return [host for host, noted in reversed(self._hosts.items()) if now - noted < CONTACT_SECONDS]
