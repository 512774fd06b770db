"""APIs over expert servers that are processes: of a `panal run`, and of a node here to look into."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import trio
from openai import OpenAI

from node.config import render_config
from node.config.meaning import load_config
from node.decode.configured import configured_backbone
from node.decode.continuous.decoder import Decoder
from node.decode.continuous.opening import DecoderSettings
from node.decode.live_backbone import LiveBackbone
from node.gateway.app import make_gateway
from node.gateway.backbone_speaker import BackboneSpeaker
from node.gateway.speaker import Answered, Chat, NotReady, Speaker
from node.http.door import HttpDoor
from node.http.listening import DoorSettings
from node.local_swarm import LocalSwarm
from node.model.manifest import Manifest
from tests.open_door import ask, until
from tests.swarm_process import Home, NodeProcess, running

WAIT_SECONDS = 60.0
"""For a model to be opened and its peers to be found; the machine may be busy."""


class ApiNode:
    """A swarm of server processes, and here their backbone behind an HTTP door.

    Attributes:
        answered: what the gateway has told of answers.
        standing: what the gateway is told; may be changed.
    """

    def __init__(
        self,
        folder: Path,
        store: Path,
        model: Path,
        manifest: Manifest,
        *,
        servers: int = 3,
        settings: DecoderSettings | None = None,
        context: int = 512,
        chat: Callable[[LiveBackbone], Chat | None] = lambda live: None,
    ) -> None:
        self._model = model
        self._settings = settings or DecoderSettings(sessions=4, context=context)
        self._chat = chat
        self._ends = ExitStack()
        self.swarm = self._ends.enter_context(LocalSwarm(folder, store, threads=1))
        self.swarm.start(model, manifest, servers)
        self.config = folder / "api.toml"
        self.config.write_text(
            render_config(
                name="api",
                store=str(store),
                identity="api.key",
                listen="/ip4/127.0.0.1/udp/0/quic-v1",
                peers=[str(address) for address in self.swarm.addresses],
                threads=1,
                model=str(model),
                context=64,
            ),
            encoding="utf-8",
        )
        self.door = HttpDoor(DoorSettings(("127.0.0.1", 0)))
        self.answered: list[Answered] = []
        self.standing: Speaker | NotReady = NotReady(model.stem, "opening the model")
        self.decoder: Decoder | None = None
        self.door.mount(make_gateway(lambda: self.standing, self.answered.append))
        self._scope = trio.CancelScope()
        self._ready = threading.Event()
        self._token: trio.lowlevel.TrioToken | None = None
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._main, daemon=True)

    def _main(self) -> None:
        try:
            trio.run(self._run)
        except BaseException as error:
            self._failure = error
            raise
        finally:
            self._ready.set()

    async def _run(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        with self._scope:
            async with trio.open_nursery() as nursery:
                await nursery.start(self.door.run)
                async with configured_backbone(load_config(self.config), None, context=64) as live:
                    self.live = live
                    self.decoder = decoder = Decoder(live, self._settings)
                    async with trio.open_nursery() as inner:
                        await inner.start(decoder.run)
                        self.standing = BackboneSpeaker(
                            live.backbone, decoder, self._model.stem, chat=self._chat(live)
                        )
                        self._ready.set()

    @property
    def speaker(self) -> Speaker:
        assert not isinstance(self.standing, NotReady)
        return self.standing

    @property
    def url(self) -> str:
        return f"{self.door.url}/v1"

    def client(self) -> OpenAI:
        """An OpenAI client of this node that tries once."""
        return client_of(self.url)

    def __enter__(self) -> ApiNode:
        self._thread.start()
        assert self._ready.wait(WAIT_SECONDS)
        if self._failure is not None:
            self.__exit__(None, None, None)
            raise self._failure
        return self

    def end(self) -> None:
        """Cancel the node and wait for its end."""
        if self._token is not None and self._thread.is_alive():
            self._token.run_sync_soon(self._scope.cancel)
        self._thread.join(WAIT_SECONDS)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()
        self._ends.close()


@contextmanager
def api_process(
    folder: Path, store: Path, model: Path, manifest: Manifest, *, servers: int = 3, backbone: str = ""
) -> Iterator[str]:
    """A swarm of `panal run` processes, the last of them with a backbone: the URL of its API.

    Args:
        backbone: further lines of [backbone].
    """
    with LocalSwarm(folder / "servers", store, threads=1) as swarm:
        swarm.start(model, manifest, servers)
        home = Home(
            folder / "api",
            store,
            model,
            peers=[str(address) for address in swarm.addresses],
            rest=f'[http]\nlisten = "127.0.0.1:0"\n[backbone]\nmodel = "{model}"\n{backbone}\n',
        )
        node = NodeProcess(home)
        with running([node]):
            node.start().ready()
            url = json.loads((home.folder / "http.json").read_text(encoding="utf-8"))["address"]
            place = urlsplit(url)
            assert place.hostname is not None and place.port is not None
            where = place.hostname, place.port
            until(lambda: ask(where, "GET /health HTTP/1.1").status == 200, WAIT_SECONDS)
            yield f"{url}/v1"


def client_of(url: str) -> OpenAI:
    """An OpenAI client that tries once."""
    return OpenAI(base_url=url, api_key="none", max_retries=0)
