"""Measure sessions that are decoded together against one alone, and a chat's second turn, on an emulated WAN.

Run by `scripts/bench_sessions [--json] [--rounds N] [--one-way MS] [--sessions N] [--tokens N]` as root, with
the lab (wanlab). Nothing leaves the machine.

Three real `panal run` servers with a third of the experts each, and a backbone with a continuous decoder
(node.decode.continuous). In turns, from nothing in any cache:

    one       a session alone: a prompt of real code, then so many tokens
    together  as many at once, each with a prompt of its own; the first has the one above
    guessing  the one alone with guesses (draft = auto)

`tokens/s` counts from the first ask to the last token, prompts included; `x one` is over the one alone
without guesses. The first prompt's tokens are the same every time, which is checked. Then a chat: how many
tokens of its second turn are computed anew of those that were there in the first, prompt and answer.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from pathlib import Path
from typing import Any

from node.cli.demo import DEMO_MODEL
from node.engine import library as llama
from node.importing import import_model
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.backbone_lab import BackboneLab
from scripts.bench.engine_model import positive
from scripts.bench.lab_run import run
from scripts.bench.route_lab import REPOSITORY

CLIENT = [sys.executable, str(Path(__file__).with_name("sessions_client.py"))]
SHARED = REPOSITORY.parent / "shared" / "models"
TRAINED = SHARED / "tiny-qwen3moe-32e4.Q8_0.gguf"

CONTEXT = 512
KINDS = ("one", "together", "guessing")


def rounds_of(lab: BackboneLab, args: argparse.Namespace) -> dict[str, Any]:
    """Rounds of all kinds; the first one warms up."""
    tasks = {
        "one": {"sessions": 1, "draft": "off"},
        "together": {"sessions": args.sessions, "draft": "off"},
        "guessing": {"sessions": 1, "draft": "auto"},
    }
    size = {"text": str(args.text), "prompt": args.prompt, "tokens": args.tokens, "places": args.sessions}
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in KINDS}
    for number in range(args.rounds + 1):
        for turn in range(len(KINDS)):
            kind = KINDS[(number + turn) % len(KINDS)]
            row = lab.ask({**tasks[kind], **size})
            if number:
                found[kind].append(row)
    first = [row["first"] for rows in found.values() for row in rows]
    if any(tokens != first[0] for tokens in first):
        raise LocalError("the first session got other tokens in company, or by guesses, than alone")
    kinds = {
        kind: {
            name: statistics.median(row[name] for row in rows)
            for name in ("tokens_per_second", "passes", "trips", "trips_per_token", "first_seconds")
        }
        for kind, rows in found.items()
    }
    for row in kinds.values():
        row["ratio"] = row["tokens_per_second"] / kinds["one"]["tokens_per_second"]
    chat = lab.ask({"chat": True, "draft": "off", **size})
    return {"kinds": kinds, "chat": chat}


def show(report: dict[str, Any]) -> None:
    print(
        f"{report['model']}, {report['one_way_ms']:g} ms one way, {report['servers']} servers; prompts of "
        f"{report['prompt']} tokens, {report['tokens']} tokens each; {report['n_rounds']} rounds; "
        f"load {report['load'][0]:.2f} before and {report['load'][1]:.2f} after"
    )
    print(f"{'':<14}{'tokens/s':>10}{'x one':>8}{'passes':>8}{'trips':>7}{'trips/token':>13}{'first s':>9}")
    for kind, row in report["kinds"].items():
        name = f"together, {report['sessions']}" if kind == "together" else kind
        print(
            f"{name:<14}{row['tokens_per_second']:>10.2f}{row['ratio']:>8.2f}{row['passes']:>8.0f}"
            f"{row['trips']:>7.0f}{row['trips_per_token']:>13.3f}{row['first_seconds']:>9.2f}"
        )
    chat = report["chat"]
    print(
        f"a chat's second turn: {chat['prompt']} prompt tokens, {chat['before']} of them there before, "
        f"{chat['cached']} taken from the cache, {chat['again']} computed again"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_sessions", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=positive, default=3, metavar="N", help="of all kinds (3)")
    parser.add_argument("--one-way", type=float, default=40.0, metavar="MS", help="(40)")
    parser.add_argument("--servers", type=positive, default=3, metavar="N", help="(3)")
    parser.add_argument("--sessions", type=positive, default=8, metavar="N", help="(8)")
    parser.add_argument("--prompt", type=positive, default=48, metavar="N", help="tokens of each prompt (48)")
    parser.add_argument("--tokens", type=positive, default=64, metavar="N", help="chosen for each (64)")
    parser.add_argument("--threads", type=positive, default=1, metavar="N", help="of each process (1)")
    parser.add_argument("--model", type=Path, default=TRAINED if TRAINED.is_file() else DEMO_MODEL)
    parser.add_argument("--text", type=Path, default=SHARED / "heldout_code.txt", help="of the prompts")
    parser.add_argument("--dir", type=Path, help="keep store and logs there; else nothing is kept")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(arguments)
    return run("bench_sessions", args, lambda folder: bench(args, folder), show)


def bench(args: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Import the model, build the lab, measure."""
    folder.mkdir(parents=True, exist_ok=True)
    stored = import_model(llama.load(), Store(folder / "store"), args.model)
    experts = min(call.n_experts for call in stored.manifest.calls)
    before = os.getloadavg()[0]
    settings = f"context = {CONTEXT}"
    with BackboneLab(folder, args.model, experts, args.threads, CLIENT, args.servers, settings) as lab:
        lab.set_one_way(args.one_way)
        found = rounds_of(lab, args)
    return {
        "model": args.model.name,
        "servers": args.servers,
        "one_way_ms": args.one_way,
        "sessions": args.sessions,
        "prompt": args.prompt,
        "tokens": args.tokens,
        "n_rounds": args.rounds,
        "load": (before, os.getloadavg()[0]),
        **found,
    }


if __name__ == "__main__":
    sys.exit(main())
