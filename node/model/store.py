"""The local store: one folder a model, with what it took work to make and prove.

    models/<model id>/manifest.json          canonical; its digest is the folder's name
    models/<model id>/trunk-<digits>.gguf    proven by the gate; one for each metadata the tensors came with
    models/<model id>/sources.json           files that were this model when they were imported, newest last
    models/<model id>/metadata-<digits>.gguf    what goes with a trunk, for others who fetch it (node.share)
    models/<model id>/home-plan.json, heat.json    which experts are worth having here (node.home.plan_file)
    models/<model id>/gates.json             what `panal verify` found of its lossy wires (node.model.gates)

Files with the same tensors are the same model, but may differ in metadata that only the backbone reads
(how many experts are used, rope scaling, chat template), so each keeps its own trunk.

    checked.json    slice files whose experts were found to have the digests of their manifest

Whatever is written appears complete or not at all: built in a folder of another name, then renamed.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
from blake3 import blake3

from node.model.gguf.split import ModelFile
from node.model.gguf.writer import encode_value
from node.model.manifest import MODEL_ID, Manifest, OldManifest, decode_manifest
from routing.errors import LocalError

SHORT_ID = 12  # hex digits shown to people; 48 bits, unique among the models of a device
MIN_PREFIX = 6  # hex digits a person may shorten an id to


class StoreError(LocalError):
    """The store lacks something, or its folder cannot be used."""


class SourcePart(msgspec.Struct, frozen=True):
    path: str
    size: int
    mtime_ns: int


class Source(msgspec.Struct, frozen=True):
    """A file (all its parts) that held the model's tensors, and the trunk made of it.

    Attributes:
        parts: none if the trunk came from peers.
        trunk: file name in the model's folder.
        trunk_bytes, trunk_digest: its size and BLAKE3 when it was proven.
    """

    parts: tuple[SourcePart, ...]
    trunk: str
    trunk_bytes: int = 0
    trunk_digest: str = ""

    @classmethod
    def of(cls, model: ModelFile) -> Source:
        return cls(_parts(model), f"trunk-{_metadata_digest(model)}.gguf")

    def same_files(self, other: Source) -> bool:
        return self.parts == other.parts

    def same_trunk(self, other: Source) -> bool:
        return self.trunk == other.trunk


@dataclass(frozen=True)
class StoredModel:
    """A model in the store.

    Attributes:
        trunk: the proven trunk GGUF.
    """

    model_id: str
    folder: Path
    manifest: Manifest
    trunk: Path


class Store:
    """All models of a device, under one folder (made when first written to)."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._models = root / "models"

    def get(self, name: str) -> StoredModel:
        """A model by id, or by the first digits of it, with the trunk imported last.

        Raises:
            StoreError: none, several, or not an id.
        """
        found = [folder for folder in self._folders() if folder.name.startswith(name)]
        if len(name) < MIN_PREFIX or not found:
            few = f", and of an id {MIN_PREFIX} digits or more are needed" if len(name) < MIN_PREFIX else ""
            raise StoreError(
                f"{name}: no such model in {self.root}{few}; `panal model import FILE` puts one there"
            )
        if len(found) > 1:
            raise StoreError(f"{name}: {len(found)} models in {self.root} begin so; give more digits")
        sources = self._sources(found[0])
        if not sources:
            raise StoreError(
                f"{found[0]}: its sources.json is damaged; remove the folder and import the model again"
            )
        source = sources[-1]
        if not _is_intact(found[0] / source.trunk, source, thorough=False):
            raise StoreError(f"{found[0] / source.trunk}: is damaged or gone; import the model again")
        return self._open(found[0], source)

    def find(self, model: ModelFile, *, thorough: bool = False) -> StoredModel | None:
        """The model that this very file was imported as, if neither has changed since.

        Args:
            thorough: read the trunk through and compare its digest, not only its size.
        """
        wanted = Source.of(model)
        for folder in self._folders():
            for source in self._sources(folder):
                if not (source.same_files(wanted) and source.same_trunk(wanted)):
                    continue
                if not _is_intact(folder / source.trunk, source, thorough=thorough):
                    continue
                try:
                    return self._open(folder, source)
                except LocalError:
                    continue  # a damaged manifest, or an older panal's: the file is imported again
        return None

    def ids(self) -> list[str]:
        """Of all models it holds, whether or not they can be used."""
        return [folder.name for folder in self._folders()]

    def sources(self, model_id: str) -> tuple[Source, ...]:
        """Files that held this model when they were imported; none of what came from peers."""
        return tuple(source for source in self._sources(self._models / model_id) if source.parts)

    def is_checked(self, piece: ModelFile) -> bool:
        """Were this very slice file's bytes compared with its manifest before?"""
        return all(part in self._checked() for part in _parts(piece))

    def mark_checked(self, piece: ModelFile) -> None:
        """Remember that they were; forgets files that are gone."""
        mine = _parts(piece)
        others = [old for old in self._checked() if Path(old.path).is_file()]
        names = {part.path for part in mine}
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            kept = [*(old for old in others if old.path not in names), *mine]
            replace_file(self.root / "checked.json", msgspec.json.encode(kept))
        except (OSError, UnicodeEncodeError):  # the latter: a path that is no text
            pass  # only a shortcut: without it the file is read through again next time

    def _checked(self) -> tuple[SourcePart, ...]:
        try:
            return msgspec.json.decode((self.root / "checked.json").read_bytes(), type=tuple[SourcePart, ...])
        except (OSError, msgspec.DecodeError):
            return ()

    @contextmanager
    def workspace(self) -> Iterator[Path]:
        """A folder on the store's file system that is gone afterwards unless `add` took it."""
        try:
            self._models.mkdir(parents=True, exist_ok=True)
            self._sweep()
            folder = self._models / f".new-{os.getpid()}-{secrets.token_hex(4)}"
            folder.mkdir()
        except OSError as error:
            raise StoreError(
                f"{self._models}: cannot be written: {error.strerror}; choose another store "
                "(store in the config, --store or $PANAL_STORE)"
            ) from None
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def add(
        self,
        workspace: Path,
        trunk: Path,
        manifest: Manifest,
        source: Source,
        beside: tuple[Path, ...] = (),
    ) -> StoredModel:
        """Take a proven trunk, made in a workspace, into the model's folder (made if need be).

        What an older panal made of the same files goes: nobody can use it any more.

        Args:
            beside: other files of the workspace that belong there.
        """
        stored = self._add(workspace, trunk, manifest, source, beside)
        for folder in self._folders():
            known = self._sources(folder)
            if not source.parts or not known or not all(old.same_files(source) for old in known):
                continue
            if self._is_older(folder):
                self._remove(folder)
        return stored

    def _add(
        self, workspace: Path, trunk: Path, manifest: Manifest, source: Source, beside: tuple[Path, ...]
    ) -> StoredModel:
        model_id = manifest.model_id()
        folder = self._models / model_id
        trunk.rename(workspace / source.trunk)
        source = msgspec.structs.replace(
            source,
            trunk_bytes=(workspace / source.trunk).stat().st_size,
            trunk_digest=_file_digest(workspace / source.trunk),
        )
        if not folder.exists():
            replace_file(workspace / "manifest.json", manifest.encoded())
            replace_file(workspace / "sources.json", msgspec.json.encode([source]))
            try:
                workspace.rename(folder)
                return self._open(folder, source)
            except OSError:
                if not folder.exists():  # else another process was quicker: its folder takes our trunk
                    raise
        for path in beside:
            path.replace(folder / path.name)
        (workspace / source.trunk).replace(folder / source.trunk)
        replace_file(folder / "manifest.json", manifest.encoded())  # the same bytes, unless they were damaged
        known = [old for old in self._sources(folder) if not old.same_files(source)]
        replace_file(folder / "sources.json", msgspec.json.encode([*known, source]))
        return self._open(folder, source)

    def _is_older(self, folder: Path) -> bool:
        """Whether an older panal made it."""
        try:
            decode_manifest((folder / "manifest.json").read_bytes())
        except OldManifest:
            return True
        except (OSError, LocalError):
            pass
        return False

    def _remove(self, folder: Path) -> None:
        """Remove a model's folder; if this is killed meanwhile, `_sweep` does the rest."""
        gone = self._models / f".new-{os.getpid()}-{secrets.token_hex(4)}"
        try:
            folder.rename(gone)
        except OSError:
            return  # it only takes room
        shutil.rmtree(gone, ignore_errors=True)

    def _sweep(self) -> None:
        """Remove what killed imports left behind: workspaces whose process is gone."""
        for folder in self._models.glob(".new-*-*"):
            pid = folder.name.split("-")[1]
            if pid.isdecimal() and not _is_running(int(pid)):
                shutil.rmtree(folder, ignore_errors=True)

    def _folders(self) -> list[Path]:
        if not self._models.is_dir():
            return []
        return sorted(folder for folder in self._models.iterdir() if MODEL_ID.fullmatch(folder.name))

    def _open(self, folder: Path, source: Source) -> StoredModel:
        path = folder / "manifest.json"
        try:
            encoded = path.read_bytes()
        except OSError as error:
            raise StoreError(
                f"{path}: {error.strerror}; remove {folder} and import the model again"
            ) from None
        try:
            manifest = decode_manifest(encoded, model_id=folder.name, source=str(path))
        except LocalError as error:
            raise StoreError(f"{error}; import the model again") from None
        return StoredModel(folder.name, folder, manifest, folder / source.trunk)

    def _sources(self, folder: Path) -> tuple[Source, ...]:
        try:
            return msgspec.json.decode((folder / "sources.json").read_bytes(), type=tuple[Source, ...])
        except (OSError, msgspec.DecodeError):
            return ()  # only a shortcut: without it the file is digested again


def replace_file(path: Path, data: bytes) -> None:
    """Replace a file's content at once; a crash leaves the old or the new."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _metadata_digest(model: ModelFile) -> str:
    """Short digest of everything a file says beside its tensors."""
    hasher = blake3()
    for key, value in sorted(model.metadata.items()):
        for part in (key.encode("utf-8", "surrogateescape"), encode_value(value)):
            hasher.update(len(part).to_bytes(8, "little"))
            hasher.update(part)
    return hasher.hexdigest()[:SHORT_ID]


def _parts(model: ModelFile) -> tuple[SourcePart, ...]:
    return tuple(SourcePart(str(p.path.resolve()), p.stamp.size, p.stamp.mtime_ns) for p in model.parts)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True  # somebody else's, or a number that is none: leave it alone
    return True


def _is_intact(trunk: Path, source: Source, *, thorough: bool) -> bool:
    try:
        if trunk.stat().st_size != source.trunk_bytes:
            return False
        return not thorough or _file_digest(trunk) == source.trunk_digest
    except OSError:
        return False


def _file_digest(path: Path) -> str:
    return blake3(max_threads=blake3.AUTO).update_mmap(path).hexdigest()
