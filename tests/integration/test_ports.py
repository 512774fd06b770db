"""Several nodes on one machine: who was not told where to be goes elsewhere when a port is taken."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import trio

from node.config import parse_config
from node.http.listening import FIRST_PORTS, DoorSettings, bind
from node.swarm.node import Role, SwarmNode
from node.swarm.place import Place
from routing.errors import LocalError

HOST = "127.0.0.1"


def taken(kind: socket.SocketKind, port: int = 0) -> socket.socket:
    held = socket.socket(socket.AF_INET, kind)
    held.bind((HOST, port))
    if kind is socket.SOCK_STREAM:
        held.listen()
    return held


def place(folder: Path, swarm: str, relay: str = "") -> Place:
    text = f'identity = "{folder}/identity.key"\n[swarm]\nlan = false\n{swarm}\n{relay}'
    return Place.of(parse_config(text, folder / "node.toml", folder))


def test_the_page_leaves_the_control_planes_port_alone() -> None:
    with bind(DoorSettings(avoid=frozenset(FIRST_PORTS))) as door:
        assert door.getsockname()[1] not in FIRST_PORTS


def test_a_chosen_page_is_there_or_nowhere() -> None:
    with taken(socket.SOCK_STREAM) as held, pytest.raises(LocalError, match=r"http\.listen"):
        bind(DoorSettings(listen=held.getsockname()))


def test_who_only_asks_takes_another_udp_port(tmp_path: Path) -> None:
    with taken(socket.SOCK_DGRAM) as held:
        port = held.getsockname()[1]
        where = place(tmp_path, f'listen = "/ip4/{HOST}/udp/{port}/quic-v1"')
        with pytest.raises(LocalError, match="in use"):
            SwarmNode(where, Role(serves=True))
        node = SwarmNode(where, Role(serves=True, any_port=True))
        try:
            assert node.endpoint.local_address[1] != port
        finally:
            node.close()


@pytest.mark.parametrize("said", ["nothing", "control", "relay"])
def test_a_control_plane_that_nobody_placed_takes_another_tcp_port(tmp_path: Path, said: str) -> None:
    async def port_of(where: Place) -> int:
        node = SwarmNode(where, Role(serves=True))
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(node.run)
                assert node.control is not None
                port = int(node.control.host.local_addresses[0].rpartition("/")[2])
                nursery.cancel_scope.cancel()
            return port
        finally:
            node.close()

    with taken(socket.SOCK_STREAM) as held:
        port = held.getsockname()[1]
        swarm = f'listen = "/ip4/{HOST}/udp/{port}/quic-v1"'
        if said == "control":
            swarm += f'\ncontrol = "/ip4/{HOST}/tcp/{port}"'
        where = place(tmp_path, swarm, "[relay]\nserve = true" if said == "relay" else "")
        if said == "nothing":
            assert trio.run(port_of, where) != port
        else:
            with pytest.RaisesGroup(
                pytest.RaisesExc(LocalError, match=r"swarm\.control"), flatten_subgroups=True
            ):
                trio.run(port_of, where)
