"""The page's files: read once from the package, told apart by their content."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

from blake3 import blake3

TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
}
"""What the page may be made of; other files of its folder are not given out."""

INDEX = "index.html"


@dataclass(frozen=True)
class PageFile:
    """A file.

    Attributes:
        kind: its media type.
        etag: with its quotes, as HTTP has it.
    """

    data: bytes
    kind: str
    etag: str


def page_files() -> dict[str, PageFile]:
    """By name."""
    return read_folder(files("node.status") / "page")


def read_folder(folder: Traversable) -> dict[str, PageFile]:
    """The files of a folder that may be given out; none if it is not there."""
    found: dict[str, PageFile] = {}
    for file in folder.iterdir() if folder.is_dir() else ():
        kind = TYPES.get(file.name.rpartition(".")[2])
        if kind is not None and file.is_file():
            data = file.read_bytes()
            found[file.name] = PageFile(data, kind, f'"{blake3(data).hexdigest()[:32]}"')
    return found
