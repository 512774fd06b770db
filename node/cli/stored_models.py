"""The models in the store, where no node runs that could tell more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from node.cli.status_tables import Table, size
from routing.errors import LocalError


def show_store(folder: Path, *, as_json: bool) -> int:
    """Print what the store holds; its damaged entries with what is wrong."""
    from node.cli.terminal import show

    models = stored_models(folder)
    if as_json:
        print(json.dumps(models))
        return 0
    if not models:
        print(f"no node is running here, and {folder} holds no models: panal model import FILE takes one in")
        return 0
    header: tuple[str, ...] = ("name", "id", "architecture", "layers", "experts", "size", "problem")
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            each["name"] or "-",
            each["id"][:12],
            each["architecture"] or "-",
            str(each["layers"] or "-"),
            str(each["experts"] or "-"),
            "-" if each["expert_bytes"] is None else size(each["expert_bytes"]),
            each["problem"],
        )
        for each in models
    )
    if not any(each["problem"] for each in models):
        header, rows = header[:-1], tuple(row[:-1] for row in rows)
    show([Table("no node is running here; in the store:", header, rows, spare=(2,))])
    return 0


def stored_models(folder: Path) -> list[dict[str, Any]]:
    """What is known of each; `problem` is "" or why it is of no use."""
    from node.model.store import Store
    from node.status.models_here import model_here

    store = Store(folder)
    found: list[dict[str, Any]] = []
    for model_id in store.ids():
        entry: dict[str, Any] = {
            "id": model_id, "name": "", "architecture": "", "layers": None, "experts": None,
            "expert_bytes": None, "problem": "",
        }  # fmt: skip
        try:
            here = model_here(store.get(model_id).manifest, model_id, store)
        except LocalError as error:
            entry["problem"] = str(error)
        else:
            entry |= {
                "name": here.name,
                "architecture": here.architecture,
                "layers": len(here.shape.layers),
                "experts": max(here.shape.experts, default=0),
                "expert_bytes": here.expert_bytes,
            }
        found.append(entry)
    return found
