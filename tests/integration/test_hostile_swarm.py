"""A whole node against hostile peers: an honest client's calls stay quick, and what the node holds bounded.

One `panal run` with everything switched on (relay, control plane, WebSocket), one honest client in this
process, one hostile process for each attack (hostile_peer.py). The attacker is stopped and continued by turns
while the client calls on, so that both halves of the comparison see the same machine. What is compared are
medians of some hundred calls; SLOWER and SPARE are the promise, with room for three processes on two cores.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trio

from node.config import load_config
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from relay.dialback import PROBES_PER_TARGET
from relay.hop_wire import HOP_PROTOCOL
from relay.punch import PUNCHES_PER_TARGET
from relay.punch_plan import pauses
from relay.reach_wire import COPIES
from routing.control_address import ControlAddress
from routing.dial_limits import UNANSWERED_BURST
from routing.identity import Identity, parse_peer_id
from routing.libp2p.kad_wire import KAD
from routing.multiaddr import PeerAddress
from routing.quic.connection import Connection
from routing.quic.endpoint import Endpoint
from routing.quic.limits import ARRIVING
from routing.wire import cells, holdings, messages
from tests.integration.hostile_peer import ATTACKS, BYSTANDER, Target
from tests.integration.relay_parts import running_host
from tests.model_parts import ModelParts
from tests.served import request
from tests.swarm_process import Home, NodeProcess, free_port, generate, running, start_all, wait_whole

pytestmark = pytest.mark.slow

ROUNDS = 2
QUIET_SECONDS, ATTACK_SECONDS = 0.6, 1.2
"""Of a round. The attacker is stopped for less than the four seconds after which it would count as gone."""

SLOWER, SPARE = 2.0, 0.005
"""An honest call takes at most so many times as long as in quiet, or so many seconds longer."""

TRIES = 6
"""Measurements before an attack counts as one that hurts."""

GROWTH = 160 << 20
"""Bytes that the node may grow under one attack: what its bounds add up to for one address (32 connections
of 2 MiB each way, tables of adverts and records), and never a matter of time. Large requests and answers may
hold ARRIVING besides."""

LOG_BYTES = 64 << 10
"""Of one attack."""

STOP_SECONDS = 15.0
"""Ctrl-C ends a node in 3; the machine may be busy."""

DATAGRAMS = 4 * UNANSWERED_BURST + PROBES_PER_TARGET * COPIES * 2 + PUNCHES_PER_TARGET * len(list(pauses()))
"""To a bystander's address, whatever peers say: handshakes with their repeats, dial-backs, punches."""

CONNECTIONS = 2 * UNANSWERED_BURST
"""To a bystander over TCP: of route policy and DHT."""


class Bystander:
    """A UDP and a TCP port of somebody who has nothing to do with it, and what arrives there."""

    def __init__(self) -> None:
        self.datagrams = 0
        self.bytes = 0
        self.connections = 0
        self._udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._tcp = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self._udp.bind((BYSTANDER, 0))
        self.port: int = self._udp.getsockname()[1]
        self._tcp.bind((BYSTANDER, self.port))
        self._udp.setblocking(False)
        self._tcp.setblocking(False)
        self._tcp.listen(1000)
        self._over = False
        self._thread = threading.Thread(target=self._count, daemon=True)
        self._thread.start()

    def _count(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._udp, selectors.EVENT_READ)
            selector.register(self._tcp, selectors.EVENT_READ)
            while not self._over:
                for key, _ in selector.select(0.1):
                    if key.fileobj is self._udp:
                        self.bytes += len(self._udp.recv(65536))
                        self.datagrams += 1
                    else:
                        self._tcp.accept()[0].close()
                        self.connections += 1

    def close(self) -> None:
        self._over = True
        self._thread.join()
        self._udp.close()
        self._tcp.close()


@dataclass
class Scene:
    """The node under attack and what is around it."""

    node: NodeProcess
    target: Target
    call: bytes
    bystander: Bystander

    @property
    def pid(self) -> int:
        process = self.node._process
        assert process is not None
        return process.pid

    def rss(self) -> int:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found[1]) << 10


@dataclass
class Measured:
    """What an attack did to the honest client and to the node."""

    quiet: list[float] = field(default_factory=list)
    attacked: list[float] = field(default_factory=list)
    rss: list[int] = field(default_factory=list)
    done: dict[str, int] = field(default_factory=dict)

    def __str__(self) -> str:
        return (
            f"{1e3 * statistics.median(self.quiet):.2f} ms quiet ({len(self.quiet)} calls), "
            f"{1e3 * statistics.median(self.attacked):.2f} ms attacked ({len(self.attacked)} calls, worst "
            f"{1e3 * max(self.attacked):.0f} ms), RSS {self.rss[0] >> 20} -> {self.rss[-1] >> 20} MiB "
            f"(most {max(self.rss) >> 20}), {self.done}"
        )


@pytest.fixture(scope="module")
def model(parts: Any) -> ModelParts:
    found: ModelParts = parts("demo")
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, demo_model: Path) -> Home:
    folder = tmp_path_factory.mktemp("hostile")
    control, websocket = free_port(), free_port()
    return Home(
        folder / "node",
        folder / "store",
        demo_model,
        experts="0-11",
        swarm=f'control = "/ip4/127.0.0.1/tcp/{control}"\n',
        rest=f'[relay]\nserve = true\nwebsocket = "/ip4/127.0.0.1/tcp/{websocket}"\n',
    )


def ports_of(home: Home) -> tuple[int, int]:
    control, websocket = map(int, re.findall(r"/tcp/(\d+)", home.config.read_text()))
    return control, websocket


@pytest.fixture
def scene(place: Home, model: ModelParts) -> Iterator[Scene]:
    """A fresh node for each attack."""
    node = NodeProcess(place)
    log = place.folder / "log"
    log.unlink(missing_ok=True)
    bystander = Bystander()
    try:
        node.start().ready()
        yield Scene(node, target_of(place, model, bystander), call_of(model), bystander)
    finally:
        node.kill()
        bystander.close()


def call_of(model: ModelParts) -> bytes:
    """A call of 12 KB."""
    n_in = model.manifest.call(0, 0).n_in  # type: ignore[union-attr]
    return bytes(messages.encode_message(request(model, rows=12_000 // (4 * n_in))))


def target_of(home: Home, model: ModelParts, bystander: Bystander) -> Target:
    control, websocket = ports_of(home)
    swarm_id, quic = protocols_of(home)
    return Target(
        quic=home.address,
        control=f"/ip4/127.0.0.1/tcp/{control}/p2p/{home.peer_id}",
        websocket=websocket,
        swarm_id=swarm_id.hex(),
        model_id=model.stored.model_id,
        expert_call=call_of(model).hex(),
        large_call=bytes(messages.encode_message(request(model, rows=512))).hex(),
        quic_protocols=quic,
        control_protocols=told_protocols(control, home.peer_id),
        bystander=bystander.port,
    )


def protocols_of(home: Home) -> tuple[bytes, list[str]]:
    """The swarm's id, and all that a serving node answers to over QUIC, as its parts say."""
    config = load_config(home.config)
    listen = dataclasses.replace(config.swarm.listen, port=0)
    place = dataclasses.replace(
        Place.of(config), memory=None, swarm=dataclasses.replace(config.swarm, listen=listen)
    )
    node = SwarmNode(place, Role(serves=True))
    try:
        # those of the expert server are the role's (node.app.serving)
        own = {messages.PROTOCOL_ID, holdings.PROTOCOL_ID, cells.PROTOCOL_ID}
        served = {*node.endpoint.protocols(), *own}
        return node.membership.swarm.id, sorted(served)
    finally:
        node.close()


def told_protocols(port: int, peer_id: str) -> list[str]:
    """All that a running node answers to over TCP, as it tells everybody."""

    async def ask() -> list[str]:
        async with running_host() as host:
            await host.connect(
                ControlAddress.of("127.0.0.1", port).with_peer(parse_peer_id(peer_id)), timeout=5
            )
            while True:  # the DHT is served a moment after the rest
                info = await host.wait_identified(peer_id)
                if info is not None and {KAD, HOP_PROTOCOL} <= info.protocols:
                    return sorted(info.protocols)
                await trio.sleep(0.05)

    return trio.run(ask)


@contextmanager
def attacking(name: str, scene: Scene) -> Iterator[subprocess.Popen[str]]:
    """The hostile process, stopped until it is told to go."""
    target = scene.node.home.folder / "target.json"
    target.write_text(scene.target.to_json())
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.integration.hostile_peer", name, target],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


async def called(connection: Connection, call: bytes, seconds: float) -> list[float]:
    """Calls one after the other, each with its answer; how long each took."""
    took = []
    stream = connection.open_stream(messages.PROTOCOL_ID)
    end = time.perf_counter() + seconds
    while (begun := time.perf_counter()) < end:
        await stream.send_message(call)
        answer = await stream.receive_message(1 << 20)
        took.append(time.perf_counter() - begun)
        assert answer[5] == 2, "an answer, no refusal"
        await trio.sleep(0.002)
    stream.reset()
    return took


async def measured(scene: Scene, name: str) -> Measured:
    found = Measured()
    async with trio.open_nursery() as nursery:
        endpoint = Endpoint(Identity.generate(), listen=("127.0.0.1", 0))
        await nursery.start(endpoint.run)
        connection = await endpoint.connect(PeerAddress.parse(scene.target.quic))
        await called(connection, scene.call, 0.3)
        found.rss.append(scene.rss())
        with attacking(name, scene) as attacker:
            assert attacker.stdout is not None
            # it is at work once it has said what it has done
            said = await trio.to_thread.run_sync(attacker.stdout.readline)
            # what else the machine does only ever adds: an attack that hurts does so every time
            for _ in range(TRIES):
                found.quiet, found.attacked = [], []
                for _ in range(ROUNDS):
                    attacker.send_signal(signal.SIGSTOP)
                    await trio.sleep(0.15)
                    found.quiet += await called(connection, scene.call, QUIET_SECONDS)
                    attacker.send_signal(signal.SIGCONT)
                    await trio.sleep(0.15)
                    found.attacked += await called(connection, scene.call, ATTACK_SECONDS)
                    found.rss.append(scene.rss())
                    os.set_blocking(attacker.stdout.fileno(), False)
                    for line in attacker.stdout.read().splitlines():
                        said = line
                if hardly_slower(found):
                    break
            assert attacker.poll() is None, "the attacker has failed"
            found.done = json.loads(said)
            begun = time.monotonic()
            scene.node.interrupt()
            assert time.monotonic() - begun < STOP_SECONDS
        nursery.cancel_scope.cancel()
    return found


def hardly_slower(found: Measured) -> bool:
    quiet, attacked = statistics.median(found.quiet), statistics.median(found.attacked)
    return attacked <= max(SLOWER * quiet, quiet + SPARE)


@pytest.mark.parametrize("name", sorted(set(ATTACKS) - {"servers_that_do_not_exist"}))
def test_an_honest_client_hardly_notices(name: str, scene: Scene) -> None:
    async def main() -> Measured:
        with trio.fail_after(50):
            return await measured(scene, name)

    found = trio.run(main)
    bystander, log = scene.bystander, scene.node.log
    print(
        f"\n{name}: {found}; {len(log)} bytes of log; bystander: {bystander.datagrams} datagrams, "
        f"{bystander.bytes} bytes, {bystander.connections} connections"
    )
    assert sum(found.done.values()) > 0, "nothing was tried"
    assert hardly_slower(found), str(found)
    held = ARRIVING if name == "slow_readers_of_experts" else 0
    assert max(found.rss) - found.rss[0] < GROWTH + held, str(found)
    assert len(log) < LOG_BYTES, log[:2000]
    for line in log.splitlines():
        assert {"at", "level", "logger", "text"} <= json.loads(line).keys(), f"no line of its own: {line}"
    assert bystander.datagrams <= DATAGRAMS and bystander.connections <= CONNECTIONS


def test_a_backbone_is_not_led_astray_by_servers_that_do_not_exist(
    tmp_path: Path, demo_model: Path, model: ModelParts
) -> None:
    """It knows one node, hears of another from it, and of hundreds that a hostile peer has made up."""
    store = tmp_path / "store"
    known = NodeProcess(Home(tmp_path / "known", store, demo_model, experts="0-5"))
    other = NodeProcess(
        Home(tmp_path / "other", store, demo_model, experts="6-11", peers=[known.home.address])
    )
    asks = Home(
        tmp_path / "asks",
        store,
        demo_model,
        peers=[known.home.address],
        rest=f'[backbone]\nmodel = "{demo_model}"\ncontext = 256\n',
    )
    bystander = Bystander()
    try:
        with running([known, other]):
            start_all([known, other])
            wait_whole([known, other], 30)
            swarm_id, _ = protocols_of(known.home)
            target = Target(
                quic=known.home.address,
                control="",
                websocket=0,
                swarm_id=swarm_id.hex(),
                model_id=model.stored.model_id,
                expert_call="",
                large_call="",
                quic_protocols=[],
                control_protocols=[],
                bystander=bystander.port,
            )
            scene = Scene(known, target, b"", bystander)
            with attacking("servers_that_do_not_exist", scene):
                known.wait(lambda: len(known.table) > 400, 30, "the table to fill")
                begun = time.monotonic()
                done = generate(asks.config)
                print(f"\ngenerated in {time.monotonic() - begun:.1f} s, {bystander.datagrams} datagrams")
            assert done.returncode == 0, done
            routes = json.loads(done.stdout)["routes"]
            assert {route["peer"] for route in routes} == {known.peer_id, other.peer_id}
            assert bystander.datagrams <= DATAGRAMS
    finally:
        bystander.close()
