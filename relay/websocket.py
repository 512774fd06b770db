"""libp2p's byte stream inside WebSocket messages: the way to a relay for who may use nothing but HTTPS.

Sources: RFC 6455, and libp2p's `/ws` and `/wss` addresses: binary messages whose boundaries mean nothing,
carrying what a TCP connection would (multistream-select, Noise, Yamux). Rules kept here:

1. A message is handed on as it arrives: its claimed size is never allocated, and none is too large.
2. A ping goes out after PING_SECONDS without a byte from the peer, since proxies close what looks idle;
   after MAX_UNANSWERED_PINGS of them without a byte the connection counts as dead.
3. Only binary messages belong here; text, and frames that break the RFC, end the connection.
"""

from __future__ import annotations

import ssl
from pathlib import Path

import trio
from wsproto import ConnectionType, WSConnection
from wsproto.connection import ConnectionState
from wsproto.events import (
    AcceptConnection,
    BytesMessage,
    CloseConnection,
    Event,
    Ping,
    RejectConnection,
    RejectData,
    Request,
    TextMessage,
)
from wsproto.frame_protocol import CloseReason
from wsproto.utilities import LocalProtocolError, RemoteProtocolError

from routing.control_address import ControlAddress
from routing.errors import LocalError, PeerError
from routing.libp2p.host import ControlHost

# nginx closes a WebSocket after 60 s without a byte, other proxies and CDNs after 30 to 100.
PING_SECONDS = 20.0
# A minute of silence although asked three times: nobody is there.
MAX_UNANSWERED_PINGS = 3
# TCP, TLS and the HTTP upgrade take four round trips, on a bad line with losses some seconds.
HANDSHAKE_SECONDS = 15.0
# A goodbye goes out at once or not at all: the peer may have stopped reading.
_CLOSE_SECONDS = 1.0
_READ_BYTES = 64 * 1024


class WebSocketError(PeerError):
    """The other end is no WebSocket that carries libp2p, or broke the protocol."""


class WebSocketStream(trio.abc.Stream):
    """A trio stream over an open WebSocket. One task reads, one task writes.

    Attributes:
        remote: the IP address of the other end: the caller, or the server (or proxy) that was dialed.
    """

    def __init__(self, transport: trio.abc.Stream, protocol: WSConnection, remote: str) -> None:
        self.remote = remote
        self._transport = transport
        self._protocol = protocol
        self._arrived = bytearray()
        self._ended = False
        self._send_lock = trio.Lock()
        # An answer to a ping that came while a message was being sent; the newest ping only needs one.
        self._pong = b""

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes as one message.

        Raises:
            trio.BrokenResourceError: the connection broke or ended.
            trio.ClosedResourceError: it was closed here.
        """
        async with self._send_lock:
            frame = self._frame(BytesMessage(bytes(data)))
            pong, self._pong = self._pong, b""
            await self._transport.send_all(pong + frame)

    async def wait_send_all_might_not_block(self) -> None:
        async with self._send_lock:
            await self._transport.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        """Bytes that have arrived; b"" at a clean end.

        Raises:
            trio.BrokenResourceError: the connection broke, or the peer broke the protocol.
            trio.ClosedResourceError: it was closed here.
        """
        while True:
            # what came together with the handshake is in the protocol already
            if not self._ended:
                await self._handle_events()
            if self._arrived:
                count = len(self._arrived) if max_bytes is None else min(max_bytes, len(self._arrived))
                taken = bytes(self._arrived[:count])
                del self._arrived[:count]
                return taken
            if self._ended:
                return b""
            data = await self._receive_or_ping()
            try:
                self._protocol.receive_data(data or None)
            except LocalProtocolError as error:
                raise trio.ClosedResourceError("WebSocket closed") from error

    async def aclose(self) -> None:
        """Say goodbye if there is room for it, and close."""
        try:
            with trio.move_on_after(_CLOSE_SECONDS):
                async with self._send_lock:
                    if self._protocol.state in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
                        goodbye = self._protocol.send(CloseConnection(CloseReason.NORMAL_CLOSURE))
                        await self._transport.send_all(goodbye)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        finally:
            await self._transport.aclose()

    async def _receive_or_ping(self) -> bytes:
        for unanswered in range(MAX_UNANSWERED_PINGS + 1):
            with trio.move_on_after(PING_SECONDS):
                return bytes(await self._transport.receive_some(_READ_BYTES))
            if unanswered < MAX_UNANSWERED_PINGS:
                await self._send_control(self._frame(Ping()))
        raise trio.BrokenResourceError(
            f"silent for {(MAX_UNANSWERED_PINGS + 1) * PING_SECONDS:.0f} s although pinged"
        )

    async def _handle_events(self) -> None:
        for event in self._protocol.events():
            if isinstance(event, BytesMessage):
                self._arrived += event.data
            elif isinstance(event, Ping):
                await self._send_control(self._frame(event.response()))
            elif isinstance(event, CloseConnection):
                self._ended = True
                if self._protocol.state is ConnectionState.OPEN:  # wsproto's word, not the peer's
                    raise trio.BrokenResourceError(f"broken WebSocket frame: {event.reason}")
                if event.code == CloseReason.ABNORMAL_CLOSURE:
                    raise trio.BrokenResourceError("the WebSocket's connection ended without a goodbye")
            elif isinstance(event, TextMessage):
                self._ended = True
                raise trio.BrokenResourceError("a text message on a WebSocket that carries libp2p")

    async def _send_control(self, frame: bytes) -> None:
        # Never wait for a message that is being sent: its receiver may be waiting for us to read.
        try:
            self._send_lock.acquire_nowait()
        except trio.WouldBlock:
            self._pong = frame
            return
        try:
            await self._transport.send_all(frame)
        finally:
            self._send_lock.release()

    def _frame(self, event: Event) -> bytes:
        try:
            return self._protocol.send(event)
        except LocalProtocolError:
            if self._ended:
                raise trio.BrokenResourceError("the peer has closed the WebSocket") from None
            raise trio.ClosedResourceError("WebSocket closed") from None


async def next_handshake_event(transport: trio.abc.Stream, protocol: WSConnection) -> Event:
    """Read until the HTTP part of a WebSocket's beginning says something.

    Raises:
        RemoteProtocolError: what came is not HTTP, or no WebSocket upgrade.
        WebSocketError: the peer hung up.
    """
    while True:
        for event in protocol.events():
            return event
        data = bytes(await transport.receive_some(_READ_BYTES))
        if not data:
            raise WebSocketError("hung up during the WebSocket handshake")
        protocol.receive_data(data)


def client_tls(ca_file: Path | None = None) -> ssl.SSLContext:
    """The TLS settings of a dialer: the system's certificate authorities, or those of one file alone.

    Raises:
        LocalError: the file can't be read or holds no certificate.
    """
    try:
        context = ssl.create_default_context(cafile=ca_file)
    except (OSError, ssl.SSLError) as error:
        why = "not in PEM form" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise LocalError(f"certificate file {ca_file} can't be used: {why}") from None
    # some CDNs answer an HTTP/2 connection, which has no upgrade, unless asked for 1.1
    context.set_alpn_protocols(["http/1.1"])
    return context


async def open_websocket(host: str, port: int, *, tls: ssl.SSLContext | None) -> WebSocketStream:
    """Dial a WebSocket listener, or the proxy in front of it.

    Args:
        host: a name or an IP address; a name is what TLS asks the server to prove and what HTTP's Host says.
        tls: from `client_tls` for `/wss`, None for `/ws`.

    Raises:
        WebSocketError: nobody answers, the certificate is not trusted, or the answer is not a WebSocket.
    """
    bracketed = f"[{host}]" if ":" in host else host
    default_port = 443 if tls else 80
    where = f"{'wss' if tls else 'ws'}://{bracketed}:{port}"
    transport: trio.abc.Stream | None = None
    try:
        with trio.fail_after(HANDSHAKE_SECONDS):
            socket = transport = await trio.open_tcp_stream(host, port)
            remote = str(socket.socket.getpeername()[0])
            if tls is not None:
                transport = trio.SSLStream(transport, tls, server_hostname=host, https_compatible=True)
                await transport.do_handshake()
            protocol = WSConnection(ConnectionType.CLIENT)
            authority = bracketed if port == default_port else f"{bracketed}:{port}"
            await transport.send_all(protocol.send(Request(host=authority, target="/")))
            event = await next_handshake_event(transport, protocol)
            if isinstance(event, AcceptConnection):
                stream, transport = WebSocketStream(transport, protocol, remote), None
                return stream
            raise _no_websocket(where, event)
    except trio.TooSlowError:
        raise WebSocketError(f"{where} did not answer within {HANDSHAKE_SECONDS:.0f} s", peer=where) from None
    except RemoteProtocolError:
        raise WebSocketError(f"{where} does not speak WebSocket: check host and port", peer=where) from None
    except WebSocketError as error:
        raise WebSocketError(f"{where}: {error}", peer=where) from None
    except (OSError, trio.BrokenResourceError) as error:
        raise WebSocketError(f"{where} can't be reached: {_why(error)}", peer=where) from None
    finally:
        if transport is not None:
            await trio.aclose_forcefully(transport)


def _no_websocket(where: str, event: Event) -> WebSocketError:
    if isinstance(event, RejectConnection):
        hint = (
            "the proxy is there but the relay behind it is not"
            if event.status_code in (502, 503, 504)
            else ""
        )
        return WebSocketError(f"answered HTTP {event.status_code}" + (f": {hint}" if hint else ""))
    assert not isinstance(event, RejectData)
    return WebSocketError("does not speak WebSocket")


def _why(error: BaseException) -> str:
    cause: BaseException | None = error
    # trio tries all addresses of a name and groups what went wrong; the first says it best
    while cause is not None and (cause.__cause__ is not None or isinstance(cause, BaseExceptionGroup)):
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({cause.verify_message}): give the file of its authority"
    if isinstance(cause, OSError):
        return (cause.strerror or str(cause)).lower()
    return "the connection broke"


async def connect(
    host: ControlHost, address: ControlAddress, *, timeout: float, ca_file: Path | None = None
) -> None:
    """Connect a control host to a peer at any kind of control address: TCP, `/ws` or `/wss`.

    Args:
        ca_file: the certificate authorities to trust for `/wss` in place of the system's.

    Raises:
        LocalError: the address names no peer, or the file can't be used.
        PeerError: nobody answers in `timeout` seconds, or not the peer that was asked for.
    """
    if address.transport == "tcp":
        await host.connect(address, timeout=timeout)
        return
    if address.peer_id is None:
        raise LocalError(f"{address} names no peer: write it with /p2p/PEER-ID at the end")
    if host.is_connected(address.peer_id):
        return
    tls = client_tls(ca_file) if address.transport == "wss" else None
    began = trio.current_time()
    stream = await open_websocket(address.host, address.port, tls=tls)
    remaining = max(1.0, timeout - (trio.current_time() - began))
    await host.connect_over(stream, address.peer_id, remote=stream.remote, timeout=remaining)
