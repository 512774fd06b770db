"""What this node knows of how to reach each peer, gathered from config, adverts, LAN and memory."""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from routing.adverts import AdvertTable
from routing.control_address import ControlAddress
from routing.dial_limits import networks_of, reachable_from
from routing.errors import LocalError
from routing.identity import PeerId
from routing.multiaddr import PeerAddress
from routing.routes import Standing
from routing.wire.advert import Advert

T = TypeVar("T")

MAX_REMEMBERED = 512
"""As many as the file holds (routing.remembered). Beyond it newcomers are not remembered here."""

MAX_ON_LAN = 64
"""As many as are believed to be announced at one time (routing.lan_peers); but announcements end, and anybody
on the network can make new ones for ever."""


@dataclass(frozen=True)
class Candidate:
    """A peer and where it may be.

    Attributes:
        quic: addresses to dial over UDP, most trusted first.
        control: its TCP and WebSocket addresses.
        relays: relays that hold a reservation for it.
        advertised: what it says comes from its own advert, not from a config or from memory.
        near: addresses on a network that both share.
    """

    peer_id: PeerId
    standing: Standing = field(default_factory=Standing)
    quic: tuple[PeerAddress, ...] = ()
    control: tuple[ControlAddress, ...] = ()
    relays: tuple[ControlAddress, ...] = ()
    advertised: bool = False
    near: tuple[PeerAddress, ...] = ()

    @property
    def on_this_machine(self) -> bool:
        """Whether the network that both share is the loopback one."""
        return any(ipaddress.ip_address(each.host).is_loopback for each in self.near)


class Candidates:
    """Candidates by peer id.

    Args:
        table: the adverts.
        own_hosts: the IP addresses this machine has, and those others see it at.
    """

    def __init__(self, table: AdvertTable, own_hosts: Callable[[], Iterable[str]]) -> None:
        self._table = table
        self._own_hosts = own_hosts
        self._configured: dict[PeerId, list[PeerAddress | ControlAddress]] = {}
        self._lan: dict[PeerId, tuple[PeerAddress, ...]] = {}
        self._remembered: dict[PeerId, Advert] = {}

    def configure(self, addresses: Iterable[PeerAddress | ControlAddress]) -> None:
        """Addresses from the config; each names its peer."""
        for address in addresses:
            assert address.peer_id is not None
            self._configured.setdefault(address.peer_id, []).append(address)

    def found_on_lan(self, peer_id: PeerId, addresses: Sequence[PeerAddress]) -> None:
        """A peer that mDNS has told of. Of too many the one told of longest ago is forgotten."""
        self._lan.pop(peer_id, None)
        if len(self._lan) >= MAX_ON_LAN:
            del self._lan[next(iter(self._lan))]
        self._lan[peer_id] = tuple(addresses)

    def remember(self, adverts: Iterable[Advert]) -> None:
        """Adverts of peers known before. Their addresses may still be right; nothing else of them is used."""
        for advert in adverts:
            key = PeerId(advert.peer_id)
            if key in self._remembered or len(self._remembered) < MAX_REMEMBERED:
                self._remembered[key] = advert

    @property
    def configured(self) -> set[PeerId]:
        return set(self._configured)

    @property
    def configured_for_quic(self) -> set[PeerId]:
        """Those of them that are panal nodes for sure."""
        return {
            peer_id
            for peer_id, addresses in self._configured.items()
            if any(isinstance(each, PeerAddress) for each in addresses)
        }

    @property
    def remembered(self) -> list[PeerId]:
        """The best to try first."""
        return list(self._remembered)

    @property
    def on_lan(self) -> set[PeerId]:
        return set(self._lan)

    def find(self, peer_id: str) -> Candidate | None:
        """All that is known of a peer; None if nothing is."""
        key = PeerId(peer_id)
        configured = self._configured.get(key, [])
        lan = self._lan.get(key, ())
        row = self._table.get(peer_id)
        advert = row.advert if row is not None else self._remembered.get(key)
        if advert is None and not configured and not lan:
            return None
        quic = [each for each in configured if isinstance(each, PeerAddress)]
        control = [each for each in configured if isinstance(each, ControlAddress)]
        # whoever leaves the ports as they are listens for TCP where it listens for UDP
        control += [ControlAddress.of(each.host, each.port, key) for each in quic]
        near = list(lan)
        standing = Standing()
        relays: list[ControlAddress] = []
        if advert is not None:
            told = [PeerAddress.parse(f"{text}/p2p/{key}") for text in advert.addresses]
            near += self._shared(told)
            networks = networks_of(self._own_hosts())
            quic += [
                each
                for each in told
                if (row is None or _is_outer(each.host) or advert.reach != "public")
                and reachable_from(networks, each.host)
            ]
            control += _parsed((f"{text}/p2p/{key}" for text in advert.control), networks)
            relays = _parsed(advert.relays, networks)
            if row is not None:
                standing = Standing(advert.reach, advert.mapping, advert.filtering, advert.udp)
        return Candidate(
            key,
            standing,
            _unique(quic),
            _unique(control),
            _unique(relays),
            row is not None,
            _unique(near),
        )

    def label(self, peer_id: str) -> str:
        """How a peer is called in texts: by its configured address, else by its id."""
        addresses = self._configured.get(PeerId(peer_id), [])
        return str(addresses[0]) if addresses else peer_id

    def _shared(self, told: Sequence[PeerAddress]) -> list[PeerAddress]:
        """The inner addresses of a peer on the same network: those of a subnet that this machine is in.

        One private network looks like another, so that alone proves nothing. But a dial to the wrong
        neighbour ends in the handshake, and costs less than a relay.
        """
        own = {_subnet(host) for host in self._own_hosts() if not _is_outer(host)}
        return [each for each in told if not _is_outer(each.host) and _subnet(each.host) in own]


def _is_outer(host: str) -> bool:
    """Whether an address means the same everywhere. Ranges for tests count as such: laboratories use them."""
    address = ipaddress.ip_address(host)
    return not any(address in network for network in _INNER if network.version == address.version)


_INNER = [
    ipaddress.ip_network(text)
    for text in (
        "10.0.0.0/8",
        "172.16.0.0/12",
        "192.168.0.0/16",
        "100.64.0.0/10",
        "169.254.0.0/16",
        "127.0.0.0/8",
        "fc00::/7",
        "fe80::/10",
        "::1/128",
    )
]


def _subnet(host: str) -> str:
    """The network an inner address is taken to be in: a household's /24, an IPv6 /64, this machine."""
    address = ipaddress.ip_address(host)
    if address.is_loopback:
        return "loopback"
    return str(ipaddress.ip_network((host, 24 if address.version == 4 else 64), strict=False))


def _parsed(texts: Iterable[str], networks: frozenset[str]) -> list[ControlAddress]:
    """What adverts name, as far as it may be dialed from these networks."""
    found = []
    for text in texts:
        try:
            address = ControlAddress.parse(text)
        except LocalError:
            continue  # a transport that a later version speaks
        if reachable_from(networks, address.host):
            found.append(address)
    return found


def _unique(items: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys(items))
