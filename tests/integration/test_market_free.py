"""Without [market] nothing of it exists: no file, no handler, no quote, no hook, not even its modules."""

from __future__ import annotations

import functools
import subprocess
import sys
from pathlib import Path

import pytest
import trio

from node.app.running import Running, run_node
from node.config import load_config
from routing.multiaddr import PeerAddress
from routing.quic.errors import StreamClosed
from routing.wire.advert import decode_advert
from tests.served import listening
from tests.swarm_process import Home, NodeProcess, running

pytestmark = pytest.mark.slow

PROTOCOL = "/panal/market/1"
FILES = ("market.db", "market.lock", "quotes.bin", "served.bin", "audit.db", "spent.json")


def home(folder: Path, model: Path) -> Home:
    rest = f'[backbone]\nmodel = "{model}"\ncontext = 64\n[http]\nlisten = "off"\n'
    return Home(
        folder / "node", folder / "store", model, "0-11", swarm='lan = false\ncontrol = "off"', rest=rest
    )


def test_nothing_of_the_market_is_made(tmp_path: Path, demo_model: Path) -> None:
    where = home(tmp_path, demo_model)
    config = load_config(where.config)
    assert config.market.is_free

    async def look(running: Running) -> None:
        node, answering = running.node, running.answering
        with trio.fail_after(60):
            await answering.ready()
        assert answering.live is not None
        assert answering.live.port._star.on_answer is None
        assert not {PROTOCOL, "/panal/vouch/1"} & set(node.endpoint.protocols())
        assert node.last_words == []
        assert decode_advert(node._announcer.data).advert.quotes == []
        async with listening({}) as stranger:
            connection = await stranger.connect(PeerAddress.parse(running.address))
            stream = connection.open_stream(PROTOCOL)
            with pytest.raises(StreamClosed), trio.fail_after(30):
                await stream.send_message(b"hello")
                await stream.receive_message(100)
        assert not [name for name in FILES if (where.folder / name).exists()]

    trio.run(functools.partial(run_node, config, on_ready=look))
    assert not [name for name in FILES if (where.folder / name).exists()]


def test_its_modules_are_not_imported(tmp_path: Path, demo_model: Path) -> None:
    def launch(command: list[str], **how: object) -> subprocess.Popen[str]:
        assert command[0] == sys.executable
        return subprocess.Popen([sys.executable, "-X", "importtime", *command[1:]], **how)  # type: ignore[call-overload, no-any-return]

    node = NodeProcess(home(tmp_path, demo_model), launch)
    with running([node]):
        node.start().ready()
        node.interrupt()
    imported = {line.rpartition("|")[2].strip() for line in node.log.splitlines() if "import time:" in line}
    assert "node.app.running" in imported
    assert not [name for name in imported if name.startswith("node.market") or name.endswith("_sqlite")]
