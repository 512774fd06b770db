"""How large a message of `/panal/experts/1` may be: each number with its reason.

A receiver refuses a length above its limit before it allocates for it; a node may set lower limits
than these, and says so in its holdings (`max_rows`).
"""

from __future__ import annotations

from dataclasses import dataclass

FRAME_PREFIX_BYTES = 4
"""Length before each message on a stream, u32 big endian; counted in every figure of bytes on the wire."""

MAX_WIDTH = 65_536
"""Values in a hidden state. The widest model known has 18,432; four times that is room enough."""

MAX_ROWS = 16_384
"""Rows of x in a request: a ubatch of 2,048 tokens whose 8 slots each bring a row (weights before)."""

MAX_PAIRS = 65_536
"""(row, slot) pairs in a request: a ubatch of 2,048 tokens with 32 experts each. The most known is 22."""

MAX_REQUEST_BYTES = 64 * 2**20
"""What an expert server must be ready to hold for one caller: 2,048 rows of 8,192 values as f32."""

MAX_MESSAGE_BYTES = 256 * 2**20
"""What a backbone accepts at most: the rows of a 512-token ubatch, top-8, n_embd 16,384, as f32. It asked for
every byte of it, and gives the exact size of each reply (`experts.max_reply_bytes`) to the transport."""

MAX_EXPERT = 65_535
"""Experts and layers are u16 on the wire; the most known is 512 experts and 128 layers."""

MAX_MISSING = 1_024
"""Experts a refusal can name: twice the most a layer has. A server with more to say names the first ones."""

MAX_TEXT_BYTES = 240
"""A refusal's text is one line for a person."""


@dataclass(frozen=True)
class Limits:
    """What a receiver accepts in one message.

    Attributes:
        max_message_bytes: bytes of the message, without the frame's length.
        max_rows: rows of x, or vectors of y that are not pairs.
        max_pairs: (row, slot) pairs.
        max_width: n_in and n_out.
    """

    max_message_bytes: int = MAX_MESSAGE_BYTES
    max_rows: int = MAX_ROWS
    max_pairs: int = MAX_PAIRS
    max_width: int = MAX_WIDTH


DEFAULT_LIMITS = Limits()
SERVER_LIMITS = Limits(max_message_bytes=MAX_REQUEST_BYTES)
