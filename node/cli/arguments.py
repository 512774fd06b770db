"""Argument types and flags that several commands share; each refusal is one line for argparse."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

from node.ranges import RangeError, Ranges
from routing.errors import LocalError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
"""What a command's `add_arguments` adds itself to (generic for the type checker only)."""

DEFAULT_CONFIG = Path("node.toml")
COMBINES = ("rows", "sum", "stable")
WIRES = ("f32", "f16", "int8")
MAX_SEED = 2**32 - 1  # llama.cpp's samplers take 32 bits, the largest meaning "choose one"
MAX_TOKENS = 1_000_000  # of one answer; longer than any context llama.cpp runs today
MAX_BATCH = 4096  # tokens of one verify batch: two default logical batches of llama.cpp


def add_command(
    subparsers: Subparsers,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
    epilog: str = "",
) -> argparse.ArgumentParser:
    """A subcommand's parser, with `summary` in both helps and `run` in its namespace."""
    parser = subparsers.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=epilog,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.set_defaults(run=run, parser=parser)
    return parser


def add_config(parser: argparse.ArgumentParser, *, required: bool = True) -> None:
    """-c FILE.

    Args:
        required: else it may be left out, for this device's own (node.device.which_config).
    """
    instead = "" if required else "; default: node.toml in the data directory"
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        required=required,
        metavar="FILE",
        help=f"this node's config (panal init){instead}",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json."""
    parser.add_argument("--json", action="store_true", help="print JSON instead of text")


def add_store(parser: argparse.ArgumentParser) -> None:
    """--store DIR; None means the default (config.default_store)."""
    parser.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        help="where trunks, manifests and imports lie (default: $PANAL_STORE, or the data directory)",
    )


def add_sampling(parser: argparse.ArgumentParser) -> None:
    """-n, --seed, --temp, --top-k, --top-p, --min-p: llama.cpp's own samplers, its names and meanings."""
    parser.add_argument(
        "-n",
        "--tokens",
        type=integer(1, MAX_TOKENS),
        default=128,
        metavar="N",
        help="tokens to generate at most (default: 128)",
    )
    parser.add_argument(
        "--seed", type=integer(0, MAX_SEED), default=0, metavar="S", help="seed of the sampler (default: 0)"
    )
    parser.add_argument(
        "--temp",
        type=number(0.0, 100.0),
        default=0.0,
        metavar="T",
        help="temperature; 0, the default, always takes the likeliest token",
    )
    parser.add_argument(
        "--top-k", type=integer(0, 1 << 20), default=40, metavar="K", help="0: all (default: 40)"
    )
    parser.add_argument("--top-p", type=number(0.0, 1.0), default=0.95, metavar="P", help="default: 0.95")
    parser.add_argument("--min-p", type=number(0.0, 1.0), default=0.05, metavar="P", help="default: 0.05")


def integer(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a decimal whole number from low to high."""

    def parse(text: str) -> int:
        if text.isascii() and text.isdecimal() and len(text) <= len(str(high)) and low <= int(text) <= high:
            return int(text)
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {low} to {high}")

    return parse


def number(low: float, high: float) -> Callable[[str], float]:
    """An argparse type: a finite number from low to high."""

    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not low <= value <= high:  # also refuses nan
            raise argparse.ArgumentTypeError(f"{text!r} is not a number from {low:g} to {high:g}")
        return value

    return parse


def integers(low: int, high: int) -> Callable[[str], tuple[int, ...]]:
    """An argparse type: whole numbers from low to high with commas between them, none twice."""
    parse_one = integer(low, high)

    def parse(text: str) -> tuple[int, ...]:
        values = tuple(parse_one(part) for part in text.split(","))
        if len(set(values)) < len(values):
            raise argparse.ArgumentTypeError(f"{text!r} names a number twice")
        return values

    return parse


def ranges(text: str) -> Ranges:
    """An argparse type: "0-3,8"."""
    try:
        return Ranges.parse(text)
    except RangeError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def memory_amount(text: str) -> str:
    """An argparse type: an amount of memory, as it is written into a config."""
    from node.sizes import MemoryBudget

    try:
        MemoryBudget.parse(text)
    except LocalError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return text.strip()
