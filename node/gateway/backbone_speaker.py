"""The speaker that is a backbone and its decoder."""

from __future__ import annotations

import time
from contextlib import AbstractAsyncContextManager

from node.decode.backbone import Backbone
from node.decode.continuous.ask import Ask
from node.decode.continuous.decoder import Answering, Decoder
from node.engine.tokenizer import Tokenizer
from node.gateway.speaker import Chat


class BackboneSpeaker:
    """A `Speaker`.

    Args:
        name: what the API calls the model.
        chat: its template; None if it comes without one.

    Raises:
        EngineError: the model has no tokenizer.
    """

    def __init__(self, backbone: Backbone, decoder: Decoder, name: str, *, chat: Chat | None = None) -> None:
        model = backbone.model
        self.name = name
        self.aliases = (f"{name}.gguf",)
        self.model_id = backbone.stored.model_id
        self.architecture = backbone.stored.manifest.architecture
        self.created = int(time.time())
        self.n_ctx = decoder.n_ctx
        self.n_vocab = model.n_vocab
        self.tokenizer = Tokenizer(model)
        self.grammars = model.grammars
        self.chat = chat
        self._decoder = decoder

    def ask(self, ask: Ask) -> AbstractAsyncContextManager[Answering]:
        """As `Decoder.ask`."""
        return self._decoder.ask(ask)
