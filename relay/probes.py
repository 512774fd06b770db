"""Probe datagrams on the node's one UDP socket: who waits for which, and what is sent."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from relay.contacts import Contacts
from relay.reach_wire import ProbeKind, decode_probe, encode_probe, probe_digest
from relay.targets import Address, plain_host
from routing.errors import LocalError
from routing.quic.endpoint import Endpoint

OnProbe = Callable[[ProbeKind, Address], None]
"""Called with the kind and the sender, host in plain form; inside the socket's loop, so it must not wait."""


class Probes:
    """The probes of an endpoint. Those that nobody waits for are dropped without a word.

    Attributes:
        endpoint: whose socket they use.
        contacts: told of every probe sent.
    """

    def __init__(self, endpoint: Endpoint, contacts: Contacts) -> None:
        """Takes over `endpoint.on_probe`."""
        self.endpoint = endpoint
        self.contacts = contacts
        self._waiting: dict[tuple[ProbeKind, bytes], OnProbe] = {}
        endpoint.on_probe = self._take

    @contextmanager
    def expecting(self, nonce: bytes, *kinds: ProbeKind, then: OnProbe) -> Iterator[None]:
        """While this lasts, probes of these kinds with this nonce are handed to `then`."""
        keys = [(kind, probe_digest(nonce, kind)) for kind in kinds]
        self._waiting.update(dict.fromkeys(keys, then))
        try:
            yield
        finally:
            for key in keys:
                self._waiting.pop(key, None)

    def send(self, nonce: bytes, kind: ProbeKind, address: Address) -> bool:
        """Send one out of the endpoint's socket; False if the socket has no way to such an address."""
        self.contacts.note(address[0], self.endpoint.now())
        try:
            self.endpoint.send_probe(encode_probe(nonce, kind), address)
        except LocalError:
            return False
        return True

    def _take(self, data: bytes, sender: Address) -> None:
        probe = decode_probe(data)
        if probe is None:
            return
        then = self._waiting.get((probe.kind, probe.digest))
        if then is not None:
            then(probe.kind, (plain_host(sender[0]), sender[1]))
