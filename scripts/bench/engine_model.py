"""Random MoE models of any size: the GGUF files that benchmarks run on.

    scripts/make_random_moe FILE [--arch ARCH] [--layers N] [--embd N] [--ff N] [--experts N] [--used N] ...

Without options it is Qwen3-30B-A3B with 8 of its 48 layers and a vocabulary of 4096: 3.2 GB. There is no
tokenizer. The same arguments always give the same bytes.

Quantising 5 billion weights would take minutes, so no tensor is quantised whole. For each type and row
length a pool of blocks is quantised by ggml from normally distributed weights (standard deviation
1/sqrt(row length), so that activations keep their size from layer to layer), and tensors are drawn
from their pool block by block. Every block is one that ggml made, no two experts are equal, and a
kernel cannot tell: it reads every byte of a tensor whatever stands there.
"""

from __future__ import annotations

import argparse
import ctypes as C
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from node.engine import library as llama
from node.engine.library import Library
from node.model.gguf.types import TYPE_BY_NAME, TensorType, ValueType, tensor_bytes
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import TensorToWrite, write_gguf
from routing.errors import LocalError

POOL_BLOCKS = 4096  # per type and row length: 0.6 MB of Q4_K, far more than one row has
PIECE_BLOCKS = 1 << 16  # drawn at a time: 9 MB of Q4_K
PLAIN_TYPES = {"F32": np.float32, "F16": np.float16}


@dataclass(frozen=True)
class Architecture:
    """What tells one of llama.cpp's Llama-like MoE graphs from another.

    Attributes:
        qk_norm: width of the norms of queries and keys: "head", "all" heads together, or "" for none.
        expert_width: the key that holds an expert's width.
    """

    qk_norm: str
    expert_width: str


ARCHITECTURES = {
    "qwen3moe": Architecture("head", "expert_feed_forward_length"),
    "olmoe": Architecture("all", "feed_forward_length"),
    "llama": Architecture("", "feed_forward_length"),
}


@dataclass(frozen=True)
class Shape:
    """A model to make. Widths are in values; types are ggml's names.

    Attributes:
        gate_type: of the experts' gate and up tensors; down_type: of their down tensors.
        trunk_type: of attention and embeddings; output_type: of the output matrix and of attention's values.
    """

    arch: str = "qwen3moe"
    layers: int = 8
    embd: int = 2048
    ff: int = 768
    experts: int = 128
    used: int = 8
    heads: int = 32
    kv_heads: int = 4
    head_size: int = 128
    vocab: int = 4096
    context: int = 32768
    gate_type: str = "Q4_K"
    down_type: str = "Q6_K"
    trunk_type: str = "Q4_K"
    output_type: str = "Q6_K"
    seed: int = 1

    def file_name(self) -> str:
        """A name that differs wherever the bytes differ."""
        types = "-".join((self.gate_type, self.down_type, self.trunk_type, self.output_type))
        return (
            f"{self.arch}-{self.layers}x{self.embd}-ff{self.ff}-{self.experts}e{self.used}"
            f"-{self.heads}h{self.kv_heads}x{self.head_size}-v{self.vocab}-c{self.context}-{types}-s{self.seed}.gguf"
        )


def make(library: Library, shape: Shape, target: Path) -> int:
    """Write the model and return its size in bytes.

    Raises:
        LocalError: the shape is none that llama.cpp or the types can hold, or the disk is too small.
    """
    if shape.arch not in ARCHITECTURES:
        raise LocalError(f"--arch {shape.arch}: choose one of {', '.join(ARCHITECTURES)}")
    if not 1 <= shape.used <= shape.experts:
        raise LocalError(f"--used {shape.used}: between 1 and the {shape.experts} experts")
    if shape.heads % shape.kv_heads:
        raise LocalError(f"--kv-heads {shape.kv_heads}: must divide the {shape.heads} heads")
    if ARCHITECTURES[shape.arch].qk_norm == "all" and not (
        shape.embd == shape.heads * shape.head_size == shape.kv_heads * shape.head_size
    ):
        raise LocalError(f"--arch {shape.arch}: queries and keys must be as wide as --embd {shape.embd}")
    source = _Weights(library, shape.seed)
    tensors = [
        source.tensor("token_embd.weight", shape.trunk_type, shape.embd, shape.vocab),
        source.norm("output_norm.weight", shape.embd),
        source.tensor("output.weight", shape.output_type, shape.embd, shape.vocab),
    ]
    for layer in range(shape.layers):
        tensors += _layer(source, shape, f"blk.{layer}.")
    return write_gguf(target, _metadata(shape), tensors)


def _layer(source: _Weights, shape: Shape, prefix: str) -> list[TensorToWrite]:
    queries, keys = shape.heads * shape.head_size, shape.kv_heads * shape.head_size
    experts, stack = f"{prefix}ffn_{{}}_exps.weight", shape.experts
    tensors = [
        source.norm(f"{prefix}attn_norm.weight", shape.embd),
        source.tensor(f"{prefix}attn_q.weight", shape.trunk_type, shape.embd, queries),
        source.tensor(f"{prefix}attn_k.weight", shape.trunk_type, shape.embd, keys),
        source.tensor(f"{prefix}attn_v.weight", shape.output_type, shape.embd, keys),
        source.tensor(f"{prefix}attn_output.weight", shape.trunk_type, queries, shape.embd),
        source.norm(f"{prefix}ffn_norm.weight", shape.embd),
        source.tensor(f"{prefix}ffn_gate_inp.weight", "F32", shape.embd, stack),
        source.tensor(experts.format("gate"), shape.gate_type, shape.embd, shape.ff, stack),
        source.tensor(experts.format("up"), shape.gate_type, shape.embd, shape.ff, stack),
        source.tensor(experts.format("down"), shape.down_type, shape.ff, shape.embd, stack),
    ]
    kind = ARCHITECTURES[shape.arch].qk_norm
    if kind:
        widths = (shape.head_size, shape.head_size) if kind == "head" else (queries, keys)
        tensors += [
            source.norm(f"{prefix}attn_q_norm.weight", widths[0]),
            source.norm(f"{prefix}attn_k_norm.weight", widths[1]),
        ]
    return tensors


def _metadata(shape: Shape) -> dict[str, GGUFValue]:
    numbers = {
        "block_count": shape.layers,
        "context_length": shape.context,
        "embedding_length": shape.embd,
        "feed_forward_length": shape.ff * shape.used,
        "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads,
        "attention.key_length": shape.head_size,
        "attention.value_length": shape.head_size,
        "rope.dimension_count": shape.head_size,
        "expert_count": shape.experts,
        "expert_used_count": shape.used,
        "vocab_size": shape.vocab,
    }
    numbers[ARCHITECTURES[shape.arch].expert_width] = shape.ff
    floats = {"rope.freq_base": 1e6, "attention.layer_norm_rms_epsilon": 1e-6}
    metadata = {
        "general.architecture": GGUFValue.string(shape.arch),
        "general.name": GGUFValue.string("random weights for benchmarks"),
        "tokenizer.ggml.model": GGUFValue.string("none"),
    }
    metadata |= {f"{shape.arch}.{key}": GGUFValue.uint32(value) for key, value in numbers.items()}
    metadata |= {f"{shape.arch}.{key}": GGUFValue(ValueType.FLOAT32, value) for key, value in floats.items()}
    return metadata


class _Weights:
    """Tensors by name, each from a generator of its own, so that order does not matter."""

    def __init__(self, library: Library, seed: int) -> None:
        self._library = library
        self._seed = seed
        self._pools: dict[tuple[str, int], npt.NDArray[np.uint8]] = {}

    def norm(self, name: str, width: int) -> TensorToWrite:
        values = 1 + 0.1 * self._rng(name).standard_normal(width, np.float32)
        return TensorToWrite(name, (width,), TYPE_BY_NAME["F32"], values.astype(np.float32).tobytes())

    def tensor(self, name: str, type_name: str, *shape: int) -> TensorToWrite:
        kind = TYPE_BY_NAME.get(type_name.upper())
        if kind is None:
            raise LocalError(f"{type_name}: no tensor type that GGUF knows")
        try:
            size = tensor_bytes(shape, kind)
        except ValueError as error:
            raise LocalError(f"{name}: {error}; choose another width or type") from None
        return TensorToWrite(name, shape, kind, self._drawn(name, kind, shape[0], size // kind.block_bytes))

    def _drawn(self, name: str, kind: TensorType, row: int, blocks: int) -> Iterator[memoryview]:
        rng = self._rng(name)
        pool = self._pool(kind, row)
        for start in range(0, blocks, PIECE_BLOCKS):
            chosen = rng.integers(0, len(pool), min(PIECE_BLOCKS, blocks - start), np.uint16)
            yield memoryview(pool[chosen]).cast("B")

    def _pool(self, kind: TensorType, row: int) -> npt.NDArray[np.uint8]:
        """[blocks, block_bytes] of weights that suit rows of this length."""
        pool = self._pools.get((kind.name, row))
        if pool is None:
            rng = self._rng(f"{kind.name} {row}")
            values = rng.standard_normal((POOL_BLOCKS, kind.block_size), np.float32) / np.float32(
                np.sqrt(row)
            )
            pool = self._pools[kind.name, row] = quantise(self._library, values, kind)
        return pool

    def _rng(self, name: str) -> np.random.Generator:
        return np.random.default_rng([self._seed, zlib.crc32(name.encode())])


def quantise(library: Library, values: npt.NDArray[np.float32], kind: TensorType) -> npt.NDArray[np.uint8]:
    """Rows [n, values of one block] as blocks [n, block_bytes], by ggml_quantize_chunk."""
    if kind.name in PLAIN_TYPES:
        return np.ascontiguousarray(values.astype(PLAIN_TYPES[kind.name])).view(np.uint8)
    values = np.ascontiguousarray(values, np.float32)
    blocks = np.empty((len(values), kind.block_bytes), np.uint8)
    importance = np.ones(values.shape[1], np.float32)  # some types refuse to be made without
    written = library.ggml_quantize_chunk(
        kind.id, _pointer(values), _pointer(blocks), 0, len(values), values.shape[1], _pointer(importance)
    )
    if written != blocks.nbytes:
        raise LocalError(f"ggml does not quantise to {kind.name}")
    return blocks


def _pointer(array: npt.NDArray[Any]) -> C.c_void_p:
    return C.c_void_p(array.ctypes.data)


# Options of a shape, and what they mean.
SIZES = {
    "layers": "blocks, each with routed experts",
    "embd": "width of a hidden state",
    "ff": "width of an expert",
    "experts": "experts of a layer",
    "used": "experts a token is sent to",
    "heads": "heads of attention",
    "kv-heads": "heads of keys and values",
    "head-size": "width of a head",
    "vocab": "tokens",
    "context": "tokens it claims to have been trained with",
    "seed": "another seed, other weights",
}


def add_shape_options(parser: argparse.ArgumentParser) -> None:
    """`--arch`, `--layers` and the rest of a Shape; read back by `shape_of`."""
    group = parser.add_argument_group("the model's shape")
    plain = Shape()
    group.add_argument("--arch", choices=tuple(ARCHITECTURES), default=plain.arch)
    for name, meaning in SIZES.items():
        default = getattr(plain, name.replace("-", "_"))
        group.add_argument(
            f"--{name}", type=positive, default=default, metavar="N", help=f"{meaning} ({default})"
        )
    defaults = [plain.gate_type, plain.down_type, plain.trunk_type, plain.output_type]
    group.add_argument(
        "--types",
        default=",".join(defaults),
        metavar="GATE,DOWN[,TRUNK[,OUTPUT]]",
        help=f"ggml types of the experts' gate and up, of their down, of the rest ({','.join(defaults)})",
    )


def shape_of(args: argparse.Namespace) -> Shape:
    """The Shape that was asked for."""
    given = [name.strip().upper() for name in args.types.split(",")]
    if not 2 <= len(given) <= 4:
        raise LocalError(f"--types {args.types}: two to four types, separated by commas")
    plain = Shape()
    types = given + [plain.trunk_type, plain.output_type][len(given) - 2 :]
    numbers = {name.replace("-", "_"): getattr(args, name.replace("-", "_")) for name in SIZES}
    return Shape(
        args.arch,
        **numbers,
        gate_type=types[0],
        down_type=types[1],
        trunk_type=types[2],
        output_type=types[3],
    )


def positive(text: str) -> int:
    """A command-line argument that counts something."""
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make_random_moe", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path)
    add_shape_options(parser)
    args = parser.parse_args(arguments)
    try:
        size = make(llama.load(), shape_of(args), args.file)
    except LocalError as error:
        print(f"make_random_moe: {error}", file=sys.stderr)
        return 2
    print(f"{args.file}: {size / 1e9:.2f} GB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
