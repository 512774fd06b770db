"""The node's one UDP socket: large buffers, many datagrams a system call, errors that are only loss.

On Linux, GSO sends a run of equal datagrams in one call (`UDP_SEGMENT`) and GRO receives one
(`UDP_GRO`), see udp(7); elsewhere, and where the kernel refuses, one datagram a call.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import sys
from collections import deque
from collections.abc import Sequence

import trio

from routing.errors import LocalError
from routing.quic.core import Address, Datagram

Received = tuple[bytes, int, Address]
"""Payload, segment size (0: one datagram), sender."""

# A burst of a full window from several peers must survive until the next wake-up.
SOCKET_BUFFER_BYTES = 8 << 20
# What an unprivileged process may usually ask for without the kernel cutting it silently to less.
_UNPRIVILEGED_BUFFER_BYTES = 4 << 20

# Buffers read in one wake-up before other tasks get their turn: with GRO up to 256 KiB of payload, one and a
# half milliseconds. Four times as many carry no more, and one peer's bulk would hold up everybody's calls.
_GRO_READS = 4
_PLAIN_READS = 64
_READ_BYTES = 65536

# The kernel takes 64 segments (UDP_MAX_SEGMENTS) and one IP packet's worth of bytes in a call.
_GSO_SEGMENTS = 64
_GSO_BYTES = 65000

# While the socket can't take more, this many datagrams wait (6 MB); what comes then is lost, as on
# any full queue, and QUIC repairs it.
_MAX_WAITING = 4096

_SOL_UDP = 17
_UDP_SEGMENT = 103
_UDP_GRO = 104
_IP_MTU_DISCOVER = 10
_IPV6_MTU_DISCOVER = 23
_PMTUDISC_DONT = 0
_PMTUDISC_DO = 2
_SO_SNDBUFFORCE = 32
_SO_RCVBUFFORCE = 33

# A firewall's or the routing table's no. The datagram is lost; the connection lives or times out.
_LOSS = frozenset(
    {
        errno.EPERM,
        errno.EACCES,
        errno.ENETUNREACH,
        errno.EHOSTUNREACH,
        errno.ENETDOWN,
        errno.EHOSTDOWN,
        errno.ECONNREFUSED,
        errno.EADDRNOTAVAIL,
        errno.ENOBUFS,
        errno.EINVAL,
        errno.EBADF,
    }
)

_LINUX = sys.platform == "linux"


class UdpSocket:
    """A bound, non-blocking UDP socket.

    Attributes:
        local_address: where it is bound, port filled in.
    """

    def __init__(self, host: str, port: int) -> None:
        """Raises LocalError if the address can't be bound."""
        self._ipv6 = ":" in host
        self.socket = socket.socket(socket.AF_INET6 if self._ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
        try:
            if self._ipv6:
                self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
            self.socket.bind((host, port))
        except (OSError, OverflowError) as error:
            self.socket.close()
            raise LocalError(_bind_problem(host, port, error)) from None
        self.socket.setblocking(False)
        self.local_address: Address = self.socket.getsockname()[:2]
        self._set_buffers()
        self._may_fragment(False)
        self._gso = _LINUX and self._try_option(_UDP_SEGMENT, 0)
        self._gro = _LINUX and self._try_option(_UDP_GRO, 1)
        self._waiting: deque[Datagram] = deque()
        self._has_waiting = trio.Event()
        self.lost = 0

    def close(self) -> None:
        self._waiting.clear()
        self.socket.close()

    def reachable(self, host: str) -> str:
        """The form of a host this socket can send to.

        Raises:
            LocalError: an IPv6 address, but the socket is IPv4 only.
        """
        if ":" in host:
            if not self._ipv6:
                raise LocalError(
                    f"can't dial {host}: this node listens on IPv4 only, listen on '::' for both"
                )
            return host
        return f"::ffff:{host}" if self._ipv6 else host

    async def wait_readable(self) -> None:
        await trio.lowlevel.wait_readable(self.socket.fileno())

    def receive(self) -> list[Received]:
        """Everything that has arrived, up to what one wake-up should handle."""
        received: list[Received] = []
        try:
            if self._gro:
                receive = self.socket.recvmsg
                for _ in range(_GRO_READS):
                    data, ancillary, _, sender = receive(_READ_BYTES, 64)
                    segment = int.from_bytes(ancillary[0][2][:2], sys.byteorder) if ancillary else 0
                    received.append((data, segment if segment < len(data) else 0, sender[:2]))
            else:
                for _ in range(_PLAIN_READS):
                    data, sender = self.socket.recvfrom(_READ_BYTES)
                    received.append((data, 0, sender[:2]))
        except BlockingIOError:
            pass
        except OSError as error:
            # an ICMP error that the kernel reports on this socket: it belongs to some peer, not to us
            if error.errno not in _LOSS and error.errno != errno.ECONNRESET:
                raise
        return received

    def send(self, datagrams: Sequence[Datagram]) -> int:
        """Send, or queue until the socket can take more; returns the bytes of all of them.

        Never waits, never fails for one peer's sake.
        """
        sizes = [len(datagram[0]) for datagram in datagrams]
        if self._waiting:
            self._queue(datagrams)
            return sum(sizes)
        index, total = 0, len(datagrams)
        while index < total:
            run = _run_length(datagrams, sizes, index) if self._gso else 1
            try:
                self._send_run(datagrams, index, run)
            except BlockingIOError:
                self._queue(datagrams[index:])
                break
            except OSError as error:
                if run > 1 and error.errno in (errno.EIO, errno.EINVAL, errno.EMSGSIZE):
                    # no checksum offload, or a path narrower than the segments: without GSO from here
                    self._gso = False
                    continue
                if error.errno == errno.EMSGSIZE:
                    # A narrow path (a tunnel). This datagram is lost; from here IP may fragment.
                    self._may_fragment(True)
                elif error.errno not in _LOSS:
                    raise
                self.lost += run
            index += run
        return sum(sizes)

    async def send_waiting(self) -> None:
        """Task: sends what was queued, as soon as the socket takes it."""
        while True:
            await self._has_waiting.wait()
            await trio.lowlevel.wait_writable(self.socket.fileno())
            datagrams = list(self._waiting)
            self._waiting.clear()
            self._has_waiting = trio.Event()
            self.send(datagrams)

    def _queue(self, datagrams: Sequence[Datagram]) -> None:
        room = max(0, _MAX_WAITING - len(self._waiting))
        self._waiting.extend(datagrams[:room])
        self.lost += max(0, len(datagrams) - room)
        self._has_waiting.set()

    def _send_run(self, datagrams: Sequence[Datagram], start: int, run: int) -> None:
        data, address = datagrams[start][:2]
        if run == 1:
            self.socket.sendto(data, address)
            return
        segment = [(_SOL_UDP, _UDP_SEGMENT, struct.pack("=H", len(data)))]
        self.socket.sendmsg([each[0] for each in datagrams[start : start + run]], segment, 0, address)

    def _try_option(self, option: int, value: int) -> bool:
        try:
            self.socket.setsockopt(_SOL_UDP, option, value)
        except OSError:
            return False
        return True

    def _set_buffers(self) -> None:
        for force, plain in ((_SO_SNDBUFFORCE, socket.SO_SNDBUF), (_SO_RCVBUFFORCE, socket.SO_RCVBUF)):
            if _LINUX:
                try:
                    self.socket.setsockopt(socket.SOL_SOCKET, force, SOCKET_BUFFER_BYTES)
                    continue
                except PermissionError:
                    pass
            with contextlib.suppress(OSError):  # smaller buffers only cost speed
                self.socket.setsockopt(socket.SOL_SOCKET, plain, _UNPRIVILEGED_BUFFER_BYTES)

    def _may_fragment(self, allowed: bool) -> None:
        if not _LINUX:
            return
        mode = _PMTUDISC_DONT if allowed else _PMTUDISC_DO
        with contextlib.suppress(OSError):  # a hint to the kernel
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, mode)
        if self._ipv6:
            with contextlib.suppress(OSError):
                self.socket.setsockopt(socket.IPPROTO_IPV6, _IPV6_MTU_DISCOVER, mode)


def _run_length(datagrams: Sequence[Datagram], sizes: Sequence[int], start: int) -> int:
    """How many datagrams from `start` on one GSO call takes.

    They have one address and one size; the last may be smaller.
    """
    size, address = sizes[start], datagrams[start][1]
    end = min(len(sizes), start + min(_GSO_SEGMENTS, _GSO_BYTES // size))
    index = start + 1
    while index < end and sizes[index] == size and datagrams[index][1] == address:
        index += 1
    if index < end and sizes[index] < size and datagrams[index][1] == address:
        index += 1
    return index - start


def _bind_problem(host: str, port: int, error: Exception) -> str:
    where = f"UDP {host} port {port}"
    number = error.errno if isinstance(error, OSError) else None
    if number == errno.EADDRINUSE:
        return f"{where} is in use by another program or node: stop it or choose another port"
    if number in (errno.EACCES, errno.EPERM):
        return f"{where} may not be used by this user: choose a port above 1023"
    if number == errno.EADDRNOTAVAIL:
        return f"{where} can't be used: no interface of this machine has that address"
    return f"{where} can't be used: {error}"
