"""Where this node is: what its machine says, what others have seen, and what of it goes into its advert."""

from __future__ import annotations

import ipaddress
import math
import time
from collections.abc import Callable, Sequence

from node.config import RelayConfig
from node.config.own_address import dialable
from node.swarm.announcing import Places
from node.swarm.control import Control
from relay.prober import ReachProber, own_host
from relay.reachability import Reach
from relay.targets import plain_host
from routing.control_address import ControlAddress
from routing.multiaddr import ListenAddress
from routing.quic.endpoint import Endpoint

_NOWHERE = ("", "0.0.0.0", "::")

HOSTS_SECONDS = 1.0
"""Between looks at this machine's addresses: they are asked for with each peer that is looked at."""

MAX_BOOTSTRAPS = 16
"""Configured hosts for which the system is asked from which of this machine's addresses packets go there."""


class Whereabouts:
    """A node's own addresses, asked for anew each time: machines change networks.

    Args:
        control: the control plane; None where the config has switched it off.
        bootstraps: IP addresses that the config names. On a machine of several networks the way to them need
            not be the way to everywhere else.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        prober: ReachProber,
        relay: RelayConfig,
        control: Callable[[], Control | None],
        bootstraps: Sequence[str] = (),
    ) -> None:
        self._endpoint = endpoint
        self._prober = prober
        self._relay = relay
        self._control = control
        self._bootstraps = list(dict.fromkeys(bootstraps))[:MAX_BOOTSTRAPS]
        self._machine: list[str] = []
        self._looked = -math.inf

    @property
    def inner(self) -> ListenAddress:
        """The address of this machine that others on its network most likely reach."""
        return dialable(ListenAddress(*self._endpoint.local_address))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the node."""
        return plain_host(self._endpoint.local_address[0]) in ("127.0.0.1", "::1")

    @property
    def reach(self) -> tuple[Reach, str]:
        """How others reach this node, and why, for people.

        To the evidence loopback is a network like any other; nobody else is on it.
        """
        if self.is_loopback:
            return Reach.PRIVATE, f"it listens on {self.inner.host}, where only this machine reaches it"
        return self._prober.reachability.reach, self._prober.reachability.reason

    @property
    def is_translated(self) -> bool:
        """Whether others see this node at addresses that this machine does not have."""
        outer = {host for host, _ in self._prober.reachability.addresses}
        return any(own_host(self._endpoint, host) != host for host in outer)

    def hosts(self) -> list[str]:
        """The IP addresses at which this node is seen, or could be."""
        now = time.monotonic()  # answers ask for their routes on the decoding thread
        if now - self._looked >= HOSTS_SECONDS:
            self._looked = now
            leaving = [own_host(self._endpoint, host) for host in self._bootstraps]
            self._machine = [self.inner.host, *(host for host in leaving if host not in _NOWHERE)]
        return [*(host for host, _ in self._prober.candidates()), *self._machine]

    def takes_dials(self) -> bool:
        """Whether strangers can probably dial this node over TCP."""
        control, reach = self._control(), self._prober.reachability.reach
        if control is None:
            return False
        # while nobody has told: who relays was set up to be dialed, who is relayed thinks it cannot be
        asserted = control.service is not None or not control.reserved
        return reach == "public" or (reach == "unknown" and asserted)

    def places(self) -> Places:
        """What goes into the advert; the control plane tells its peers the same."""
        outer, inner = self._prober.reachability.addresses, self.inner
        addresses = [str(ListenAddress(host, port)) for host, port in outer] + [str(inner)]
        control = self._control()
        if control is None:
            return Places(list(dict.fromkeys(addresses)), [], [], False)
        taking = self._control_places(control, [host for host, _ in outer] + [inner.host])
        control.host.announce(tuple(map(ControlAddress.parse, taking)))
        return Places(
            list(dict.fromkeys(addresses)),
            taking,
            [str(each) for each in control.reserved],
            control.service is not None,
        )

    def relay_addresses(self) -> list[str]:
        """Where this node takes connections as a relay, its peer id included; empty if it is none."""
        control = self._control()
        if control is None or control.service is None:
            return []
        places = self._control_places(control, [self.inner.host])
        return [f"{place}/p2p/{control.host.peer_id}" for place in places]

    def _control_places(self, control: Control, hosts: list[str]) -> list[str]:
        ports = [int(text.rpartition("/")[2]) for text in control.host.local_addresses]
        found = [str(ControlAddress.of(host, port)) for host in hosts for port in ports]
        found += [str(each.with_peer(None)) for each in self._relay.announce]
        return list(dict.fromkeys(found))


def is_ip(host: str) -> bool:
    """Whether a host is an address and not a name."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def is_narrower(narrow: tuple[str, int], wide: tuple[str, int] | None) -> bool:
    """Whether one of two places to listen is one address of the other, which is all of this machine."""
    if wide is None or narrow[1] != wide[1]:
        return False
    host, everywhere = ipaddress.ip_address(narrow[0]), ipaddress.ip_address(wide[0])
    return everywhere.is_unspecified and host != everywhere and host.version == everywhere.version
