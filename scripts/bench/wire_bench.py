"""What travels: bytes per token and layer, step by step, and whether compressing them would pay.

    scripts/bench_wire [--counts] [--planes] [--servers 1,4,8] [--tokens N] [--json] [shape options]
                       [--model FILE]... [--text FILE] [--all]

Counts (wire_counts): a random model, 3072 wide with 8 of 128 experts a token, over real servers; each step
beside the raw baseline, which sends every chosen expert the f32 row and gets an f32 row back, with nothing
around them. For stable servers hold whole runs of experts, else any. Messages are exact, whatever else
the machine does.

Planes (wire_planes): payloads of trained models squeezed by byte planes. By default the way that gains most
at 10 Mbit/s of each payload, --all for all ways. Speeds are those of the fastest run.

Without --counts or --planes both.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec
import trio

from node.cli.demo import DEMO_MODEL
from node.cli.table import format_table
from node.engine import library as llama
from node.engine.library import Library
from node.importing import import_model
from node.model.gguf.map import MappedModel
from node.model.gguf.split import open_model
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.engine_bench import DEFAULT_DIR
from scripts.bench.engine_model import Shape, add_shape_options, make, positive, shape_of
from scripts.bench.wire_counts import Count, count, raw_baseline
from scripts.bench.wire_planes import Squeeze, capture, measure

# Issue 4, "Must hold" 6: n_embd 3072, top-8. What is counted depends on nothing else, so the rest is small.
SHAPE = {
    "layers": 2, "embd": 3072, "ff": 32, "experts": 128, "used": 8, "heads": 2, "kv_heads": 1,
    "head_size": 64, "vocab": 64, "context": 256, "types": "Q8_0,Q8_0,F16,F16",
}  # fmt: skip

ROWS = (1, 8, 512)  # of a payload: decoding, a pass of guesses, a piece of a prompt
WIDTH = 3072
LINKS = (10.0, 100.0)  # Mbit/s

DEFAULT_TEXT = Path(__file__).resolve().parent.parent.parent / "docs" / "protocol.md"


def counts(
    library: Library, shape: Shape, folder: Path, servers: Sequence[int], tokens: int
) -> tuple[int, list[Count]]:
    """The raw baseline, and all steps over each number of servers."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / shape.file_name()
    if not path.exists():
        make(library, shape, path)
    stored = import_model(library, Store(folder / "store"), path)
    found: list[Count] = []
    with MappedModel(open_model(path)) as mapped:
        for number in servers:
            found += trio.run(partial(count, library, stored, mapped, servers=number, tokens=tokens))
    call = stored.manifest.calls[0]
    return raw_baseline(call.n_in, call.n_out, shape.used), found


def planes(library: Library, folder: Path, models: Sequence[Path], text: Path) -> list[Squeeze]:
    """Every payload of every model in every way."""
    found: list[Squeeze] = []
    for path in models:
        stored = import_model(library, Store(folder / "store"), path)
        states = capture(library, stored, path, text.read_text("utf-8"))
        found += measure(path.stem, states, [(rows, WIDTH) for rows in ROWS])
    return found


def show_counts(raw: int, found: Sequence[Count]) -> str:
    """A table of bytes per token and layer."""
    rows: list[tuple[object, ...]] = [("-", "raw baseline", "-", f"{raw:,}", "1.000", "-", "-")]
    for each in found:
        rows.append(
            (
                each.servers,
                each.step,
                f"{each.servers_asked:.2f}",
                f"{each.message_bytes:,.0f}",
                f"{each.message_bytes / raw:.3f}",
                f"{each.link_bytes:,.0f}",
                f"{each.datagrams / each.calls:.1f}",
            )
        )
    header = ("servers", "step", "asked", "message bytes", "of raw", "link bytes", "datagrams")
    return format_table(header, rows)


def show_planes(found: Sequence[Squeeze], *, every: bool) -> str:
    """A table of what compressing gains."""
    best: dict[tuple[object, ...], Squeeze] = {}
    for each in found:
        key = (each.model, each.kind, each.codec, each.rows, each.way if every else "")
        if key not in best or each.gain(LINKS[0]) > best[key].gain(LINKS[0]):
            best[key] = each
    rows: list[tuple[object, ...]] = []
    for each in best.values():
        gains: list[str] = []
        for mbit in LINKS:
            gains += [f"{1e3 * each.gain(mbit):.2f} ms", f"{100 * each.gain_share(mbit):.1f} %"]
        rows.append(
            (
                each.model,
                each.kind,
                each.codec,
                each.rows,
                f"{each.n_bytes:,}",
                each.way,
                f"{100 * each.share:.1f} %",
                f"{each.n_bytes / each.compress / 1e6:.0f}",
                f"{each.n_bytes / each.decompress / 1e6:.0f}",
                f"{each.break_even:.0f}",
                *gains,
            )
        )
    header = [
        "model",
        "what",
        "wire",
        "rows",
        "bytes",
        "way",
        "left",
        "MB/s in",
        "MB/s out",
        "pays below Mbit/s",
    ]
    for mbit in LINKS:
        header += [f"won at {mbit:g} Mbit/s", ""]
    return format_table(header, rows)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_wire", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--counts", action="store_true", help="only bytes per token and layer")
    parser.add_argument("--planes", action="store_true", help="only compression")
    parser.add_argument("--dir", type=Path, default=DEFAULT_DIR, help=f"models and store ({DEFAULT_DIR})")
    parser.add_argument(
        "--servers", type=_numbers, default=[1, 4, 8], metavar="N,...", help="expert servers (1,4,8)"
    )
    parser.add_argument("--tokens", type=positive, default=32, metavar="N", help="counted (32)")
    parser.add_argument(
        "--model", type=Path, action="append", metavar="FILE", help="a trained model (the demo's); repeatable"
    )
    parser.add_argument("--text", type=Path, default=DEFAULT_TEXT, help="what it reads (docs/protocol.md)")
    parser.add_argument("--all", action="store_true", help="every way of compressing, not only the best")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    add_shape_options(parser)
    parser.set_defaults(**SHAPE)
    args = parser.parse_args(arguments)
    both = args.counts == args.planes
    raw = 0
    counted: list[Count] = []
    squeezed: list[Squeeze] = []
    try:
        library = llama.load()
        if args.counts or both:
            raw, counted = counts(library, shape_of(args), args.dir, args.servers, args.tokens)
        if args.planes or both:
            squeezed = planes(library, args.dir, args.model or [DEMO_MODEL], args.text)
    except (LocalError, OSError) as error:
        print(f"bench_wire: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(msgspec.json.encode({"raw": raw, "counts": counted, "planes": squeezed}).decode())
        return 0
    if counted:
        print(show_counts(raw, counted))
    if counted and squeezed:
        print()
    if squeezed:
        print(show_planes(squeezed, every=args.all))
    return 0


def _numbers(text: str) -> list[int]:
    return [positive(part) for part in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
