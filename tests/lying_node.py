"""A `panal` process that can turn liar: `python -m tests.lying_node FILE COMMAND ...`.

As long as the file is there each answer of its expert server has the wrong sign: numbers like any others.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np

from node.cli.main import main
from node.serve.server import ExpertServer
from routing.quic.stream import Stream
from routing.wire.experts import ExpertsAnswer, Refusal

WRONG = np.float32(-1.0)


def lie_while(file: Path) -> None:
    """From now on this process's servers do."""
    honest = ExpertServer._reply

    async def reply(self: ExpertServer, message: bytes, stream: Stream) -> ExpertsAnswer | Refusal:
        answer = await honest(self, message, stream)
        if isinstance(answer, ExpertsAnswer) and file.exists():
            return dataclasses.replace(answer, y=answer.y * WRONG)
        return answer

    ExpertServer._reply = reply  # type: ignore[method-assign]


if __name__ == "__main__":
    lie_while(Path(sys.argv[1]))
    sys.exit(main(sys.argv[2:]))
