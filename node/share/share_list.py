"""Which models of the store are given to others: STORE/shares.json, which commands change and nodes read."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import msgspec

from node.model.store import Store, replace_file
from routing.errors import LocalError
from routing.wire.model_list import MAX_MODELS, MAX_NAME_BYTES
from routing.wire.text import sanitise

NAME = "shares.json"

_TRUNK = r"^trunk-[0-9a-f]{1,64}\.gguf\Z"
_ID = re.compile(r"[0-9a-f]{6,64}")


class Share(msgspec.Struct, frozen=True):
    """A model that is given.

    Attributes:
        model_id: 64 hexadecimal digits.
        name: under which others find it.
        trunk: the trunk's file in the model's folder.
        metadata: digest of the metadata that goes with it.
        path: a file with all its tensors, whose cells are given; "" for none.
    """

    model_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    name: str
    trunk: Annotated[str, msgspec.Meta(pattern=_TRUNK)]
    metadata: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
    path: str = ""


def read_shares(store: Store) -> list[Share]:
    """What is given; nothing if nothing ever was.

    Raises:
        LocalError: the list is damaged.
    """
    path = store.root / NAME
    try:
        return msgspec.json.decode(path.read_bytes(), type=list[Share])
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LocalError(f"{path}: {error.strerror}") from None
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise LocalError(f"{path}: is damaged; remove it and share your models again") from None


def write_share(store: Store, share: Share) -> None:
    """Give this model, in place of what was given of it before.

    Raises:
        LocalError: another model has the name, there are too many, or the list cannot be written.
    """
    others = [each for each in read_shares(store) if each.model_id != share.model_id]
    taken = next((each for each in others if each.name.casefold() == share.name.casefold()), None)
    if taken is not None:
        raise LocalError(
            f"model {taken.model_id[:12]} is shared as {share.name!r} already; --name NAME gives this one "
            "another"
        )
    if len(others) >= MAX_MODELS:
        raise LocalError(f"{MAX_MODELS} models are shared already; --remove MODEL ends one")
    _write(store, [*others, share])


def remove_share(store: Store, name: str) -> Share:
    """Give a model no more, named by its name or the beginning of its id; returns what it was.

    Raises:
        LocalError: no such model is given, or the list cannot be written.
    """
    shares = read_shares(store)
    found = [each for each in shares if is_meant(name, each.model_id, each.name)]
    if len(found) != 1:
        what = "no model that is shared" if not found else f"{len(found)} models"
        raise LocalError(f"{name}: {what}; `panal model share` shows what is")
    _write(store, [each for each in shares if each is not found[0]])
    return found[0]


def is_meant(said: str, model_id: str, name: str) -> bool:
    """Whether what somebody typed means this model: its name in any case, or the beginning of its id."""
    return said.casefold() == name.casefold() or (
        _ID.fullmatch(said) is not None and model_id.startswith(said)
    )


def share_name(text: str) -> str:
    """A name as it can be shared.

    Raises:
        LocalError: it cannot be; or it looks like a model id.
    """
    name = sanitise(text, MAX_NAME_BYTES)
    if not name or name != text or _ID.fullmatch(name):
        raise LocalError(
            f"{text[:80]!r} cannot be a model's name: 1 to {MAX_NAME_BYTES} printable characters, not like "
            "an id; --name NAME"
        )
    return name


def _write(store: Store, shares: Sequence[Share]) -> None:
    path: Path = store.root / NAME
    try:
        store.root.mkdir(parents=True, exist_ok=True)
        replace_file(path, msgspec.json.format(msgspec.json.encode(shares), indent=1))
    except OSError as error:
        raise LocalError(f"{path}: cannot be written: {error.strerror}") from None
