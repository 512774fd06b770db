"""What a model is called in the API."""

from __future__ import annotations

from typing import Any

from node.gateway.speaker import NotReady, Speaker

MIN_ID_CHARS = 6
"""Of a model id, as everywhere (node.config)."""


def answers_to(standing: Speaker | NotReady, asked: str) -> bool:
    """Whether that is its name: the API's, another it is known by, or the beginning of its id."""
    if isinstance(standing, NotReady):
        return asked == standing.model
    if asked == standing.name or asked in standing.aliases:
        return True
    return len(asked) >= MIN_ID_CHARS and standing.model_id.startswith(asked.lower())


def describe(standing: Speaker | NotReady) -> dict[str, Any]:
    """An element of `/v1/models`."""
    if isinstance(standing, NotReady):
        panal: dict[str, Any] = {"ready": False, "why": standing.why}
        return _model(standing.model, 0, panal)
    return _model(
        standing.name,
        standing.created,
        {
            "ready": True,
            "model_id": standing.model_id,
            "architecture": standing.architecture,
            "context": standing.n_ctx,
            "aliases": list(standing.aliases),
            "chat": None if standing.chat is None else standing.chat.source,
            "tools": standing.chat is not None and standing.chat.has_tools,
            "note": "" if standing.chat is None else standing.chat.note,
        },
    )


def _model(name: str, created: int, panal: dict[str, Any]) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": created, "owned_by": "panal", "panal": panal}
