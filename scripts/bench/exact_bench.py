"""Does guessing change a token? Each guesser against plain decoding, through real servers over the QUIC
plane.

Run by `scripts/bench_exact [MODEL ...] [--tokens N] [--json]`: `panal bench trips` for each model, greedy and
at temperature 0.8, with half of the cells at home: plain, self-draft, look-up, a small model (another one of
the same vocabulary, or the model itself) and whatever `auto` makes of it. Guessers other than auto always
guess as far as passes may go, which is the hardest test. Exit code 1 if a single token differs.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from node.cli.demo import DEMO_MODEL
from routing.errors import LocalError
from scripts.bench.engine_model import positive
from scripts.bench.route_lab import ENVIRONMENT, PANAL, REPOSITORY

SHARED = REPOSITORY.parent / "shared" / "models"
TRAINED = ("tiny-qwen3moe-32e4.{}.gguf", "tiny-qwen2moe-12e2-shared.{}.gguf")
TYPES = ("Q8_0", "Q4_K_M")
SAMPLINGS = {"greedy": (), "T=0.8": ("--temp", "0.8", "--seed", "7")}

PROMPT_TOKENS = 96
CONTINUED = 400
"""Tokens after each prompt: what the small models' context of 512 leaves."""

MOST = 15
"""Guesses in a pass; a model whose types allow fewer gets fewer."""


def models() -> list[tuple[Path, Path]]:
    """Models with the ones that guess for them."""
    found = []
    for kind in TYPES:
        pair = [SHARED / name.format(kind) for name in TRAINED]
        if all(path.is_file() for path in pair):
            found += [(pair[0], pair[1]), (pair[1], pair[0])]
    return found or [(DEMO_MODEL, DEMO_MODEL)]


def run(model: Path, small: Path, sampling: Sequence[str], tokens: int, store: Path) -> list[dict[str, Any]]:
    """The rows of one model with one sampler."""
    prompts = max(1, -(-tokens // (CONTINUED - 1)))
    text = SHARED / "heldout_code.txt"
    command = [*PANAL, "bench", "trips", str(model), "--store", str(store), "--json", "--servers", "3"]
    command += ["--prompts", str(prompts), "--prompt-tokens", str(PROMPT_TOKENS), "-n", str(CONTINUED)]
    command += ["--home", "50%", "--draft", f"self{MOST},ngram{MOST},model{MOST},auto"]
    command += ["--draft-model", str(small), *sampling]
    command += ["--text", str(text)] if text.is_file() else []
    done = subprocess.run(
        command, capture_output=True, text=True, env=ENVIRONMENT, cwd=REPOSITORY, check=False
    )
    if done.returncode:
        raise LocalError(f"{model.name}: {done.stderr.strip()[-500:]}")
    rows: list[dict[str, Any]] = json.loads(done.stdout)
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_exact", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "model", nargs="*", type=Path, help="GGUF files, each its own guesser (the trained ones)"
    )
    parser.add_argument("--tokens", type=positive, default=4000, metavar="N", help="of each case (4000)")
    parser.add_argument("--json", action="store_true", help="print one JSON list instead")
    args = parser.parse_args(arguments)
    report, differ = [], 0
    try:
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as store:
            for model, small in [(path, path) for path in args.model] or models():
                for name, sampling in SAMPLINGS.items():
                    rows = run(model, small, sampling, args.tokens, Path(store))
                    report.append({"model": model.name, "sampling": name, "rows": rows})
                    differ += sum(row["differ"] for row in rows)
                    if not args.json:
                        show(model.name, name, rows)
    except LocalError as error:
        print(f"bench_exact: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    return 1 if differ else 0


def show(model: str, sampling: str, rows: Sequence[dict[str, Any]]) -> None:
    print(f"{model}, {sampling}")
    for row in rows:
        print(
            f"  {row['draft']:<9}{row['tokens']:>7} tokens, {row['passes']:>5} passes, "
            f"{row['accepted']:>5} of {row['drafted']:>6} guesses right, "
            f"{row['trips_per_layer_token']:.3f} trips per layer and token, {row['differ']} differ",
            flush=True,
        )


if __name__ == "__main__":
    sys.exit(main())
