"""`panal demo`: a local swarm on the demo model, one backbone and three expert servers."""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import MAX_TOKENS, Subparsers, add_command, add_json, integer

if TYPE_CHECKING:
    from node.decode.answer import Answer

SERVERS = 3
PROMPT = "def read_config(path):\n    "
DEMO_MODEL = Path(__file__).resolve().parent.parent / "demo" / "tiny-qwen2moe-12e2-shared.Q4_K_M.gguf"
THREADS = 1  # of each process: four of them share one machine, and the model is tiny
CONTEXT = 512  # tokens: what the demo model was trained with


def add_arguments(subparsers: Subparsers) -> None:
    """Declare the command."""
    parser = add_command(
        subparsers,
        "demo",
        run,
        "run a local swarm on the model that ships with panal: one backbone, three expert servers",
    )
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="another prompt than the demo's own")
    parser.add_argument(
        "-n",
        "--tokens",
        type=integer(1, MAX_TOKENS),
        default=96,
        metavar="N",
        help="tokens to generate at most (default: 96)",
    )
    parser.add_argument(
        "--keep",
        action="store_true",
        help="leave the swarm running afterwards and say how to use it, until Ctrl-C",
    )
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Start the swarm, generate, print the table, stop the swarm."""
    folder = Path(tempfile.mkdtemp(prefix="panal-demo-"))
    try:
        _run_in(folder, args)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _run_in(folder: Path, args: argparse.Namespace) -> None:
    from node.cli.table import format_table
    from node.config import load_config, render_config
    from node.decode.answer import summary_rows
    from node.engine import library as llama
    from node.importing import import_model
    from node.interrupt import run_blocking, run_interruptible
    from node.local_swarm import LocalSwarm
    from node.model.store import Store

    def say(text: str) -> None:
        if not args.json:
            print(text, flush=True)

    store = folder / "store"
    stored = run_blocking(lambda: import_model(llama.load(), Store(store), DEMO_MODEL))
    manifest = stored.manifest
    first = manifest.calls[0]
    say(
        f"model     {DEMO_MODEL.name} ({manifest.architecture}, {len(manifest.calls)} layers of "
        f"{first.n_experts} experts), id {stored.model_id[:12]}"
    )
    with LocalSwarm(folder, store, threads=THREADS) as swarm:
        swarm.start(DEMO_MODEL, manifest, SERVERS)
        for number, (process, address) in enumerate(zip(swarm.processes(), swarm.addresses, strict=True)):
            count = first.n_experts
            held = f"experts {count * number // SERVERS}-{count * (number + 1) // SERVERS - 1} of every layer"
            say(f"server {number}  process {process.pid}, {held}, at {address}")
        config_path = folder / "node.toml"
        config_path.write_text(
            render_config(
                name="demo backbone",
                store=str(store),
                threads=THREADS,
                peers=[str(address) for address in swarm.addresses],
                model=str(DEMO_MODEL),
                context=CONTEXT,
            ),
            encoding="utf-8",
        )
        config = load_config(config_path)
        prompt = args.prompt if args.prompt is not None else PROMPT
        if not args.json:
            print(f"\n{prompt}", end="", flush=True)
        answer: Answer = run_interruptible(lambda: _generate(config, prompt, args))
        if args.json:
            print(json.dumps(answer.as_dict() | {"servers": SERVERS}), flush=True)
        else:
            print(f"\n\n{format_table(('', ''), summary_rows(answer))}", flush=True)
        if args.keep:
            _keep(config_path)


async def _generate(config: object, prompt: str, args: argparse.Namespace) -> Answer:
    from node.cli.generate import generate
    from node.config import NodeConfig
    from node.engine.sampler import SamplingSettings

    assert isinstance(config, NodeConfig)
    return await generate(config, prompt, args.tokens, SamplingSettings(), quiet=args.json)


def _keep(config: Path) -> None:
    import trio

    from node.interrupt import run_interruptible

    print(
        f"\nThe servers go on until Ctrl-C. In another terminal:\n"
        f"  {shlex.quote(sys.argv[0])} generate -c {shlex.quote(str(config))} -p 'class Node:' --stats",
        file=sys.stderr,
        flush=True,
    )
    try:
        run_interruptible(trio.sleep_forever)
    except KeyboardInterrupt:
        pass
