"""Many streaming clients of one node, half of them leaving mid-way: texts compared, leaks looked for.

Run by `scripts/bench_clients [MODEL] [--clients N] [--seconds S] [--json]`. Nothing leaves the machine.

Three expert servers and a backbone with its API, each a process. Each client asks again and again for one of
a few continuations, greedy or drawn with a seed, whose text plain llama.cpp has written before, and compares
what comes, piece by piece. Every second request is given up after some of its pieces. Who is told to come
again later (429) does so. At the end the node must be as it was: nobody active or waiting, as many open
files, and resident memory no larger than after the first fifth of the time but for a little.

Exit code 1 if a piece of text was wrong, a request failed, or something was left over.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h11
import trio

from node.cli.demo import DEMO_MODEL
from node.config import render_config
from node.engine import library as llama
from node.engine.sampler import SamplingSettings
from node.importing import import_model
from node.local_swarm import LocalSwarm
from node.model.store import Store
from routing.errors import LocalError
from scripts.bench.engine_model import positive
from scripts.bench.plain_text import PlainText
from scripts.bench.route_lab import ENVIRONMENT, PANAL, REPOSITORY

SHARED = REPOSITORY.parent / "shared" / "models"
Q8_0 = SHARED / "tiny-qwen3moe-32e4.Q8_0.gguf"
TEXT = SHARED / "heldout_code.txt"

SERVERS = 3
CONTEXT = 512  # tokens: what the small models were trained with
PROMPT_CHARS = 240
CASES = 24
"""Different requests: more than there are sequences, so that caches are evicted, few enough to be written by
plain llama.cpp in half a minute."""

LIMIT = 48  # tokens of an answer
SESSIONS, QUEUE = 16, 256

READ_BYTES = 1 << 14
PATIENCE = 120.0
"""Seconds without a byte after which a request counts as failed: 200 clients share 16 sequences."""

SETTLE_SECONDS = 5.0
"""After the last client, before what is left over is counted."""

LEAK_BYTES = 32 << 20
"""Growth of resident memory that is no leak: allocators keep what the busiest moment needed."""

LEAK_FILES = 4


@dataclass(frozen=True)
class Case:
    """One request and what must come."""

    prompt: str
    temperature: float
    seed: int
    text: str


@dataclass
class Counts:
    """What happened to all clients together."""

    done: int = 0
    left: int = 0
    told_to_wait: int = 0
    wrong: list[str] = field(default_factory=list)
    failed: Counter[str] = field(default_factory=Counter)
    pieces: int = 0


def make_cases(model: Path, seed: int) -> list[Case]:
    """Prompts out of held-out text, each with what plain llama.cpp writes after it."""
    rng = random.Random(seed)
    words = TEXT.read_text(encoding="utf-8") if TEXT.is_file() else Path(llama.__file__).read_text("utf-8")
    cases = []
    with PlainText(llama.load(), model, n_ctx=CONTEXT) as plain:
        for number in range(CASES):
            start = rng.randrange(len(words) - PROMPT_CHARS)
            prompt = words[start : start + PROMPT_CHARS]
            temperature = 0.8 if number % 2 else 0.0
            # As the API maps a request that names nothing else: every token may be drawn.
            sampling = SamplingSettings(temperature, number, top_k=0, top_p=1.0, min_p=0.0)
            text = plain.text(plain.tokens(prompt, LIMIT, sampling))
            cases.append(Case(prompt, temperature, number, text))
    return cases


async def ask(address: tuple[str, int], case: Case, leave_after: int | None, counts: Counts) -> float:
    """One request; seconds to wait before the next."""
    body = json.dumps(
        {
            "model": "",  # whatever is there
            "prompt": case.prompt,
            "max_tokens": LIMIT,
            "temperature": case.temperature,
            "seed": case.seed,
            "stream": True,
        }
    ).encode()
    stream = await trio.open_tcp_stream(*address)
    async with stream:
        connection = h11.Connection(h11.CLIENT)
        head = h11.Request(
            method="POST",
            target="/v1/completions",
            headers=[
                ("Host", f"{address[0]}:{address[1]}"),
                ("Content-Type", "application/json"),
                ("Content-Length", str(len(body))),
                ("Connection", "close"),
            ],
        )
        for event in (head, h11.Data(data=body), h11.EndOfMessage()):
            await stream.send_all(connection.send(event) or b"")
        status, wait, raw, text, pieces = 0, 0.0, b"", "", 0
        while True:
            received = connection.next_event()
            if received is h11.NEED_DATA:
                with trio.fail_after(PATIENCE):
                    connection.receive_data(await stream.receive_some(READ_BYTES))
                continue
            if isinstance(received, h11.Response):
                status = received.status_code
                headers = dict(received.headers)
                wait = float(headers.get(b"retry-after", b"1"))
            elif isinstance(received, h11.Data):
                raw += received.data
                while b"\n\n" in raw and status == 200:
                    frame, raw = bytes(raw).split(b"\n\n", 1)
                    if not frame.startswith(b"data: ") or frame == b"data: [DONE]":
                        continue
                    said = json.loads(frame[len(b"data: ") :])
                    if "error" in said:
                        counts.failed[str(said["error"].get("message"))[:120]] += 1
                        return 0.1
                    for choice in said["choices"]:
                        text += choice["text"]
                    pieces += 1
                    if not case.text.startswith(text):
                        counts.wrong.append(f"{case.prompt[-20:]!r}: {text!r}, not {case.text!r}")
                        return 0.0
                    if leave_after is not None and pieces >= leave_after:
                        counts.left += 1
                        counts.pieces += pieces
                        return 0.0
            else:
                break
    if status == 429:
        counts.told_to_wait += 1
        return wait
    if status != 200:
        counts.failed[f"{status}: {bytes(raw)[:160].decode(errors='replace')}"] += 1
        return 1.0
    if text != case.text:
        counts.wrong.append(f"{case.prompt[-20:]!r}: ended with {text!r}, not {case.text!r}")
    counts.done += 1
    counts.pieces += pieces
    return 0.0


async def client(
    number: int, address: tuple[str, int], cases: list[Case], until: float, counts: Counts
) -> None:
    """Ask again and again."""
    rng = random.Random(number)
    leaves = number % 2 == 0
    while trio.current_time() < until:
        leave_after = rng.randrange(1, LIMIT) if leaves else None
        try:
            wait = await ask(address, rng.choice(cases), leave_after, counts)
        except (OSError, trio.BrokenResourceError, trio.TooSlowError, h11.RemoteProtocolError) as error:
            counts.failed[f"{type(error).__name__}: {error}"[:120]] += 1
            wait = 1.0
        await trio.sleep(wait * rng.uniform(1.0, 1.5))


def state_of(pid: int) -> dict[str, int]:
    """Resident memory in bytes and open files of a process."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    rss = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    return {"rss": rss * 1024, "files": len(list(Path(f"/proc/{pid}/fd").iterdir()))}


async def load(
    address: tuple[str, int], pid: int, cases: list[Case], clients: int, seconds: float
) -> tuple[Counts, list[dict[str, int]]]:
    """All clients for so long; what happened, and the node's state each few seconds."""
    counts, states = Counts(), list[dict[str, int]]()
    until = trio.current_time() + seconds

    async def look() -> None:
        while True:
            await trio.sleep(seconds / 20)
            states.append(state_of(pid))

    async with trio.open_nursery() as watching:
        watching.start_soon(look)
        async with trio.open_nursery() as nursery:
            for number in range(clients):
                nursery.start_soon(client, number, address, cases, until, counts)
        watching.cancel_scope.cancel()
    await trio.sleep(SETTLE_SECONDS)
    states.append(state_of(pid))
    return counts, states


def bench(model: Path, clients: int, seconds: float, folder: Path) -> dict[str, Any]:
    """Start the swarm, load it, compare."""
    cases = make_cases(model, seed=1)
    stored = import_model(llama.load(), Store(folder / "store"), model)
    with LocalSwarm(folder, folder / "store", threads=1) as swarm:
        swarm.start(model, stored.manifest, SERVERS)
        home = folder / "backbone"
        home.mkdir()
        text = render_config(
            name="answers",
            store=str(folder / "store"),
            identity="identity.key",
            listen="/ip4/127.0.0.1/udp/0/quic-v1",
            threads=1,
            peers=[str(each) for each in swarm.addresses],
            model=str(model),
            context=CONTEXT,
        )
        text = text.replace("# sessions = 8 ", f"sessions = {SESSIONS} ").replace(
            "# queue = 64 ", f"queue = {QUEUE} "
        )
        (home / "node.toml").write_text(text, encoding="utf-8")
        log = (folder / "log").open("w")
        process = subprocess.Popen(
            [*PANAL, "run", "-c", str(home / "node.toml"), "--json", "--until-eof"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=REPOSITORY,
            env=ENVIRONMENT,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise LocalError(f"the node did not start: {(folder / 'log').read_text()[-400:]}")
            host, _, port = json.loads(line)["url"].removeprefix("http://").rpartition(":")
            address = (host, int(port))
            wait_until_ready(address)
            before = state_of(process.pid)
            begun = time.monotonic()
            counts, states = trio.run(load, address, process.pid, cases, clients, seconds)
            took = time.monotonic() - begun
            status = get_json(address, "/api/status")
            assert process.stdin is not None
            process.stdin.close()
            code = process.wait(10)
        finally:
            process.kill()
            log.close()
    early = states[max(0, len(states) // 5)]
    after = states[-1]
    gateway = status["gateway"]
    return {
        "model": model.name,
        "clients": clients,
        "seconds": round(took, 1),
        "answers": counts.done,
        "left": counts.left,
        "told_to_wait": counts.told_to_wait,
        "pieces": counts.pieces,
        "wrong": counts.wrong[:5],
        "wrong_count": len(counts.wrong),
        "failed": dict(counts.failed),
        "before": before,
        "early": early,
        "after": after,
        "active": gateway["active"],
        "waiting": gateway["waiting"],
        "exit_code": code,
        "clean": (
            not counts.wrong
            and not counts.failed
            and gateway["active"] == gateway["waiting"] == 0
            and after["rss"] <= early["rss"] + LEAK_BYTES
            and after["files"] <= before["files"] + LEAK_FILES
            and code == 0
        ),
    }


def wait_until_ready(address: tuple[str, int]) -> None:
    for _ in range(300):
        try:
            if get_json(address, "/health").get("status") == "ok":
                return
        except (OSError, ValueError):
            pass
        time.sleep(0.1)
    raise LocalError("the node's API was not ready within 30 s")


def get_json(address: tuple[str, int], path: str) -> dict[str, Any]:
    import http.client

    connection = http.client.HTTPConnection(*address, timeout=10)
    try:
        connection.request("GET", path)
        found: dict[str, Any] = json.loads(connection.getresponse().read())
        return found
    finally:
        connection.close()


def show(report: dict[str, Any]) -> None:
    print(
        f"{report['model']}: {report['clients']} clients for {report['seconds']} s: {report['answers']} "
        f"answers, {report['left']} left mid-way, {report['told_to_wait']} told to come again; "
        f"{report['pieces']} pieces"
    )
    print(f"wrong: {report['wrong_count']}; failed: {report['failed'] or 0}")
    for line in report["wrong"]:
        print(f"  {line}")
    for when in ("before", "early", "after"):
        state = report[when]
        print(f"{when:<7} {state['rss'] / 2**20:>7.1f} MiB resident, {state['files']} open files")
    print(f"active {report['active']}, waiting {report['waiting']}, exit code {report['exit_code']}")
    print("clean" if report["clean"] else "NOT CLEAN")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench_clients", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    default = Q8_0 if Q8_0.is_file() else DEMO_MODEL
    parser.add_argument("model", nargs="?", type=Path, default=default, help=f"a GGUF file ({default.name})")
    parser.add_argument("--clients", type=positive, default=200, metavar="N", help="at once (200)")
    parser.add_argument("--seconds", type=positive, default=300, metavar="S", help="for so long (300)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    args = parser.parse_args(arguments)
    try:
        with tempfile.TemporaryDirectory(prefix="panal-bench-") as scratch:
            report = bench(args.model, args.clients, args.seconds, Path(scratch))
    except LocalError as error:
        print(f"bench_clients: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps(report))
    else:
        show(report)
    return 0 if report["clean"] else 1


if __name__ == "__main__":
    sys.exit(main())
