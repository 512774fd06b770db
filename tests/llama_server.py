"""llama.cpp's own server, as the wheel has it, in a process of its own: what it chooses is the reference."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SERVE = """
import sys, xllamacpp
parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.n_ctx, parameters.n_parallel, parameters.warmup = 512, 1, False
parameters.no_extra_bufts = True
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


class LlamaServer:
    """Answers of a running one."""

    def __init__(self, address: str) -> None:
        self._address = address

    def tokens(self, prompt: list[int], limit: int, **settings: Any) -> list[int]:
        """What it chooses after a prompt, an end of the text included."""
        asked = {"prompt": prompt, "n_predict": limit, "return_tokens": True, "cache_prompt": False}
        request = urllib.request.Request(
            f"{self._address}/completion",
            json.dumps(asked | settings).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            tokens: list[int] = json.load(response)["tokens"]
        return tokens


@contextmanager
def llama_server(model: Path) -> Iterator[LlamaServer]:
    process = subprocess.Popen(
        [sys.executable, "-c", SERVE, str(model)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None and process.stdin is not None
    try:
        yield LlamaServer(process.stdout.readline().strip())
    finally:
        process.stdin.close()
        process.wait(20)
