"""A server that dies while it is needed: one clear error, and the next request works when it is back."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from node.decode.live_backbone import BackboneSettings, LiveBackbone, live_backbone
from node.decode.not_covered import NotCovered
from node.decode.session import Session
from node.engine import library as llama
from node.engine.sampler import Sampler, SamplingSettings
from node.engine.tokenizer import Tokenizer
from node.importing import import_model
from node.local_swarm import LocalSwarm
from node.model.store import Store, StoredModel
from node.swarm.place import Place
from routing.dispatch.errors import ExpertsUnavailable
from routing.identity import Identity

pytestmark = pytest.mark.slow

PROMPT = "def read(path):\n"
SERVERS = 3
LOST = 1
BEFORE, AFTER = 4, 12


@pytest.fixture
def stored(tmp_path: Path, demo_model: Path) -> StoredModel:
    return import_model(llama.load(), Store(tmp_path / "store"), demo_model)


@pytest.fixture
def swarm(tmp_path: Path, stored: StoredModel, demo_model: Path) -> Iterator[LocalSwarm]:
    with LocalSwarm(tmp_path, tmp_path / "store", threads=1) as running:
        running.start(demo_model, stored.manifest, SERVERS)
        yield running


def generate(live: LiveBackbone, session: Session, sampler: Sampler, count: int) -> None:
    for _ in range(count):
        session.append([session.next_token(sampler)])


def test_a_lost_server_is_named_and_taken_back(
    tmp_path: Path, stored: StoredModel, swarm: LocalSwarm
) -> None:
    async def main() -> tuple[list[int], list[int], ExpertsUnavailable]:
        async with live_backbone(
            llama.load(),
            stored,
            place=Place.among(swarm.addresses, identity=Identity.load_or_create(tmp_path / "me.key")),
            settings=BackboneSettings(threads=1, context=256),
        ) as live:
            await live.covered()
            tokenizer = Tokenizer(live.backbone.model)
            sampler = Sampler(llama.load(), SamplingSettings())
            calm = Session(live.backbone)
            calm.append(tokenizer.encode(PROMPT))
            await live.in_thread(generate, live, calm, sampler, BEFORE + AFTER)
            live.backbone.context.clear()

            session = Session(live.backbone)
            session.append(tokenizer.encode(PROMPT))
            await live.in_thread(generate, live, session, sampler, BEFORE)
            swarm.kill(LOST)
            with pytest.raises(ExpertsUnavailable) as failure:
                await live.in_thread(generate, live, session, sampler, AFTER)
            done = len(session.tokens) - len(tokenizer.encode(PROMPT))
            with pytest.raises(ExpertsUnavailable):  # at once again, not after a deadline
                begun = time.monotonic()
                await live.in_thread(generate, live, session, sampler, 1)
            assert time.monotonic() - begun < 10

            await trio.to_thread.run_sync(swarm.restart, LOST)
            await live.covered(20)
            await live.in_thread(generate, live, session, sampler, BEFORE + AFTER - done)
            sampler.close()
            return calm.tokens, session.tokens, failure.value

    expected, found, error = trio.run(main)
    assert found == expected
    text = str(error)
    peer = swarm.addresses[LOST].peer_id
    assert peer is not None and peer in text
    assert "layer " in text and "expert" in text
    assert "\n" not in text
    assert set(error.experts) <= {4, 5, 6, 7}
    assert error.peer == peer


def test_what_nobody_holds_is_named_before_the_first_token(
    tmp_path: Path, stored: StoredModel, swarm: LocalSwarm
) -> None:
    async def main() -> str:
        async with live_backbone(
            llama.load(),
            stored,
            place=Place.among(swarm.addresses[:2], identity=Identity.load_or_create(tmp_path / "me.key")),
            settings=BackboneSettings(threads=1, context=256),
        ) as live:
            with pytest.raises(NotCovered) as failure:
                await live.covered(1)
            return str(failure.value)

    assert "layers 0-3: experts 8-11" in trio.run(main)
