"""The plane on an emulated WAN: 40 ms one way between a client and eight servers.

Needs root, Linux with TUN, nftables and the lab (../shared/lab/wanlab.py, or WANLAB=path). Nothing leaves
the machine. As processes inside the lab:

    plane_wan.py serve HOST             prints its address, serves until killed
    plane_wan.py call ADDRESS...        measures, prints one JSON line
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import trio

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(REPOSITORY))

from routing.identity import Identity  # noqa: E402  (the repository's folder comes first)
from routing.multiaddr import PeerAddress  # noqa: E402
from routing.quic.connection import Connection  # noqa: E402
from routing.quic.endpoint import Endpoint  # noqa: E402
from routing.quic.stream import Stream  # noqa: E402

PROTOCOL = "/panal/bench-wan/1"
SERVERS = 8
ONE_WAY_MS = 40.0
ROUND_TRIP = 2 * ONE_WAY_MS / 1e3
MAX_BYTES = 1 << 20
SMALL, LARGE = 12_288, 200_000
REPEATS = 7
# What the plane takes to fill its windows after a dial, see routing.quic.warmup.
SETTLE_SECONDS = 3.0
IDLE_SECONDS = 10.0

# "a 12 KB and a 200 KB call each take one RTT (+20 %)"; a star at most 1.1 times its slowest call
CALL_TARGET, STAR_TARGET = 1.2, 1.1


async def serve(host: str) -> None:
    async def answer(stream: Stream) -> None:
        """A request begins with the size of the answer it wants."""
        while True:
            request = await stream.receive_message(MAX_BYTES)
            await stream.send_message(bytes(int.from_bytes(request[:4], "big")))

    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=(host, 0), handlers={PROTOCOL: answer})
        await nursery.start(endpoint.run)
        print(PeerAddress(host, endpoint.local_address[1], endpoint.peer_id), flush=True)
        await trio.sleep_forever()


async def call(stream: Stream, request_bytes: int, answer_bytes: int) -> float:
    start = time.perf_counter()
    await stream.send_message(answer_bytes.to_bytes(4, "big"), bytes(request_bytes - 4))
    answer = await stream.receive_message(MAX_BYTES)
    assert len(answer) == answer_bytes
    return time.perf_counter() - start


async def star(streams: list[Stream]) -> float:
    start = time.perf_counter()
    async with trio.open_nursery() as nursery:
        for stream in streams:
            nursery.start_soon(call, stream, SMALL, SMALL)
    return time.perf_counter() - start


async def measure_from_inside(addresses: list[PeerAddress]) -> dict[str, Any]:
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=("0.0.0.0", 0), accept=False)
        await nursery.start(endpoint.run)
        connections: list[Connection] = []
        dials: list[float] = []
        for address in addresses:
            start = time.perf_counter()
            connections.append(await endpoint.connect(address))
            dials.append(time.perf_counter() - start)
        streams = [connection.open_stream(PROTOCOL) for connection in connections]
        first = [await call(stream, SMALL, SMALL) for stream in streams]
        await trio.sleep(SETTLE_SECONDS)
        result: dict[str, Any] = {"dial": statistics.median(dials), "first_12K": statistics.median(first)}
        result["window_after_dial"] = min(each.congestion_window for each in connections)

        # One server has only been warmed up by the plane itself: its first large calls are the proof.
        shapes = {
            "12K": (SMALL, SMALL),
            "200K_answer": (SMALL, LARGE),
            "200K_request": (LARGE, SMALL),
            "200K_both": (LARGE, LARGE),
        }
        for number, (name, shape) in enumerate(shapes.items()):
            result[f"first_{name}"] = await call(streams[number], *shape)
        for name, shape in shapes.items():
            result[f"warm_{name}"] = statistics.median(
                [await call(streams[0], *shape) for _ in range(REPEATS)]
            )
        for number, (name, shape) in enumerate(shapes.items()):
            await trio.sleep(IDLE_SECONDS if number == 0 else 0)
            result[f"idle_{name}"] = await call(streams[number], *shape)

        singles = []
        for stream in streams:
            singles.append(statistics.median([await call(stream, SMALL, SMALL) for _ in range(REPEATS)]))
        stars = [await star(streams) for _ in range(3 * REPEATS)]
        result["slowest_single"], result["star"] = max(singles), statistics.median(stars)
        nursery.cancel_scope.cancel()
    return result


def measure() -> tuple[dict[str, Any], dict[str, Any]]:
    """Build the lab, run the processes in it; (seconds by name, verdict)."""
    lab_file = Path(os.environ.get("WANLAB", REPOSITORY.parent / "shared" / "lab" / "wanlab.py"))
    if os.geteuid() != 0 or not lab_file.is_file():
        raise SystemExit(f"--wan needs root and the lab at {lab_file} (set WANLAB to where it is)")
    sys.path.insert(0, str(lab_file.parent))
    from wanlab import WanLab

    hosts = {"client": {"delay": ONE_WAY_MS / 2}}
    hosts |= {f"server{number}": {"delay": ONE_WAY_MS / 2} for number in range(SERVERS)}
    me = [sys.executable, str(Path(__file__).resolve())]
    with WanLab({"hosts": hosts}) as lab:
        addresses = []
        for number in range(SERVERS):
            name = f"server{number}"
            server = lab.popen(name, [*me, "serve", lab.ip(name)], stdout=subprocess.PIPE, text=True)
            addresses.append(server.stdout.readline().strip())
        done = lab.run("client", [*me, "call", *addresses], capture_output=True, text=True, timeout=120)
        if done.returncode:
            raise SystemExit(f"the measuring process failed: {done.stderr[-2000:]}")
        results: dict[str, Any] = json.loads(done.stdout)
    return results, judge(results)


def judge(results: dict[str, Any]) -> dict[str, Any]:
    """Times in round trips against the targets."""
    figures = {
        name: results[name] / ROUND_TRIP for name in results if name.startswith(("first_", "warm_", "idle_"))
    }
    targets = dict.fromkeys(figures, CALL_TARGET)
    figures["star"], targets["star"] = results["star"] / results["slowest_single"], STAR_TARGET
    met = {name: figures[name] <= target for name, target in targets.items()}
    return {
        "figures": figures,
        "targets": targets,
        "met": met,
        "lower_is_better": dict.fromkeys(figures, True),
    }


def show_wan(results: dict[str, Any], verdict: dict[str, Any]) -> None:
    print(f"{SERVERS} servers, {ONE_WAY_MS:g} ms one way; calls in round trips of {ROUND_TRIP * 1e3:g} ms")
    print(
        f"dial {results['dial'] * 1e3:.0f} ms, congestion window after {SETTLE_SECONDS:g} s: "
        f"{results['window_after_dial'] / 1e3:.0f} KB"
    )
    star_ms, single_ms = results["star"] * 1e3, results["slowest_single"] * 1e3
    print(f"star of {SERVERS}: {star_ms:.1f} ms, slowest single: {single_ms:.1f} ms")
    for name, target in verdict["targets"].items():
        state = "met" if verdict["met"][name] else "MISSED"
        print(f"  {name:<28}{verdict['figures'][name]:>9.3f}  target <= {target:g}  {state}")


if __name__ == "__main__":
    logging.disable(logging.CRITICAL)
    if sys.argv[1] == "serve":
        trio.run(serve, sys.argv[2])
    else:
        print(json.dumps(trio.run(measure_from_inside, [PeerAddress.parse(each) for each in sys.argv[2:]])))
