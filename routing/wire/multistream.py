"""multistream-select 1.0 on one stream, without I/O: which protocol does this stream speak?

Source: multiformats/multistream-select. Every line is an unsigned varint length, the text and a
newline that the length counts. Rules kept here:

1. Both sides begin with `/multistream/1.0.0`.
2. The dialer names a protocol; the listener repeats it (agreed) or answers `na`.
3. The dialer is optimistic: header, protocol and its first message leave together, so agreeing
   costs no round trip. What follows the agreement is left untouched in `trailing_data`.
4. `ls` asks a listener for its protocols; it answers with one line that holds one line for each.
5. A peer gets MAX_LINE_BYTES a line and MAX_ATTEMPTS lines, then it is refused.
"""

from __future__ import annotations

from collections.abc import Collection

from routing.errors import PeerError

HEADER = "/multistream/1.0.0"
NOT_AVAILABLE = "na"

# Protocol ids are under 100 bytes; other implementations allow 1024. Bounds what an undecided
# stream can make us keep.
MAX_LINE_BYTES = 1024
# A dialer that knows several versions of a protocol tries a handful; more is a probe of us.
MAX_ATTEMPTS = 16
# A length up to MAX_LINE_BYTES fits in two varint bytes.
_MAX_VARINT_BYTES = 2


class NegotiationError(PeerError):
    """The peer does not follow multistream-select, or names nothing both sides speak."""


class ProtocolRefused(NegotiationError):
    """The peer follows the rules but does not speak the protocol that was asked for."""


def encode_line(text: str) -> bytes:
    """One line: varint length (newline included), text, newline."""
    return _encode_block(text.encode())


def _encode_block(content: bytes) -> bytes:
    size = len(content) + 1
    prefix = bytearray()
    while size >= 0x80:
        prefix.append(size & 0x7F | 0x80)
        size >>= 7
    prefix.append(size)
    return bytes(prefix) + content + b"\n"


class _LineReader:
    """Splits arriving bytes into lines, holding no more than one line's worth."""

    def __init__(self) -> None:
        self.buffer = bytearray()

    def next_line(self) -> str | None:
        """The next whole line without its newline, or None if more bytes are needed."""
        size, digits = self._peek_size()
        if size is None or len(self.buffer) < digits + size:
            return None
        line = bytes(self.buffer[digits : digits + size])
        del self.buffer[: digits + size]
        if not line.endswith(b"\n"):
            raise NegotiationError("multistream line does not end with a newline")
        try:
            return line[:-1].decode("ascii")
        except UnicodeDecodeError:
            raise NegotiationError("multistream line is not ASCII text") from None

    def _peek_size(self) -> tuple[int | None, int]:
        size = 0
        for position in range(_MAX_VARINT_BYTES):
            if position == len(self.buffer):
                return None, 0
            byte = self.buffer[position]
            size |= (byte & 0x7F) << (7 * position)
            if byte < 0x80:
                if byte == 0 and position > 0:
                    raise NegotiationError("multistream line length is not written in its shortest form")
                if not 1 <= size <= MAX_LINE_BYTES:
                    raise NegotiationError(
                        f"multistream line of {size} bytes, allowed are 1 to {MAX_LINE_BYTES}"
                    )
                return size, position + 1
        raise NegotiationError(f"multistream line longer than {MAX_LINE_BYTES} bytes")


class Dialer:
    """The side that opened the stream.

    Attributes:
        agreed: the protocol once the peer has confirmed it, else None.
        trailing_data: what came after the agreement, the protocol's own bytes.
    """

    def __init__(self, protocol: str) -> None:
        if len(encode_line(protocol)) > MAX_LINE_BYTES:
            raise ValueError(f"protocol name of {len(protocol)} characters is too long")
        self._protocol = protocol
        self._reader = _LineReader()
        self._header_seen = False
        self.agreed: str | None = None

    def opening(self) -> bytes:
        """What to send first, together with the first message."""
        return encode_line(HEADER) + encode_line(self._protocol)

    @property
    def trailing_data(self) -> bytes:
        return bytes(self._reader.buffer)

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the peer until `agreed` is set.

        Raises:
            ProtocolRefused: the peer answered `na`.
            NegotiationError: anything but the two lines that must come.
        """
        self._reader.buffer += data
        while self.agreed is None:
            line = self._reader.next_line()
            if line is None:
                return
            if not self._header_seen:
                if line != HEADER:
                    raise NegotiationError(f"expected {HEADER!r} first, the peer sent {line[:60]!r}")
                self._header_seen = True
            elif line == self._protocol:
                self.agreed = line
            elif line == NOT_AVAILABLE:
                raise ProtocolRefused(f"the peer does not speak {self._protocol}")
            else:
                raise NegotiationError(f"asked for {self._protocol}, the peer agreed to {line[:60]!r}")


class Listener:
    """The side that was called.

    Attributes:
        agreed: the protocol once the peer has named one of ours, else None.
        trailing_data: what came after the agreement, the protocol's own bytes.
    """

    def __init__(self, protocols: Collection[str]) -> None:
        self._protocols = protocols
        self._reader = _LineReader()
        self._header_seen = False
        self._attempts = 0
        self._to_send = b""
        self.agreed: str | None = None

    @property
    def trailing_data(self) -> bytes:
        return bytes(self._reader.buffer)

    def receive_data(self, data: bytes) -> None:
        """Take bytes from the peer until `agreed` is set; `data_to_send` has the answer.

        Raises:
            NegotiationError: malformed line, wrong header, or too many attempts. An optimistic dialer's
                message after our `na` looks like that too, so what was answered before still goes out.
        """
        self._reader.buffer += data
        while self.agreed is None:
            line = self._reader.next_line()
            if line is None:
                return
            self._to_send += self._answer(line)

    def data_to_send(self) -> bytes:
        """What to answer; each byte is given once."""
        answer, self._to_send = self._to_send, b""
        return answer

    def _answer(self, line: str) -> bytes:
        if not self._header_seen:
            if line != HEADER:
                raise NegotiationError(f"expected {HEADER!r} first, the peer sent {line[:60]!r}")
            self._header_seen = True
            return encode_line(HEADER)
        self._attempts += 1
        if self._attempts > MAX_ATTEMPTS:
            raise NegotiationError(f"no protocol agreed after {MAX_ATTEMPTS} attempts")
        if line == "ls":
            return _encode_block(b"".join(encode_line(name) for name in sorted(self._protocols)))
        if line in self._protocols:
            self.agreed = line
            return encode_line(line)
        return encode_line(NOT_AVAILABLE)
