"""A relay's WebSocket door: alone, or behind a reverse proxy or CDN that ends TLS for it.

Rules kept here:

1. The caller's address is its socket's. Only if the socket belongs to a trusted proxy is it the last
   address in X-Forwarded-For that is not a trusted proxy's too; what stands before it is the caller's
   own claim.
2. Upgrades under way are bounded, in all and for each address; open WebSockets by who handles them
   (`ControlHost.serve_stream` counts them with its other connections, by the caller's address).
3. Who asks for a web page gets HTTP's answer, so that a health check of a proxy sees a living server.
"""

from __future__ import annotations

import ipaddress
import ssl
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.events import AcceptConnection, RejectConnection, Request
from wsproto.utilities import RemoteProtocolError

from relay.websocket import HANDSHAKE_SECONDS, WebSocketError, WebSocketStream, next_handshake_event
from routing.errors import LocalError, PeerError
from routing.libp2p.inbound_limits import BURST_PER_IP, PER_SECOND_PER_IP, origin
from routing.rates import Buckets

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Upgrades that are not done: each costs a socket and a TLS handshake before anybody is known.
MAX_HANDSHAKES = 64
# Of one socket's address, trusted proxies excepted: all the world comes through them.
MAX_HANDSHAKES_PER_IP = 16
# A request passes a CDN, a load balancer and a proxy; a longer list is somebody's play.
_MAX_FORWARDED = 16


def parse_proxies(texts: Sequence[str]) -> tuple[Network, ...]:
    """The config's trusted proxies: addresses or networks ("127.0.0.1", "10.0.0.0/8").

    Raises:
        LocalError: names the bad one.
    """
    networks = []
    for text in texts:
        try:
            networks.append(ipaddress.ip_network(text))
        except ValueError as error:
            raise LocalError(f"trusted proxy {text!r} is no address and no network: {error}") from None
    return tuple(networks)


def caller_address(socket_address: str, forwarded_for: str, trusted: Sequence[Network]) -> str:
    """Where a request comes from, as far as it can be known.

    Args:
        socket_address: the IP address at the other end of the socket.
        forwarded_for: X-Forwarded-For, all headers of that name joined by commas; "" if there is none.
        trusted: proxies that are believed about who called them.
    """
    address = _parse_ip(socket_address)
    if address is None:
        return socket_address
    hops = [hop.strip() for hop in forwarded_for.split(",")[-_MAX_FORWARDED:]] if forwarded_for else []
    while hops and any(address in network for network in trusted):
        claimed = _parse_ip(hops.pop())
        if claimed is None:
            break
        address = claimed
    return str(address)


def _parse_ip(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    if text.startswith("["):  # [2001:db8::1]:4711
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:  # 192.0.2.1:4711
        text = text.partition(":")[0]
    try:
        address = ipaddress.ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def server_tls(certificate: Path, key: Path) -> ssl.SSLContext:
    """The TLS settings of a listener that stands alone: PEM files, the chain and its key.

    Raises:
        LocalError: a file is missing or the two don't fit.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        why = "not in PEM form" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise LocalError(f"certificate {certificate} with key {key} can't be used: {why}") from None
    context.set_alpn_protocols(["http/1.1"])
    return context


class WebSocketDoor:
    """Accepts WebSockets and hands each on as a byte stream with the caller's address.

    Args:
        handle: called with the stream and the caller's IP address; the WebSocket is closed when it returns.
        trusted_proxies: from `parse_proxies`.
        tls: from `server_tls`; None for plain `/ws`, which is what a proxy in front of us speaks.
    """

    def __init__(
        self,
        handle: Callable[[trio.abc.Stream, str], Awaitable[None]],
        *,
        trusted_proxies: Sequence[Network] = (),
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._handle = handle
        self._trusted = tuple(trusted_proxies)
        self._tls = tls
        self._handshakes: Counter[str] = Counter()
        self._pace_of = Buckets(BURST_PER_IP, PER_SECOND_PER_IP)

    async def serve(
        self, host: str, port: int, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Listen until cancelled; `task_status` gets the port, which the system chooses if `port` is 0.

        Raises:
            LocalError: the address can't be listened on.
        """
        try:
            listeners = await trio.open_tcp_listeners(port, host=host)
        except OSError as error:
            why = error.strerror or str(error)
            raise LocalError(f"relay WebSocket can't listen on {host} port {port}: {why}") from None
        task_status.started(listeners[0].socket.getsockname()[1])
        await trio.serve_listeners(self._accept, listeners)

    async def _accept(self, socket: trio.SocketStream) -> None:
        try:
            socket_address = str(socket.socket.getpeername()[0])
        except OSError:  # gone already
            await trio.aclose_forcefully(socket)
            return
        key = origin(socket_address)
        if not self._has_room_for_handshake(key, socket_address):
            await trio.aclose_forcefully(socket)
            return
        self._handshakes[key] += 1
        try:
            stream = await self._shake_hands(socket, socket_address)
        finally:
            self._handshakes[key] -= 1
            self._handshakes = +self._handshakes  # drops the keys at 0, which every stranger would leave
        if stream is None:
            await trio.aclose_forcefully(socket)
            return
        try:
            await self._handle(stream, stream.remote)
        except (PeerError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await trio.aclose_forcefully(stream)

    def _has_room_for_handshake(self, key: str, socket_address: str) -> bool:
        if self._handshakes.total() >= MAX_HANDSHAKES:
            return False
        if self._handshakes[key] < MAX_HANDSHAKES_PER_IP and self._pace_of.take(key, trio.current_time()):
            return True
        address = _parse_ip(socket_address)
        return address is not None and any(address in network for network in self._trusted)

    async def _shake_hands(self, socket: trio.SocketStream, socket_address: str) -> WebSocketStream | None:
        """The open WebSocket, or None if none comes of it."""
        transport: trio.abc.Stream = socket
        protocol = WSConnection(ConnectionType.SERVER)
        try:
            with trio.fail_after(HANDSHAKE_SECONDS):
                if self._tls is not None:
                    transport = trio.SSLStream(socket, self._tls, server_side=True, https_compatible=True)
                    await transport.do_handshake()
                try:
                    event = await next_handshake_event(transport, protocol)
                except RemoteProtocolError as error:
                    if isinstance(error.event_hint, RejectConnection):
                        await transport.send_all(protocol.send(error.event_hint))
                    return None
                if not isinstance(event, Request):
                    return None
                caller = caller_address(socket_address, _forwarded_for(event), self._trusted)
                await transport.send_all(protocol.send(AcceptConnection()))
                return WebSocketStream(transport, protocol, caller)
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError, WebSocketError):
            return None


def _forwarded_for(request: Request) -> str:
    values = [value for name, value in request.extra_headers if name.lower() == b"x-forwarded-for"]
    return b",".join(values).decode("ascii", errors="replace")
