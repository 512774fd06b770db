"""Makes the zoo's GGUF files: random weights from seeds, one file for each entry of zoo.json.

    python -m tests.zoo.make_zoo FOLDER [NAME ...] [--experts f32|f16|q8_0]

zoo.json holds, for each architecture, the metadata and the tensors (names, shapes in ggml's order) that
llama.cpp b11549 asks for; the values are drawn here. "ARCH@VARIANT" is another configuration of an
architecture; an entry with "embed" is an encoder. All dimensions differ on purpose (n_embd 64, n_ff 96,
8 experts, 3 used, 3 layers), so that two of them confused cannot go unnoticed. The same name and
`experts` always give the same bytes; a file has 0.5 to 2.7 MB.
"""

from __future__ import annotations

import argparse
import json
import re
import zlib
from functools import cache
from pathlib import Path
from typing import Any, TypedDict

import gguf
import numpy as np
import numpy.typing as npt

EXPERT_TYPES = ("f32", "f16", "q8_0")

Values = npt.NDArray[np.float32] | npt.NDArray[np.int32]


class Entry(TypedDict, total=False):
    """One model of zoo.json.

    Keys:
        kv: metadata; keys without a prefix belong to the architecture.
        tensors: name -> shape, ggml's order (the innermost dimension first).
        embed: an encoder, run by llama_encode.
    """

    kv: dict[str, Any]
    tensors: dict[str, list[int]]
    embed: bool


_EXPERT_WEIGHT = re.compile(r"ffn_(gate|up|down|gate_up)_(ch)?exps\.weight$")
_SHARED_PREFIXES = ("general.", "tokenizer.")


@cache
def zoo() -> dict[str, Entry]:
    """All entries of zoo.json by name."""
    entries: dict[str, Entry] = json.loads(Path(__file__).with_name("zoo.json").read_text())
    return entries


def make(name: str, path: Path, experts: str = "f32") -> None:
    """Write one model.

    Args:
        name: an entry of zoo.json.
        path: the file to write.
        experts: type of the expert weights, one of EXPERT_TYPES; rows that are no multiple of its
            block stay f32. All else is f32.
    """
    entry = zoo()[name]
    architecture = name.split("@")[0]
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in {"general.name": f"zoo-{name}", **entry["kv"]}.items():
        _add_key(writer, key if key.startswith(_SHARED_PREFIXES) else f"{architecture}.{key}", value)
    wanted = gguf.GGMLQuantizationType[experts.upper()]
    block = gguf.GGML_QUANT_SIZES[wanted][0]
    for tensor, shape in entry["tensors"].items():
        values = _values(architecture, tensor, shape, entry["kv"])
        quantised = _EXPERT_WEIGHT.search(tensor) is not None and shape[0] % block == 0
        if not quantised or wanted == gguf.GGMLQuantizationType.F32:
            writer.add_tensor(tensor, values)
        elif wanted == gguf.GGMLQuantizationType.F16:
            writer.add_tensor(tensor, values.astype(np.float16))
        else:
            writer.add_tensor(tensor, gguf.quants.quantize(values, wanted), raw_dtype=wanted)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _values(architecture: str, tensor: str, shape: list[int], kv: dict[str, Any]) -> Values:
    """Values whose scale keeps activations near 1 and makes the router use all its experts."""
    rng = np.random.default_rng(zlib.crc32(f"{architecture}/{tensor}".encode()))
    dims = shape[::-1]
    base = re.sub(r"^blk\.\d+\.", "", tensor)

    def normal(std: float, mean: float = 0.0) -> Values:
        return (mean + std * rng.standard_normal(dims)).astype(np.float32)

    if "tid2eid" in base:  # deepseek4 looks expert ids up by token id
        picks = [rng.permutation(kv["expert_count"])[: shape[0]] for _ in range(dims[0])]
        return np.stack(picks).astype(np.int32)
    if base.endswith(".scale"):
        return (1 + 0.3 * rng.uniform(-1, 1, dims)).astype(np.float32)
    if "exp_probs_b" in base:
        return normal(0.2)
    if re.search(r"norm(_exps|_\d)?(\.weight)?$", base):
        return normal(0.1, 1.0)
    if base == "ssm_a":  # a decay: negative
        return (-rng.uniform(0.2, 1.0, dims)).astype(np.float32)
    if base == "ssm_d":
        return normal(0.1, 1.0)
    if re.search(r"hc_\w*(scale|base|inject)", base):
        return normal(0.3, 0.3)
    if base.endswith("bias") or base == "attn_sinks.weight" or len(shape) == 1:
        return normal(0.3)
    if "conv" in base:
        return normal(0.5)
    if base in ("token_embd.weight", "per_layer_token_embd.weight"):
        return normal(1.0)
    gain = 3.0 if base == "ffn_gate_inp.weight" else 1.5 if "exps" in base else 1.0
    return normal(gain / np.sqrt(shape[0]))


def _add_key(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    kinds = gguf.GGUFValueType
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        of = {bool: kinds.BOOL, int: kinds.UINT32}.get(type(value[0]), kinds.FLOAT32)
        writer.add_key_value(key, list(value), kinds.ARRAY, sub_type=of)


def main() -> None:
    """Make the named files, or all."""
    parser = argparse.ArgumentParser(description="Make the zoo's GGUF files.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    parser.add_argument("--experts", choices=EXPERT_TYPES, default="f32")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    for name in args.names or zoo():
        path = args.folder / f"{name}.{args.experts}.gguf"
        make(name, path, args.experts)
        print(path, path.stat().st_size)


if __name__ == "__main__":
    main()
