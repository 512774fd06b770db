"""Build classes: whose answers must be the same bytes. Pure.

A class is a digest of the code that computes and of the kind of CPU it found (`Library.build_id`: the shared
object's bytes and what llama.cpp says of the CPU). Two servers of one class that have the same cells give the
same bytes for
the same request: the kernels' order of additions depends on nothing else (design/llama-hook.md, "What is
byte-identical").

It is the server's own word. A lie gains little: who names the class of honest servers is held to their bytes,
who names one of its own is compared by how far it is off, with a limit that no lower precision stays below
(market.verdict).
"""

from __future__ import annotations

UNKNOWN = ""
"""The class of who does not tell: an older version. It is compared as another kind."""


def is_same(one: str, other: str) -> bool:
    """Whether answers of these classes have to be the same bytes."""
    return one == other != UNKNOWN
