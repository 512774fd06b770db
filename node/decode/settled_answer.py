"""An answer that rests on no false ones: asked again from the beginning as often as a peer is found out.

Only where nothing of it is shown before it has ended; else it ends with an error that names the peer.
"""

from __future__ import annotations

from collections.abc import Callable

from node.decode.answer import Answer, answer
from node.decode.convictions import Spoiled
from node.decode.live_backbone import LiveBackbone
from node.engine.sampler import SamplingSettings
from node.importing import Progress

MOST_TIMES = 4
"""How often it is asked for at most: each time without one more false server."""


async def settled_answer(
    live: LiveBackbone,
    prompt: str,
    limit: int,
    sampling: SamplingSettings,
    on_text: Callable[[str], None],
    progress: Progress = lambda what, done, total: None,
    *,
    held: bool,
) -> Answer:
    """As `node.decode.answer.answer`, on a thread.

    Args:
        held: nobody sees its text before it has ended.

    Raises:
        Spoiled: it rests on false answers, and was shown in part, or was so each time.
        PanalError: as `answer`.
    """
    for again in range(MOST_TIMES):
        try:
            done = await live.in_thread(answer, live, prompt, limit, sampling, on_text, progress)
            if held:
                await live.port.settle(done.used)
                spoiling = live.port.convictions.against(done.used)
                if spoiling is not None:
                    raise spoiling.error()
        except Spoiled:
            if not held or again + 1 == MOST_TIMES:
                raise
        else:
            return done
    raise AssertionError("the last time has returned or raised")
