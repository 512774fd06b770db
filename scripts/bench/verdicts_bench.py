"""How far answers of other CPUs and false ones are off: what the limits of market/verdict.py come from.

    scripts/measure_verdicts --ggml FOLDER [--text FILE] [--tokens N] [--json] MODEL...

FOLDER is the `ggml` folder of a llama.cpp (that of the source package of llama-cpp-python, say). Its kernels
are built with cmake for SSE4.2 and for AVX-512, and compute the same rows as the pinned library does: the
experts of a trained model on hidden states of a text. Beside them stand lies: the rows times 1.01, those of
another row, and the same experts in a lower precision. For models whose experts are gate, up, SWIGLU, down.
"""

from __future__ import annotations

import argparse
import json
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from market.verdict import distances
from node.cli.table import format_table
from node.engine import library as llama
from node.engine.expert_holes import ExpertInputs
from node.engine.tokenizer import Tokenizer
from node.model.held import HeldExperts
from node.model.store import Store
from routing.errors import LocalError
from routing.wire.codecs import CODEC_NAMES, Codec, Float32Array, decode, encode
from scripts.bench.engine_model import positive
from tests.model_parts import ModelParts, WatchedPort, rows
from tests.other_kernels import requantised

ROLES = ("gate.weight", "up.weight", "down.weight")
OPTIONS = ("SSE42", "AVX", "AVX2", "BMI2", "FMA", "F16C", "AVX512", "AVX512_VNNI", "AVX512_VBMI")
CPUS = {"sse4.2": OPTIONS[:1], "avx512": OPTIONS}
"""ggml's options that are on."""

LOWER = ("Q6_K", "Q4_K")
CONTEXT, UBATCH = 448, 64
TEXT = Path(__file__).parents[2] / "docs" / "protocol.md"

Distances = tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]


def build(source: Path, folder: Path, cpu: str) -> Path:
    """A program that computes experts with ggml's kernels for a CPU."""
    made, program = folder / cpu, folder / cpu / "experts"
    options = [f"-DGGML_{name}={'ON' if name in CPUS[cpu] else 'OFF'}" for name in OPTIONS]
    plain = [
        "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=OFF", "-DGGML_OPENMP=OFF", "-DBUILD_SHARED_LIBS=ON",
        "-DGGML_BUILD_TESTS=OFF", "-DGGML_BUILD_EXAMPLES=OFF",
    ]  # fmt: skip
    libraries = ["-lggml", "-lggml-cpu", "-lggml-base", f"-Wl,-rpath,{made / 'src'}"]
    code = Path(__file__).with_name("verdicts_experts.cpp")
    for command in (
        ["cmake", "-S", source, "-B", made, *plain, *options],
        ["cmake", "--build", made, "--target", "ggml", "ggml-cpu", "ggml-base"],
        ["g++", "-O2", "-I", source / "include", code, "-o", program, "-L", made / "src", *libraries],
    ):
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
        if done.returncode:
            raise LocalError(f"{command[0]} failed for {cpu}: {done.stderr[-400:].strip()}")
    return program


def capture(model: ModelParts, text: str, tokens: int) -> list[ExpertInputs]:
    """The calls of a model that reads a text."""
    port = WatchedPort(model.local())
    with model.backbone(port, n_ctx=CONTEXT + UBATCH, n_ubatch=UBATCH) as backbone:
        known = Tokenizer(backbone.model).encode(text)[:tokens]
        for begin in range(0, len(known), CONTEXT):
            backbone.context.remove(0, 0)
            end = min(begin + CONTEXT, len(known))
            for start in range(begin, end, UBATCH):
                backbone.compute(rows(known[start : min(start + UBATCH, end)], start - begin))
    return port.calls


def write(path: Path, model: ModelParts, calls: Sequence[ExpertInputs]) -> None:
    """What the other program reads."""
    keys = list(model.held)
    with path.open("wb") as file:
        file.write(struct.pack("<i", len(keys)))
        for held in model.held.values():
            for role in ROLES:
                tensor = held.tensors[role]
                file.write(struct.pack("<i4q", tensor.type, *tensor.ne, tensor.data.nbytes))
                file.write(tensor.data.tobytes())
        file.write(struct.pack("<i", len(calls)))
        for call in calls:
            assert call.weights is not None
            layer = keys.index((call.call.layer, call.call.group))
            file.write(struct.pack("<4i", layer, *call.ids.shape, call.x.shape[1]))
            file.write(np.ascontiguousarray(call.x, np.float32).tobytes())
            file.write(np.ascontiguousarray(call.ids, np.int32).tobytes())
            file.write(np.ascontiguousarray(call.weights, np.float32).tobytes())


def measure(
    model: ModelParts, calls: Sequence[ExpertInputs], programs: dict[str, Path], folder: Path
) -> dict[tuple[str, str], list[Distances]]:
    """Distances of each row, by whose it is and by wire."""
    if any(set(held.tensors) != set(ROLES) for held in model.held.values()):
        raise LocalError(f"{model.path}: its experts are not gate, up and down alone")
    write(folder / "in", model, calls)
    others = {}
    for cpu, program in programs.items():
        subprocess.run([program, folder / "in", folder / "out"], check=True)
        others[cpu] = np.fromfile(folder / "out", np.float32)
    lower = {
        name: {key: requantised(model.library, held, name) for key, held in model.held.items()}
        for name in LOWER
    }

    def run(held: HeldExperts, call: ExpertInputs) -> Float32Array:
        counts = np.full(len(call.ids), call.ids.shape[1], np.uint16)
        assert call.weights is not None
        return model.kernels.run(held, call.x, counts, call.ids.reshape(-1), call.weights.reshape(-1))

    found: dict[tuple[str, str], list[Distances]] = defaultdict(list)
    place = 0
    for call in calls:
        key = call.call.layer, call.call.group
        ours = run(model.held[key], call)
        theirs = {cpu: flat[place : place + ours.size].reshape(ours.shape) for cpu, flat in others.items()}
        place += ours.size
        theirs |= {name: run(held[key], call) for name, held in lower.items()}
        theirs |= {"x 1.01": ours * np.float32(1.01), "stale": np.roll(ours, call.ids.shape[1], axis=0)}
        for wire, codec in CODEC_NAMES.items():
            for who, y in theirs.items():
                found[who, wire].append(distances(sent(codec, ours), sent(codec, y), codec))
    return found


def sent(codec: Codec, y: Float32Array) -> Float32Array:
    """What arrives of these rows."""
    return decode(codec, encode(codec, y), *y.shape)


def summary(model: str, found: dict[tuple[str, str], list[Distances]]) -> list[dict[str, Any]]:
    """The table's rows."""
    told = []
    for (who, wire), parts in found.items():
        row: dict[str, Any] = {"model": model, "whose": who, "wire": wire}
        for number, name in enumerate(("1 - cos", "length")):
            values = np.concatenate([part[number] for part in parts])
            row["rows"] = values.size
            row[f"{name}: least"] = float(values.min())
            row[f"{name}: median"] = float(np.median(values))
            row[f"{name}: 99.9 %"] = float(np.quantile(values, 0.999))
            row[f"{name}: most"] = float(values.max())
        told.append(row)
    return told


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("models", nargs="+", type=Path, metavar="MODEL", help="a trained GGUF")
    parser.add_argument("--ggml", type=Path, required=True, metavar="FOLDER", help="ggml's source")
    parser.add_argument("--text", type=Path, default=TEXT, metavar="FILE", help=f"default: {TEXT.name}")
    parser.add_argument("--tokens", type=positive, default=2000, metavar="N", help="read (default: 2000)")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    told: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        source = folder / "ggml"
        shutil.copytree(args.ggml, source)
        (source / "ggml.pc.in").touch()  # source packages leave it out
        programs = {cpu: build(source, folder, cpu) for cpu in CPUS}
        for path in args.models:
            model = ModelParts(llama.load(), Store(folder / path.stem), path)
            calls = capture(model, args.text.read_text(encoding="utf-8"), args.tokens)
            told += summary(path.stem, measure(model, calls, programs, folder))
            model.close()
    if args.json:
        print(json.dumps(told))
        return 0
    cells = [
        [f"{each:.1e}" if isinstance(each, float) else str(each) for each in row.values()] for row in told
    ]
    print(format_table(tuple(told[0]), cells))
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except LocalError as error:
        sys.exit(f"measure_verdicts: {error}")
