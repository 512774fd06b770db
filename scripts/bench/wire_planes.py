"""Would lossless compression of payloads by byte planes pay? Ratio, speed, and the link rate it pays below.

Hidden states of a trained model are captured while it reads text: what the experts get (x), each expert's
weighted vector (rows), and what they add up to (sum). They are put into bytes by a codec as in a
message, then compressed and decompressed again:

    zlib         the payload as it lies, level 1
    planes       byte k of every value together, then level 1
    huffman      the same planes, no search for repetitions (Z_HUFFMAN_ONLY)
    top          the plane with sign and exponent alone (int8: the values) is compressed so

f32 has four planes, f16 two; int8 has its scales' two and the values. Where a model is narrower than the rows
wanted, a row is made of several of its rows side by side: as many bytes, each as hard to guess.

A link of rate r carries the saved bytes in 8 * saved / r seconds. Compressing pays where that is longer than
compressing and decompressing take: the break-even rate. Both ends of a call wait for both.
"""

from __future__ import annotations

import importlib
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from node.decode.backbone import Backbone
from node.engine.context import Row
from node.engine.expert_holes import ExpertInputs
from node.engine.gate import LocalExperts
from node.engine.kernels import Kernels
from node.engine.library import Library
from node.engine.tokenizer import Tokenizer
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import StoredModel
from node.verify.comparison import held_whole
from routing.dispatch.combine import add_slots
from routing.errors import LocalError
from routing.wire.codecs import Codec, Float32Array, blocks_per_row, encode

TOKENS = 496  # of one pass, within the context of 512 that the small models were trained with
PASSES = 4  # each of other tokens, from an empty cache
SECONDS = 0.15  # of each measurement at least; the fastest run counts


@dataclass(frozen=True)
class States:
    """What one layer's experts got and gave in one pass, f32 [rows, width]."""

    x: Float32Array
    rows: Float32Array
    sum: Float32Array


@dataclass(frozen=True)
class Squeeze:
    """One way to compress one payload.

    Attributes:
        model, kind, codec, rows, width, way: what.
        n_bytes, squeezed: before and after.
        compress, decompress: seconds.
    """

    model: str
    kind: str
    codec: str
    rows: int
    width: int
    way: str
    n_bytes: int
    squeezed: int
    compress: float
    decompress: float

    @property
    def share(self) -> float:
        """Of the bytes that are left."""
        return self.squeezed / self.n_bytes

    @property
    def break_even(self) -> float:
        """Mbit/s below which it pays; 0 where nothing is saved."""
        saved = max(0, self.n_bytes - self.squeezed)
        return 8e-6 * saved / (self.compress + self.decompress)

    def gain(self, mbit: float) -> float:
        """Seconds won on a link of this rate; negative: lost."""
        return 8e-6 * (self.n_bytes - self.squeezed) / mbit - self.compress - self.decompress

    def gain_share(self, mbit: float) -> float:
        """The same as a share of the seconds that the payload as it is takes on the link."""
        return self.gain(mbit) * mbit / (8e-6 * self.n_bytes)


def capture(library: Library, stored: StoredModel, path: Path, text: str) -> list[States]:
    """States of every layer in several passes over the text's first tokens.

    Raises:
        LocalError: the text is too short.
    """
    kernels = Kernels(library, threads=1)
    try:
        with MappedModel(open_model(path)) as mapped:
            port = _Capturing(kernels, held_whole(mapped, stored.manifest))
            backbone = Backbone(library, stored, port, n_ctx=512, n_ubatch=512, threads=1)
            try:
                tokens = Tokenizer(backbone.model).encode(text)
                if len(tokens) < PASSES * TOKENS:
                    raise LocalError(f"the text has {len(tokens)} tokens; {PASSES * TOKENS} are needed")
                for number in range(PASSES):
                    backbone.context.clear()
                    piece = tokens[number * TOKENS : (number + 1) * TOKENS]
                    backbone.compute([Row(token, i) for i, token in enumerate(piece)])
            finally:
                backbone.close()
            port.held.clear()
            return port.states
    finally:
        kernels.close()


class _Capturing(LocalExperts):
    def __init__(self, kernels: Kernels, held: dict[Any, Any]) -> None:
        super().__init__(kernels, held)
        self.kernels = kernels
        self.held = held
        self.states: list[States] = []

    def leave(self, inputs: ExpertInputs) -> Float32Array:
        n_tokens, n_used = inputs.ids.shape
        weights = None if inputs.weights is None else inputs.weights.reshape(-1)
        rows = self.kernels.run(
            self.held[inputs.call.layer, inputs.call.group],
            inputs.x,
            np.full(n_tokens, n_used, np.uint16),
            inputs.ids.reshape(-1),
            weights,
        )
        total = add_slots(rows.reshape(n_tokens, n_used, -1))
        self.states.append(States(inputs.x, rows, total))
        return total


def payload(states: list[States], kind: str, rows: int, width: int) -> Float32Array:
    """[rows, width] of real values, from the middle of the text: its beginning has little context.

    Raises:
        LocalError: more than were captured.
    """
    captured = [getattr(each, kind).reshape(-1) for each in states]
    middle = len(captured) // 2
    values = np.concatenate(captured[middle:] + captured[:middle])
    if rows * width > values.size:
        raise LocalError(f"{rows} rows of {width} values wanted, {values.size} values of {kind} captured")
    return np.ascontiguousarray(values[: rows * width].reshape(rows, width))


# --- planes ---


def split(codec: Codec, data: bytes, rows: int, width: int) -> list[npt.NDArray[np.uint8]]:
    """The payload's planes, that with sign and exponent (int8: the values) last."""
    raw = np.frombuffer(data, np.uint8)
    if codec is Codec.INT8:
        scales = 2 * rows * blocks_per_row(width)
        return [*_planes(raw[:scales], 2), raw[scales:]]
    return _planes(raw, 4 if codec is Codec.F32 else 2)


def join(codec: Codec, planes: list[npt.NDArray[np.uint8]]) -> bytes:
    """What `split` took apart."""
    if codec is Codec.INT8:
        return _joined(planes[:2]) + planes[2].tobytes()
    return _joined(planes)


def _planes(raw: npt.NDArray[np.uint8], count: int) -> list[npt.NDArray[np.uint8]]:
    return [np.ascontiguousarray(raw[number::count]) for number in range(count)]


def _joined(planes: list[npt.NDArray[np.uint8]]) -> bytes:
    whole = np.empty((planes[0].size, len(planes)), np.uint8)
    for number, plane in enumerate(planes):
        whole[:, number] = plane
    return whole.tobytes()


@dataclass(frozen=True)
class Way:
    """How pieces are compressed; `pieces` says which of the planes are, the others stay as they are."""

    compress: Callable[[Any], bytes]
    decompress: Callable[[Any], bytes]
    pieces: str  # "payload", "planes" or "top"


def _huffman(data: Any) -> bytes:
    packer = zlib.compressobj(1, zlib.DEFLATED, -15, 9, zlib.Z_HUFFMAN_ONLY)
    return packer.compress(data) + packer.flush()


def _unhuffman(data: Any) -> bytes:
    return zlib.decompress(data, -15)


def ways() -> dict[str, Way]:
    """What is compared; zstd and lz4 only where they happen to be installed."""
    found = {
        "zlib": Way(lambda data: zlib.compress(data, 1), zlib.decompress, "payload"),
        "planes": Way(lambda data: zlib.compress(data, 1), zlib.decompress, "planes"),
        "huffman": Way(_huffman, _unhuffman, "planes"),
        "top": Way(_huffman, _unhuffman, "top"),
    }
    try:
        zstd = importlib.import_module("zstandard")
        packer, unpacker = zstd.ZstdCompressor(level=1), zstd.ZstdDecompressor()
        found["zstd planes"] = Way(packer.compress, unpacker.decompress, "planes")
        found["zstd top"] = Way(packer.compress, unpacker.decompress, "top")
    except ImportError:
        pass
    try:
        lz4 = importlib.import_module("lz4.frame")
        found["lz4 planes"] = Way(lz4.compress, lz4.decompress, "planes")
    except ImportError:
        pass
    return found


def squeeze(way: Way, codec: Codec, data: bytes, rows: int, width: int) -> tuple[int, float, float]:
    """Bytes afterwards, seconds to compress and to decompress; both directions give the bytes again."""

    def pack() -> list[Any]:
        if way.pieces == "payload":
            return [way.compress(data)]
        planes = split(codec, data, rows, width)
        first = len(planes) - 1 if way.pieces == "top" else 0
        return [*planes[:first], *(way.compress(plane.data) for plane in planes[first:])]

    def unpack(packed: list[Any]) -> bytes:
        if way.pieces == "payload":
            return way.decompress(packed[0])
        first = len(packed) - 1 if way.pieces == "top" else 0
        opened = [np.frombuffer(way.decompress(piece), np.uint8) for piece in packed[first:]]
        return join(codec, [*packed[:first], *opened])

    packed = pack()
    if unpack(packed) != data:
        raise AssertionError("not lossless")
    size = sum(memoryview(piece).nbytes for piece in packed)
    return size, _fastest(pack), _fastest(lambda: unpack(packed))


def _fastest(work: Callable[[], object]) -> float:
    best, end = float("inf"), time.perf_counter() + SECONDS
    while True:
        begun = time.perf_counter()
        work()
        done = time.perf_counter()
        best = min(best, done - begun)
        if done > end:
            return best


def measure(model: str, states: list[States], sizes: list[tuple[int, int]]) -> list[Squeeze]:
    """Every kind, codec, size and way."""
    found = []
    for kind in ("x", "rows", "sum"):
        for codec in Codec:
            for rows, width in sizes:
                data = encode(codec, payload(states, kind, rows, width))
                for name, way in ways().items():
                    size, packing, unpacking = squeeze(way, codec, data, rows, width)
                    found.append(
                        Squeeze(
                            model,
                            kind,
                            codec.name.lower(),
                            rows,
                            width,
                            name,
                            len(data),
                            size,
                            packing,
                            unpacking,
                        )
                    )
    return found
