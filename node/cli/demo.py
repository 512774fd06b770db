"""`panal demo`: a local swarm on the demo model, one backbone and three expert servers."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from node.cli.arguments import MAX_TOKENS, Subparsers, add_command, add_json, integer

if TYPE_CHECKING:
    from node.app.running import Running
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
        "run a local swarm on the model that ships with panal: one backbone with its page and API, three "
        "expert servers",
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
        help="leave the swarm running afterwards until Ctrl-C, as it does on a terminal",
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
    import trio

    from node.app.running import run_node
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
                listen="/ip4/127.0.0.1/udp/0/quic-v1",
                peers=[str(address) for address in swarm.addresses],
                model=str(DEMO_MODEL),
                context=CONTEXT,
            ),
            encoding="utf-8",
        )
        config = load_config(config_path)
        prompt = args.prompt if args.prompt is not None else PROMPT
        stays = args.keep or (sys.stdout.isatty() and not args.json)

        async def on_ready(running: Running) -> None:
            say(f"backbone  process {os.getpid()}, the trunk; the experts are on the three servers")
            say(f"page      {running.url}\nAPI       {running.url}/v1, model {running.model}")
            if not args.json:
                print(f"\n{prompt}", end="", flush=True)
            answer = await _answer(running, prompt, args)
            if args.json:
                print(json.dumps(answer.as_dict() | {"servers": SERVERS, "url": running.url}), flush=True)
            else:
                print(f"\n\n{format_table(('', ''), summary_rows(answer))}", flush=True)
            if stays:
                _say_how_to_go_on(config_path, running.url)
                await trio.sleep_forever()

        try:
            run_interruptible(lambda: run_node(config, on_ready=on_ready))
        except KeyboardInterrupt:
            if not stays:
                raise


async def _answer(running: Running, prompt: str, args: argparse.Namespace) -> Answer:
    """One greedy answer from the node's own decoder, as its API gives it, printed as it comes."""
    from node.decode.answer import Answer
    from node.decode.continuous.ask import Ask
    from node.engine.sampler import SamplingSettings
    from node.engine.tokenizer import TextStream, Tokenizer

    answering = running.answering
    await answering.ready()
    live, decoder = answering.live, answering.decoder
    assert live is not None and decoder is not None
    lacking = live.lacking()
    if lacking is not None:
        raise lacking
    tokenizer = Tokenizer(live.backbone.model)
    stream, texts, tokens = TextStream(tokenizer), list[str](), list[int]()

    def show(text: str) -> None:
        texts.append(text)
        if not args.json:
            print(text, end="", flush=True)

    ask = Ask(tuple(tokenizer.encode(prompt)), args.tokens, SamplingSettings())
    async with decoder.ask(ask) as given:
        async for chosen in given:
            tokens.append(chosen.token)
            show(stream.feed([chosen.token]))
    show(stream.finish())
    report = given.report
    return Answer(
        text="".join(texts),
        model_id=answering.model_id,
        prompt_tokens=report.prompt_tokens,
        tokens=tokens,
        prompt_seconds=report.prompt_seconds,
        seconds=report.seconds,
        stopped=report.stopped,
        trips=report.trips,
        routes=live.routes(),
        wire=live.port.settings.codec.name.lower(),
        home=live.home_report(),
    )


def _say_how_to_go_on(config: Path, url: str) -> None:
    panal = shlex.quote(sys.argv[0])
    print(
        f"\nThe swarm goes on until Ctrl-C. Its page: {url}\nIn another terminal:\n"
        f"  {panal} chat -c {shlex.quote(str(config))}\n"
        f"  {panal} peers -c {shlex.quote(str(config))}\n"
        f"  curl {url}/v1/completions -H 'Content-Type: application/json' "
        """-d '{"prompt": "class Node:", "max_tokens": 32}'""",
        file=sys.stderr,
        flush=True,
    )
