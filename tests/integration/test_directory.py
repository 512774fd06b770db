"""The DHT directory: nodes over real sockets, the store's bounds, a foreign server (py-libp2p)."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from routing.control_address import ControlAddress
from routing.errors import PeerError
from routing.identity import Identity, PeerId
from routing.libp2p import kad_server, kad_store, kad_table
from routing.libp2p.advert_records import (
    RECORD_KEY_BYTES,
    RecordRefused,
    check_record,
    provider_key,
    record_key,
)
from routing.libp2p.delimited import DelimitedReader, write_delimited
from routing.libp2p.directory import Directory, Mode
from routing.libp2p.host import ControlHost
from routing.libp2p.kad_lookup import ALPHA, MAX_ASKED, Lookup
from routing.libp2p.kad_store import KadStore
from routing.libp2p.kad_table import K, RoutingTable
from routing.libp2p.kad_wire import (
    KAD,
    KadPeer,
    Kind,
    Message,
    decode_message,
    encode_message,
    position_of,
    position_of_peer,
)
from routing.wire.advert import Advert, AdvertError, sign_advert
from routing.wire.holdings import Slice

SWARM_ID = bytes(range(32))
OTHER_SWARM = bytes(32)
LIMIT = 30.0


@dataclass
class Node:
    identity: Identity
    host: ControlHost
    directory: Directory

    @property
    def address(self) -> ControlAddress:
        return ControlAddress.parse(self.host.local_addresses[0]).with_peer(self.host.peer_id)

    async def join(self, bootstrap: Node) -> int:
        await self.host.connect(bootstrap.address, timeout=5)
        return await self.directory.join([bootstrap.host.peer_id])


def make_advert(
    identity: Identity, seq: int = 1, swarm_id: bytes = SWARM_ID, issued_at: float | None = None
) -> bytes:
    at = time.time() if issued_at is None else issued_at
    return sign_advert(
        Advert(swarm_id=swarm_id, peer_id=identity.peer_id, instance=1, seq=seq, issued_at=int(at)), identity
    )


@asynccontextmanager
async def nodes(*modes: Mode, swarm_id: bytes = SWARM_ID) -> AsyncIterator[list[Node]]:
    """Running nodes; servers listen, clients only dial."""
    made = []
    async with trio.open_nursery() as nursery:
        for mode in modes:
            identity = Identity.generate()
            host = ControlHost(identity, listen=("127.0.0.1", 0) if mode is Mode.SERVER else None)
            directory = Directory(host, swarm_id, clock=time.time, mode=mode)
            await nursery.start(host.run)
            await nursery.start(directory.run)
            made.append(Node(identity, host, directory))
        yield made
        nursery.cancel_scope.cancel()


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        with trio.fail_after(LIMIT):
            await test()

    trio.run(limited)


def test_all_find_all_through_one_bootstrap_peer() -> None:
    async def test() -> None:
        async with nodes(*[Mode.SERVER] * 6, *[Mode.CLIENT] * 2) as all_nodes:
            for node in all_nodes[1:]:
                assert await node.join(all_nodes[0]) >= 1
            adverts = {node.identity.peer_id: make_advert(node.identity) for node in all_nodes}
            for node in all_nodes:
                assert await node.directory.publish(adverts[node.identity.peer_id], ["m"]) >= 5
            for node in all_nodes:
                others = {advert for peer, advert in adverts.items() if peer != node.identity.peer_id}
                assert set(await node.directory.find()) == others
            first, last = all_nodes[0], all_nodes[-1]
            assert await last.directory.find_peer(first.identity.peer_id) == adverts[first.identity.peer_id]
            newer = make_advert(first.identity, seq=2)
            await first.directory.publish(newer, [])
            assert await last.directory.find_peer(first.identity.peer_id) == newer
            assert await last.directory.find_peer(Identity.generate().peer_id) is None
            # clients are in nobody's table
            assert all(last.identity.peer_id not in node.directory.table for node in all_nodes)

    run(test)


def test_found_by_model_only_if_the_advert_says_so() -> None:
    """A provider record is a hint: who lists itself under a model and does not serve it is left out."""

    async def test() -> None:
        async with nodes(Mode.SERVER, Mode.CLIENT, Mode.CLIENT, Mode.CLIENT) as (boot, serves, lies, seeker):
            for node in (serves, lies, seeker):
                await node.join(boot)
            model = "ab" * 32
            held = Slice("experts", model, "qwen2moe", experts=[(0, 3, [(0, 5)])])
            advert = sign_advert(
                Advert(
                    swarm_id=SWARM_ID,
                    peer_id=serves.identity.peer_id,
                    instance=1,
                    seq=1,
                    issued_at=int(time.time()),
                    slices=[held],
                ),
                serves.identity,
            )
            await serves.directory.publish(advert, [model])
            await lies.directory.publish(make_advert(lies.identity), [model])
            assert await seeker.directory.find(model) == [advert]
            assert len(await seeker.directory.find()) == 2

    run(test)


def test_swarms_do_not_mix() -> None:
    async def test() -> None:
        async with (
            nodes(Mode.SERVER, Mode.CLIENT) as (boot, ours),
            nodes(Mode.CLIENT, swarm_id=OTHER_SWARM) as (foreign,),
        ):
            await ours.join(boot)
            await foreign.join(boot)
            # the bootstrap peer is of another swarm than one of them, and serves both
            assert await ours.directory.publish(make_advert(ours.identity), []) == 1
            theirs = make_advert(foreign.identity, swarm_id=OTHER_SWARM)
            assert await foreign.directory.publish(theirs, []) == 1
            assert await ours.directory.find() == []
            assert await ours.directory.find_peer(foreign.identity.peer_id) is None

    run(test)


def test_a_server_that_died_costs_one_timeout_and_is_dropped() -> None:
    async def test() -> None:
        async with nodes(Mode.SERVER, Mode.SERVER, Mode.CLIENT) as (boot, gone, seeker):
            await gone.join(boot)
            await seeker.join(boot)
            assert len(seeker.directory.table) == 2
            async with nodes(Mode.SERVER) as (brief,):
                await brief.join(boot)
                advert = make_advert(brief.identity)
                await brief.directory.publish(advert, [])
                await seeker.directory.find()
            for _ in range(3):
                assert await seeker.directory.find() == [advert]  # held by the others
            assert brief.identity.peer_id not in seeker.directory.table

    run(test)


def test_a_client_that_becomes_a_server_is_found() -> None:
    async def test() -> None:
        async with nodes(Mode.SERVER, Mode.SERVER) as (boot, node):
            node.directory.set_mode(Mode.CLIENT)
            await node.join(boot)
            await boot.host.wait_identified(node.host.peer_id)
            assert node.host.peer_id not in boot.directory.table
            node.directory.set_mode(Mode.SERVER)
            while node.host.peer_id not in boot.directory.table:
                await trio.sleep(0.01)
            node.directory.set_mode(Mode.CLIENT)
            while node.host.peer_id in boot.directory.table:
                await trio.sleep(0.01)

    run(test)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"\xff\xff\xff",
        encode_message(Message(Kind.GET_VALUE)),  # without a key
        encode_message(Message(Kind.GET_VALUE, bytes(200))),
        encode_message(Message(Kind.PUT_VALUE, b"/panal/x", b"no advert")),
        encode_message(Message(Kind.PUT_VALUE, b"/ipns/x", b"foreign")),
        b"\x08\x09",  # an unknown kind
    ],
)
def test_bad_requests_reset_their_stream_only(request_bytes: bytes) -> None:
    async def test() -> None:
        async with nodes(Mode.SERVER, Mode.CLIENT) as (server, client):
            await client.join(server)
            stream = await client.host.open_stream(server.host.peer_id, KAD, timeout=5)
            await write_delimited(stream, request_bytes)
            with pytest.raises(PeerError):
                if await DelimitedReader(stream).read(1000) is None:
                    raise AssertionError("ended in good order")
            assert server.directory.store.record_count == 0
            assert await client.directory.publish(make_advert(client.identity), []) == 1

    run(test)


def test_a_flood_of_requests_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kad_server, "REQUEST_BURST", 50)
    monkeypatch.setattr(kad_server, "REQUESTS_PER_SECOND", 0)

    async def test() -> None:
        async with nodes(Mode.SERVER, Mode.CLIENT) as (server, client):
            await client.host.connect(server.address, timeout=5)
            stream = await client.host.open_stream(server.host.peer_id, KAD, timeout=5)
            reader = DelimitedReader(stream)
            with pytest.raises(PeerError):
                for _ in range(51):
                    await write_delimited(stream, encode_message(Message(Kind.PING)))
                    assert await reader.read(100) is not None

    run(test)


def test_hearsay_of_private_addresses_is_not_dialed() -> None:
    async def test() -> None:
        async with nodes(Mode.CLIENT) as (node,):
            peer = Identity.generate().peer_id
            told = [
                KadPeer(
                    peer,
                    tuple(
                        ControlAddress.parse(f"/ip4/{host}/tcp/80")
                        for host in ("127.0.0.1", "192.168.1.1", "8.8.8.8")
                    ),
                )
            ]
            usable = {
                informer: [address.host for address in node.directory._usable(told, informer)[0].addresses]
                for informer in ("9.9.9.9", "10.0.0.9", "127.0.0.1", "relay 12D3")
            }
            assert usable == {
                "9.9.9.9": ["8.8.8.8"],
                "10.0.0.9": ["192.168.1.1", "8.8.8.8"],
                "127.0.0.1": ["127.0.0.1", "192.168.1.1", "8.8.8.8"],
                "relay 12D3": ["8.8.8.8"],
            }

    run(test)


# records


def test_record_keys() -> None:
    identity = Identity.generate()
    key = record_key(SWARM_ID, identity.peer_id)
    assert len(key) == RECORD_KEY_BYTES and key.decode("ascii").count("/") == 2
    assert key != record_key(OTHER_SWARM, identity.peer_id)
    assert (
        len({provider_key(SWARM_ID, None), provider_key(SWARM_ID, "m"), provider_key(OTHER_SWARM, "m")}) == 3
    )
    now = time.time()
    assert check_record(key, make_advert(identity), now=now).advert.peer_id == identity.peer_id
    with pytest.raises(RecordRefused, match="another key"):
        check_record(key, make_advert(Identity.generate()), now=now)
    with pytest.raises(RecordRefused, match="namespace"):
        check_record(b"/pk/" + key, make_advert(identity), now=now)
    with pytest.raises(AdvertError, match="expired"):
        check_record(key, make_advert(identity, issued_at=now - 5000), now=now)
    forged = bytearray(make_advert(identity))
    forged[20] ^= 1
    with pytest.raises(AdvertError, match="signature"):
        check_record(key, bytes(forged), now=now)


def test_store_keeps_the_newest_until_it_ends() -> None:
    identity, store, now = Identity.generate(), KadStore(), 1_800_000_000.0
    key = record_key(SWARM_ID, identity.peer_id)
    old, new = make_advert(identity, 1, issued_at=now), make_advert(identity, 2, issued_at=now)
    assert store.put_record(key, new, origin="a", now=now)
    assert not store.put_record(key, old, origin="b", now=now)  # a replay
    assert store.record(key, now=now) == new
    assert store.record(key, now=now + 601) == new  # clocks may differ
    assert store.record(key, now=now + 901) is None
    store.expire(now + 901)
    assert store.record_count == 0


def test_a_flood_pushes_out_only_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kad_store, "MAX_RECORDS", 12)
    monkeypatch.setattr(kad_store, "MAX_RECORDS_PER_ORIGIN", 8)
    monkeypatch.setattr(kad_store, "MAX_PROVIDERS", 12)
    monkeypatch.setattr(kad_store, "MAX_PROVIDERS_PER_ORIGIN", 8)
    monkeypatch.setattr(kad_store, "MAX_KEYS_PER_PROVIDER", 3)
    store, now = KadStore(), time.time()
    honest = [Identity.generate() for _ in range(4)]
    for number, identity in enumerate(honest):
        key = record_key(SWARM_ID, identity.peer_id)
        store.put_record(key, make_advert(identity), origin=f"10.0.0.{number}", now=now)
        store.add_provider(b"swarm", KadPeer(identity.peer_id), origin=f"10.0.0.{number}", now=now)
    for number in range(40):
        flooder = Identity.generate()
        key, origin = record_key(SWARM_ID, flooder.peer_id), f"192.0.2.{number % 2}"
        store.put_record(key, make_advert(flooder), origin=origin, now=now)
        store.add_provider(b"swarm", KadPeer(flooder.peer_id), origin=origin, now=now)
    assert store.record_count == 12 and store.provider_count == 12
    for identity in honest:
        assert store.record(record_key(SWARM_ID, identity.peer_id), now=now) is not None
    listed = {peer.peer_id for peer in store.providers(b"swarm", 100, now=now)}
    assert {identity.peer_id for identity in honest} <= listed and len(listed) == 12
    greedy = Identity.generate().peer_id
    for number in range(10):
        store.add_provider(b"key %d" % number, KadPeer(greedy), origin="10.0.0.9", now=now)
    assert [bool(store.providers(b"key %d" % number, 9, now=now)) for number in range(10)] == [False] * 7 + [
        True
    ] * 3
    store.expire(now + kad_store.PROVIDER_SECONDS)
    assert store.provider_count == 0 and not store._by_key and not store._keys_of


# table, lookup, messages


def test_table_is_bounded_by_bucket_and_subnet(monkeypatch: pytest.MonkeyPatch) -> None:
    table = RoutingTable(Identity.generate().peer_id)
    for _ in range(200):
        table.add(Identity.generate().peer_id, ())
    # half of all ids share no bit with ours, a quarter one, ...: K of each at most
    assert 3 * K <= len(table) < 8 * K
    rented = (ControlAddress.parse("/ip4/8.8.8.8/tcp/1"),)
    taken = sum(RoutingTable.add(table, Identity.generate().peer_id, rented) for _ in range(100))
    assert taken <= kad_table.MAX_PER_SUBNET
    peer = table.all()[0].peer_id
    table.failed(peer)
    assert peer in table
    table.failed(peer)
    assert peer not in table


def test_lookup_finds_the_nearest_in_a_network_of_500() -> None:
    peers = [KadPeer(Identity.generate().peer_id) for _ in range(500)]
    positions = {peer.peer_id: position_of_peer(peer.peer_id) for peer in peers}
    target = position_of(b"some key")

    def knows(who: PeerId) -> list[KadPeer]:
        """What a server's table would hold, of which it names the K nearest to the target."""
        buckets: dict[int, list[KadPeer]] = {}
        for peer in peers:
            if peer.peer_id != who:
                bucket = (positions[peer.peer_id] ^ positions[who]).bit_length()
                buckets.setdefault(bucket, []).append(peer)
        known = [peer for bucket in buckets.values() for peer in bucket[:K]]
        return sorted(known, key=lambda peer: positions[peer.peer_id] ^ target)[:K]

    lookup = Lookup(target, Identity.generate().peer_id, peers[:3])
    asked = 0
    while not lookup.over:
        chosen = lookup.next_peers()
        assert 0 < len(chosen) <= ALPHA
        for peer in chosen:
            asked += 1
            lookup.answered(peer.peer_id, knows(peer.peer_id))
    nearest = sorted(peers, key=lambda peer: positions[peer.peer_id] ^ target)[:K]
    assert [peer.peer_id for peer in lookup.result()] == [peer.peer_id for peer in nearest]
    assert asked <= MAX_ASKED


def test_lookup_among_liars_ends() -> None:
    lookup = Lookup(0, Identity.generate().peer_id, [KadPeer(Identity.generate().peer_id)])
    asked = 0
    while not lookup.over:
        for number, peer in enumerate(lookup.next_peers()):
            asked += 1
            if (asked + number) % 3:
                lookup.answered(peer.peer_id, [KadPeer(Identity.generate().peer_id) for _ in range(30)])
            else:
                lookup.failed(peer.peer_id)
    assert asked <= MAX_ASKED


@given(st.binary(max_size=300))
def test_any_bytes_give_a_message_or_a_value_error(data: bytes) -> None:
    try:
        message = decode_message(data)
    except ValueError:
        return
    assert decode_message(encode_message(message)) == message


@given(
    kind=st.sampled_from(Kind),
    key=st.binary(min_size=1, max_size=64),
    value=st.none() | st.binary(max_size=200),
    hosts=st.lists(st.ip_addresses().filter(lambda ip: not ip.is_unspecified), max_size=3),
)
def test_messages_round_trip(kind: Kind, key: bytes, value: bytes | None, hosts: list[object]) -> None:
    addresses = tuple(dict.fromkeys(ControlAddress.of(str(host), 4001) for host in hosts))
    peers = (KadPeer(SOMEBODY, addresses), KadPeer(SOMEBODY))
    message = Message(kind, key, value, closer=peers, providers=peers[1:])
    assert decode_message(encode_message(message)) == message


SOMEBODY = Identity.generate().peer_id


# a foreign implementation


@pytest.mark.slow
def test_advert_through_py_libp2ps_dht() -> None:
    libp2p = pytest.importorskip("libp2p")
    from libp2p.crypto.ed25519 import create_new_key_pair
    from libp2p.crypto.x25519 import create_new_key_pair as create_noise_pair
    from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
    from libp2p.records.validator import NamespacedValidator, Validator
    from libp2p.security.noise.transport import PROTOCOL_ID, Transport
    from libp2p.tools.anyio_service import background_trio_service
    from multiaddr import Multiaddr

    class AdvertValidator(Validator):  # type: ignore[misc]
        def validate(self, key: str, value: bytes) -> None:
            check_record(key.encode(), value, now=time.time())

        def select(self, key: str, values: list[bytes]) -> int:
            seqs = [check_record(key.encode(), value, now=time.time()).advert.seq for value in values]
            return seqs.index(max(seqs))

    async def test() -> None:
        keys = create_new_key_pair()
        security = {PROTOCOL_ID: Transport(keys, noise_privkey=create_noise_pair().private_key)}
        theirs = libp2p.new_host(key_pair=keys, sec_opt=security)
        validator = NamespacedValidator({"panal": AdvertValidator()}, strict_validation=True)
        async with theirs.run(listen_addrs=[Multiaddr("/ip4/127.0.0.1/tcp/0")]):
            dht = KadDHT(theirs, DHTMode.SERVER, validator=validator, strict_validation=True)
            async with background_trio_service(dht), nodes(Mode.CLIENT, Mode.CLIENT) as (publisher, seeker):
                text = next(str(each) for each in theirs.get_addrs() if "/127.0.0.1/" in str(each))
                address = ControlAddress.parse(text)
                for node in (publisher, seeker):
                    await node.host.connect(address, timeout=5)
                    assert await node.directory.join([str(theirs.get_id())]) == 1
                advert = make_advert(publisher.identity)
                assert await publisher.directory.publish(advert, []) == 1
                assert await seeker.directory.find() == [advert]
                assert await seeker.directory.find_peer(publisher.identity.peer_id) == advert

    run(test)
