"""Nodes of one local network find each other, with no config at all: mDNS by the `zeroconf` package.

zeroconf lives in asyncio, so that it gets a thread and a loop of its own; what it finds comes back into trio
through a bounded channel. Queries and answers go over IPv4 multicast; they carry addresses of both families.
Nothing that happens here ends the node: without a network that can multicast, one line says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import trio

from routing.identity import PeerId
from routing.lan_peers import (
    MAX_PEERS,
    SERVICE,
    Announcement,
    LanPeer,
    LanPeers,
    announced_properties,
    instance_name,
    is_local,
)
from routing.membership import Swarm

if TYPE_CHECKING:
    from zeroconf import ServiceStateChange, Zeroconf
    from zeroconf.asyncio import AsyncServiceInfo

log = logging.getLogger("panal.lan")

Found = Callable[[LanPeer], None]

RESCAN_SECONDS = 30.0  # laptops change networks: how often our own addresses are looked at
ROUND_SECONDS = 0.25  # announcements are gathered for so long before they are read
REQUEST_MS = 1000  # to wait for the records of a service that was only named
REQUESTS = 16  # such waits at once
MAX_PENDING = 256  # names to be looked at; four times the peers we take
CLOSE_SECONDS = 0.7  # to say goodbye to the network: three packets, 125 ms apart

# zeroconf bounds its cache, but keeps a timer for each name it ever saw. Past this many names the network is
# hostile or broken: everything is dropped, and begun anew after a pause.
MAX_NAMES = 4096
FLOOD_PAUSE = 60.0

MAX_SAID = 64  # lines at debug level in a session, one a name and verdict: a network can name thousands
MAX_SHOWN = 80  # characters of a name there


class LanDiscovery:
    """Announces this node on its local network and finds others of its swarm."""

    def __init__(
        self,
        swarm: Swarm,
        peer_id: PeerId,
        listen: tuple[str, int],
        on_found: Found,
        *,
        control_port: int = 0,
        announce: bool = True,
    ) -> None:
        """
        Args:
            listen: the QUIC plane's bound address (`Endpoint.local_address`); "0.0.0.0" and "::" announce
                all local addresses of this machine.
            on_found: called in trio's thread with each peer that is new or is announced at other addresses.
            control_port: TCP port of our control plane, 0 if there is none.
            announce: False only looks: a command that asks is not to be found.
        """
        self._swarm = swarm
        self._peer_id = peer_id
        self._host, self._port = listen
        self._control_port = control_port
        self._announces = announce
        self._on_found = on_found
        self._table = LanPeers(swarm, peer_id, ipv6=":" in self._host)
        self._pending: dict[str, None] = {}
        self._said: set[tuple[str, str]] = set()
        self._names = 0
        self._asking = 0
        self._warned = False
        self._stopping = False

    @property
    def peers(self) -> tuple[LanPeer, ...]:
        """Who is announced now."""
        return self._table.peers

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Announce and look until cancelled; ends within a second of it."""
        # Anybody on the network can make it log, with a traceback for each malformed packet.
        logging.getLogger("zeroconf").setLevel(logging.CRITICAL)
        send, receive = trio.open_memory_channel[LanPeer](2 * MAX_PEERS)
        token = trio.lowlevel.current_trio_token()

        def found(peer: LanPeer) -> None:
            token.run_sync_soon(_offer, send, peer)

        loop = asyncio.new_event_loop()
        work = loop.create_task(self._work(found))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run_loop, loop, work)
            try:
                task_status.started()
                async for peer in receive:
                    self._on_found(peer)
            finally:
                self._stopping = True
                loop.call_soon_threadsafe(work.cancel)

    # --- in the thread of asyncio ---

    async def _work(self, found: Found) -> None:
        while not self._stopping:
            pause = RESCAN_SECONDS
            self._pending.clear()
            self._table.clear()
            self._said.clear()
            self._names = 0
            try:
                pause = FLOOD_PAUSE if await self._session(found) else 0.0
            except (OSError, RuntimeError) as error:  # RuntimeError: zeroconf sees no interface it can use
                self._warn(f"no interface of this machine can multicast ({error})")
            except Exception:  # a task boundary: what a stranger sends must not end the node
                log.exception("LAN discovery failed, it begins anew in %g s", pause)
            if not self._stopping:
                await asyncio.sleep(pause)

    async def _session(self, found: Found) -> bool:
        """Work with the addresses there are now, until they change or (True) the network is flooded."""
        from zeroconf import IPVersion
        from zeroconf.asyncio import AsyncServiceBrowser, AsyncZeroconf

        interfaces, hosts = own = _own_addresses(self._host)
        if not interfaces:
            raise OSError("there is none")
        zeroconf = AsyncZeroconf(interfaces=interfaces, ip_version=IPVersion.V4Only)
        try:
            await zeroconf.zeroconf.async_wait_for_start()
            if not zeroconf.zeroconf.engine.senders:
                raise OSError(f"tried {', '.join(interfaces)}")
            if hosts and self._announces:
                await self._announce(zeroconf, hosts)
            AsyncServiceBrowser(zeroconf.zeroconf, SERVICE, handlers=[self._noticed])
            rescan = time.monotonic() + RESCAN_SECONDS
            async with asyncio.TaskGroup() as requests:
                while self._names <= MAX_NAMES:
                    await asyncio.sleep(ROUND_SECONDS)
                    self._look_at_pending(zeroconf.zeroconf, found, requests)
                    if time.monotonic() >= rescan:
                        rescan = time.monotonic() + RESCAN_SECONDS
                        if _own_addresses(self._host) != own:
                            return False
            self._warn(f"over {MAX_NAMES} services are announced here; a pause of {FLOOD_PAUSE:g} s")
            return True
        finally:
            with contextlib.suppress(TimeoutError):  # nobody needs to hear the goodbyes
                await asyncio.wait_for(zeroconf.async_close(), CLOSE_SECONDS)

    async def _announce(self, zeroconf: Any, hosts: Sequence[str]) -> None:
        from zeroconf.asyncio import AsyncServiceInfo

        service = AsyncServiceInfo(
            SERVICE,
            instance_name(self._peer_id),
            port=self._port,
            properties=announced_properties(self._swarm, self._control_port),
            server=f"panal-{self._peer_id[-16:]}.local.",
            parsed_addresses=list(hosts),
        )
        # "cooperating": without a search for others of our name, by which anybody could keep us silent
        await zeroconf.async_register_service(service, cooperating_responders=True)

    def _noticed(
        self, zeroconf: Zeroconf, service_type: str, name: str, state_change: ServiceStateChange
    ) -> None:
        """zeroconf's browser: a name came, changed or went."""
        from zeroconf import ServiceStateChange

        if state_change is ServiceStateChange.Removed:
            self._pending.pop(name, None)
            self._table.drop(name)
            return
        if state_change is ServiceStateChange.Added:
            self._names += 1
        reason = self._table.unwanted(name)
        if reason:
            self._say(name, f"ignored: {reason}")
        else:
            self._pending[name] = None
            if len(self._pending) > MAX_PENDING:  # the oldest goes: it had its time, the newest may be honest
                del self._pending[next(iter(self._pending))]

    def _look_at_pending(self, zeroconf: Zeroconf, found: Found, requests: asyncio.TaskGroup) -> None:
        """Read what was announced whole, which is the rule; ask the network for the rest, a few at a time."""
        from zeroconf.asyncio import AsyncServiceInfo

        now = time.monotonic()
        for name in [each for each in self._pending if not self._table.is_quiet(each, now)]:
            info = AsyncServiceInfo(SERVICE, name)
            if info.load_from_cache(zeroconf):
                self._take(info, found)
            elif self._asking < REQUESTS:
                self._asking += 1
                requests.create_task(self._ask(zeroconf, info, found))
            else:
                continue
            del self._pending[name]

    async def _ask(self, zeroconf: Zeroconf, info: AsyncServiceInfo, found: Found) -> None:
        try:
            if await info.async_request(zeroconf, REQUEST_MS):
                self._take(info, found)
            else:
                self._say(info.name, "ignored: it was named, but told nothing more when asked")
        finally:
            self._asking -= 1

    def _take(self, info: AsyncServiceInfo, found: Found) -> None:
        said = Announcement(info.name, info.port or 0, info.parsed_addresses(), info.properties)
        objection = self._table.objection(said)
        self._say(info.name, f"ignored: {objection}" if objection else f"heard at {', '.join(said.hosts)}")
        peer = self._table.take(said, time.monotonic())
        if peer is not None:
            log.info("found %s on this network at %s", peer.peer_id, peer.addresses[0])
            found(peer)

    def _say(self, name: str, what: str) -> None:
        """What came of an announcement, once a session."""
        if (name, what) in self._said or len(self._said) >= MAX_SAID or not log.isEnabledFor(logging.DEBUG):
            return
        self._said.add((name, what))
        # anybody on the network chooses these characters
        log.debug("announcement %s %s", ascii(name[:MAX_SHOWN]), what[: 4 * MAX_SHOWN])
        if len(self._said) == MAX_SAID:
            log.debug("further announcements are not told of")

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("LAN discovery is off: %s", why)


async def _run_loop(loop: asyncio.AbstractEventLoop, work: asyncio.Task[None]) -> None:
    """Run asyncio in a thread until its work was cancelled."""

    def run() -> None:
        asyncio.set_event_loop(loop)
        loop.set_exception_handler(lambda _, context: log.debug("zeroconf: %s", context.get("message")))
        with contextlib.suppress(asyncio.CancelledError):
            loop.run_until_complete(work)
        asyncio.set_event_loop(None)

    try:
        with trio.CancelScope(shield=True):  # it is told to end, and ends within CLOSE_SECONDS
            await trio.to_thread.run_sync(run, limiter=trio.CapacityLimiter(1))
    finally:
        loop.close()


def _offer(send: trio.MemorySendChannel[LanPeer], peer: LanPeer) -> None:
    try:
        send.send_nowait(peer)
    except (trio.WouldBlock, trio.BrokenResourceError):
        log.debug("nobody had time for %s", peer.peer_id)


def _own_addresses(host: str) -> tuple[Sequence[str], Sequence[str]]:
    """The IPv4 addresses whose interfaces to multicast on, and the addresses to announce.

    Loopback counts only where the node listens there, or there is nothing else: for nodes that share one
    machine without a network.
    """
    every = _every_address()
    anywhere = host in ("0.0.0.0", "::")
    loopback = all(map(_is_loopback, every)) if anywhere else _is_loopback(host)
    usable = [each for each in every if _is_loopback(each) == loopback]
    interfaces = [each for each in usable if ":" not in each and (anywhere or ":" in host or each == host)]
    announced = [each for each in usable if is_local(each) and (anywhere or each == host)]
    if host == "0.0.0.0":
        announced = [each for each in announced if ":" not in each]
    return sorted(interfaces), sorted(announced)


def _every_address() -> set[str]:
    """Of all interfaces of this machine."""
    import ifaddr

    return {
        ip.ip if isinstance(ip.ip, str) else ip.ip[0] for each in ifaddr.get_adapters() for ip in each.ips
    }


def is_off_every_network() -> bool:
    """Whether no interface of this machine but loopback has an address."""
    return all(map(_is_loopback, _every_address()))


def _is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback
