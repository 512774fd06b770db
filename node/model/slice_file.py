"""Slice files: a run of experts of a run of layers, cut from a model so that a device can serve them alone.

A slice file is a valid GGUF. Its tensors have the model's names and bytes; only their outermost
dimension, which counts the experts, is shorter. Keys:

    general.architecture                    the model's
    general.type                            "panal-slice"
    panal.slice.version                     u32, 1
    panal.slice.kind                        "experts"
    panal.slice.model_id                    string
    panal.slice.layer_first, layer_last     u32, inclusive
    panal.slice.expert_first, expert_last   u32, inclusive
    panal.slice.expert_count                u32, experts a layer of the model has
    panal.slice.chexps_first, chexps_last,
        chexps_count                        u32, only with chunk experts (grovemoe): the same for them
    panal.manifest                          string, the manifest's canonical JSON
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from node.model.expert_names import GROUPS, ExpertName, layer_of, parse_expert_name
from node.model.gguf.errors import GGUFError, shown
from node.model.gguf.map import MappedModel
from node.model.gguf.reader import MAX_STRING_BYTES
from node.model.gguf.split import ModelFile, ModelTensor, open_model
from node.model.gguf.types import TENSOR_TYPES, ValueType
from node.model.gguf.values import GGUFValue
from node.model.gguf.writer import Layout, TensorToWrite, lay_out, write_gguf
from node.model.manifest import ExpertCall, Manifest, OldManifest, decode_manifest

SLICE_TYPE = "panal-slice"
SLICE_VERSION = 1
SLICE_KIND = "experts"
MAX_MODEL_ID_CHARACTERS = 128  # a digest as text; longer than any in use
COPY_BYTES = 4 << 20  # between two calls of `progress`

_DIMS = {"weight": 3, "bias": 2, "scale": 1}


@dataclass(frozen=True, slots=True)
class SliceFile:
    """A checked slice file.

    Attributes:
        file: the GGUF; `MappedModel(file)` gives its tensors.
        manifest_json: as it was given to `cut_slice`; checked by `manifest` only.
        layers: the layers of the slice; those without routed experts have no tensor in it.
        experts: the experts held, as numbered in the model.
        expert_count: experts a layer of the model has.
        chunk_experts: the chunk experts held, None where the model has none.
        tensors: every tensor of the slice by its parsed name.
    """

    file: ModelFile
    model_id: str
    manifest_json: bytes
    layers: range
    experts: range
    expert_count: int
    chunk_experts: range | None
    tensors: Mapping[ExpertName, ModelTensor]

    def manifest(self) -> Manifest:
        """The manifest in it, checked.

        Raises:
            ManifestError: it is none, or another model's.
        """
        try:
            return decode_manifest(self.manifest_json, model_id=self.model_id, source=str(self.file.path))
        except OldManifest as error:
            raise OldManifest(f"{error}; cut it again with this one") from None


def chunk_run(experts: range, expert_count: int, chunk_count: int) -> range:
    """The chunk experts a run of experts needs where `chunk_count` of them serve `expert_count` experts."""
    first = experts.start * chunk_count // expert_count
    stop = -(-experts.stop * chunk_count // expert_count)
    return range(first, stop)


def cut_slice(
    model: ModelFile,
    manifest_json: bytes,
    model_id: str,
    layers: range,
    experts: range,
    target: Path | str,
    progress: Callable[[int], None] | None = None,
) -> int:
    """Write the slice `layers` x `experts` (step 1) of `model`; return the file's size in bytes.

    Args:
        manifest_json: the manifest's canonical JSON, UTF-8.
        progress: called with the tensor bytes written since its last call.

    Raises:
        GGUFError: the ranges are not the model's, hold no expert, or writing failed.
    """
    chosen = _chosen_tensors(model, layers)
    counts = _expert_counts(model, chosen)
    if "exps" not in counts:
        raise GGUFError(f"{model.path}: layers {_text(layers)} hold no routed experts: choose others")
    expert_count = counts["exps"]
    if not 0 <= experts.start < experts.stop <= expert_count or experts.step != 1:
        raise GGUFError(
            f"{model.path}: experts {_text(experts)} are not in the model: choose from 0-{expert_count - 1}"
        )
    runs = _runs(experts, counts)
    if not _is_model_id(model_id):
        raise GGUFError(f"{model.path}: {shown(model_id)} is not a model id")
    if len(manifest_json) > MAX_STRING_BYTES:
        raise GGUFError(
            f"{model.path}: a manifest of {len(manifest_json)} bytes is too long for a slice file"
        )
    metadata = _slice_metadata(model.architecture, manifest_json, model_id, layers, runs, counts)
    with MappedModel(model) as mapped:
        tensors = [
            TensorToWrite(
                tensor.name,
                (*tensor.shape[:-1], len(runs[name.group])),
                tensor.type,
                _run_bytes(mapped, tensor, runs[name.group], progress),
            )
            for name, tensor in chosen.items()
        ]
        return write_gguf(target, metadata, tensors)


@dataclass(frozen=True, slots=True)
class SlicePlan:
    """A slice file that is yet to be filled.

    Attributes:
        runs: the experts of it, by group.
        metadata, tensors: of the file; the tensors have no data.
        calls: the call and the role of each tensor.
    """

    runs: Mapping[str, range]
    metadata: Mapping[str, GGUFValue]
    tensors: tuple[TensorToWrite, ...]
    calls: tuple[tuple[ExpertCall, str], ...]

    def lay_out(self, target: Path) -> Layout:
        """Where everything is in the file; `target` is for errors."""
        return lay_out(target, self.metadata, self.tensors)


def plan_slice(manifest: Manifest, layers: range, experts: range) -> SlicePlan:
    """What `cut_slice` would write of the model that a manifest describes: the same bytes, but for the data.

    Raises:
        GGUFError: the model has no such layers or experts, or no slice file can hold them.
    """
    calls = [call for call in manifest.calls if call.layer in layers]
    known = list(manifest.layers())
    if not calls:
        raise GGUFError(f"layers {_text(layers)} hold no routed experts; choose from {known[0]}-{known[-1]}")
    counts: dict[str, int] = {}
    for call in sorted(calls, key=lambda call: (call.layer, call.index)):
        if call.n_experts != counts.setdefault(call.group, call.n_experts):
            raise GGUFError(
                f"layer {call.layer} has {call.n_experts} experts, others have {counts[call.group]}: "
                "a slice file cannot hold both; choose other layers"
            )
    if not 0 <= experts.start < experts.stop <= counts["exps"]:
        raise GGUFError(f"experts {_text(experts)} are not in the model: choose from 0-{counts['exps'] - 1}")
    encoded, runs = manifest.encoded(), _runs(experts, counts)
    if len(encoded) > MAX_STRING_BYTES:
        raise GGUFError(f"a manifest of {len(encoded)} bytes is too long for a slice file")
    placed = sorted(
        (
            (parse_expert_name(tensor.name(call.layer, call.group)), call, tensor)
            for call in calls
            for tensor in call.tensors
        ),
        key=lambda each: slice_order(_known(each[0])),
    )
    return SlicePlan(
        runs,
        _slice_metadata(manifest.architecture, encoded, manifest.model_id(), layers, runs, counts),
        tuple(
            TensorToWrite(
                tensor.name(call.layer, call.group),
                (*tensor.shape, len(runs[call.group])),
                TENSOR_TYPES[tensor.type],
                None,
            )
            for _, call, tensor in placed
        ),
        tuple((call, tensor.role) for _, call, tensor in placed),
    )


def _known(name: ExpertName | None) -> ExpertName:
    if name is None:
        raise GGUFError("the manifest names a tensor that is none of experts")
    return name


def _runs(experts: range, counts: Mapping[str, int]) -> dict[str, range]:
    """Which experts of each group a slice has."""
    runs = {"exps": experts}
    if "chexps" in counts:
        runs["chexps"] = chunk_run(experts, counts["exps"], counts["chexps"])
    return runs


def _slice_metadata(
    architecture: str,
    manifest_json: bytes,
    model_id: str,
    layers: range,
    runs: Mapping[str, range],
    counts: Mapping[str, int],
) -> dict[str, GGUFValue]:
    return {
        "general.architecture": GGUFValue.string(architecture),
        "general.type": GGUFValue.string(SLICE_TYPE),
        "panal.slice.version": GGUFValue.uint32(SLICE_VERSION),
        "panal.slice.kind": GGUFValue.string(SLICE_KIND),
        "panal.slice.model_id": GGUFValue.string(model_id),
        **_run_keys("layer", layers, None),
        **_run_keys("expert", runs["exps"], counts["exps"]),
        **(_run_keys("chexps", runs["chexps"], counts["chexps"]) if "chexps" in runs else {}),
        "panal.manifest": GGUFValue.string(manifest_json.decode("utf-8")),
    }


def read_slice(path: Path | str) -> SliceFile:
    """Open a slice file and check that its tensors are what its keys say.

    Raises:
        GGUFError: it is not a slice file, or contradicts itself.
    """
    file = open_model(path)
    if file.find_str("general.type") != SLICE_TYPE:
        raise GGUFError(f"{file.path}: not a slice file: give one written by `panal slice cut`")
    version = file.find_int("panal.slice.version")
    if version != SLICE_VERSION:
        raise GGUFError(
            f"{file.path}: slice version {version} is not supported: cut it again with this panal"
        )
    kind = file.find_str("panal.slice.kind")
    if kind != SLICE_KIND:
        raise GGUFError(f"{file.path}: a slice of kind {shown(str(kind))}; only {SLICE_KIND!r} is known here")
    model_id = file.find_str("panal.slice.model_id")
    if model_id is None or not _is_model_id(model_id):
        raise _broken(file, f"{shown(str(model_id))} is not a model id")
    manifest = file.find_str("panal.manifest")
    if manifest is None:
        raise _broken(file, "it has no panal.manifest")
    layers, _ = _read_run(file, "layer", counted=False)
    experts, expert_count = _read_run(file, "expert", counted=True)
    runs = {"exps": experts}
    chunks: range | None = None
    if "panal.slice.chexps_first" in file.metadata:
        chunks, chunk_count = _read_run(file, "chexps", counted=True)
        if chunks != chunk_run(experts, expert_count, chunk_count):
            raise _broken(file, f"chunk experts {_text(chunks)} don't go with experts {_text(experts)}")
        runs["chexps"] = chunks
    tensors = _checked_tensors(file, layers, runs)
    return SliceFile(
        file,
        model_id,
        manifest.encode("utf-8", "surrogateescape"),
        layers,
        experts,
        expert_count,
        chunks,
        tensors,
    )


def slice_order(name: ExpertName) -> tuple[int, int, str]:
    """Sorts the tensors of a slice as a manifest has them: the bytes of a slice file follow from model id,
    layers and experts, in whatever order the model's own file has its tensors."""
    return name.layer, GROUPS.index(name.group), name.role


def _text(run: range) -> str:
    return f"{run.start}-{run.stop - 1}"


def _broken(file: ModelFile, what: str) -> GGUFError:
    return GGUFError(f"{file.path}: broken slice file: {what}: get or cut it again")


def _is_model_id(text: str) -> bool:
    return (
        0 < len(text) <= MAX_MODEL_ID_CHARACTERS and text.isascii() and text.isprintable() and " " not in text
    )


def _chosen_tensors(model: ModelFile, layers: range) -> dict[ExpertName, ModelTensor]:
    numbers = [number for number in map(layer_of, model.tensors) if number is not None]
    last = max(numbers, default=-1)
    if not 0 <= layers.start < layers.stop <= last + 1 or layers.step != 1:
        raise GGUFError(f"{model.path}: layers {_text(layers)} are not in the model: choose from 0 to {last}")
    named = ((parse_expert_name(name), tensor) for name, tensor in model.tensors.items())
    found = [(name, tensor) for name, tensor in named if name is not None and name.layer in layers]
    return dict(sorted(found, key=lambda pair: slice_order(pair[0])))


def _expert_counts(model: ModelFile, tensors: Mapping[ExpertName, ModelTensor]) -> dict[str, int]:
    """The number of experts per group, which must be one for all layers of a slice."""
    counts: dict[str, int] = {}
    for name, tensor in tensors.items():
        if len(tensor.shape) != _DIMS[name.what] or tensor.shape[-1] != counts.setdefault(
            name.group, tensor.shape[-1]
        ):
            raise GGUFError(
                f"{model.path}: {tensor.name} has the shape {list(tensor.shape)}, which is no stack of "
                f"{counts.get(name.group, 'any')} experts: convert the model again, or choose other layers"
            )
    return counts


def _run_keys(name: str, run: range, count: int | None) -> dict[str, GGUFValue]:
    keys = {
        f"panal.slice.{name}_first": GGUFValue.uint32(run.start),
        f"panal.slice.{name}_last": GGUFValue.uint32(run.stop - 1),
    }
    if count is not None:
        keys[f"panal.slice.{name}_count"] = GGUFValue.uint32(count)
    return keys


def _read_run(file: ModelFile, name: str, *, counted: bool) -> tuple[range, int]:
    """The run under `name`'s keys and the number it is out of (of no meaning if not `counted`)."""
    values = []
    for end in ("first", "last", "count") if counted else ("first", "last"):
        key = f"panal.slice.{name}_{end}"
        entry = file.metadata.get(key)
        if entry is None or entry.type is not ValueType.UINT32 or not isinstance(entry.value, int):
            raise _broken(file, f"{key} is missing or not a UINT32")
        values.append(entry.value)
    first, last = values[:2]
    count = values[2] if counted else last + 1
    if not first <= last < count:
        raise _broken(file, f"{name} {first}-{last} of {count} is not a run")
    return range(first, last + 1), count


def _run_bytes(
    mapped: MappedModel, tensor: ModelTensor, run: range, progress: Callable[[int], None] | None
) -> Iterator[memoryview]:
    """The bytes of a run of experts; rows are whole blocks, so an expert is a whole number of bytes."""
    one = tensor.n_bytes // tensor.shape[-1]
    view = mapped.tensor_view(tensor.name)[run.start * one : run.stop * one]
    for start in range(0, len(view), COPY_BYTES):
        piece = view[start : start + COPY_BYTES]
        yield piece
        if progress is not None:
            progress(len(piece))


def _checked_tensors(
    file: ModelFile, layers: range, runs: Mapping[str, range]
) -> dict[ExpertName, ModelTensor]:
    tensors: dict[ExpertName, ModelTensor] = {}
    for tensor in file.tensors.values():
        name = parse_expert_name(tensor.name)
        if name is None or name.layer not in layers or name.group not in runs:
            raise _broken(file, f"tensor {shown(tensor.name)} does not belong in it")
        held = len(runs[name.group])
        if len(tensor.shape) != _DIMS[name.what] or tensor.shape[-1] != held:
            raise _broken(file, f"{tensor.name} has the shape {list(tensor.shape)} for {held} experts")
        tensors[name] = tensor
    for name in tensors:
        if ExpertName(name.layer, name.group, "down", "weight") not in tensors:
            raise _broken(file, f"{name.tensor_name} stands without its down tensor")
        if ExpertName(name.layer, "exps", "down", "weight") not in tensors:
            raise _broken(file, f"layer {name.layer} has chunk experts and no experts")
    if not tensors:
        raise _broken(file, "it holds no experts")
    if "chexps" in runs and all(name.group != "chexps" for name in tensors):
        raise _broken(file, "it claims chunk experts and holds none")
    return tensors
