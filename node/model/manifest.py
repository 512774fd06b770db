"""What a model is: its experts' shapes, recipe and digests, its trunk's digests. Its digest is the model id.

Only what is computed counts: not file names, not how a model is split, not its text metadata. So two files
with the same tensors are the same model, and two nodes that show the same id can work together.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from typing import Annotated, Final, Literal

import msgspec

from node.model import recipe as R
from node.model.chunks import DIGEST_BYTES, digest_of
from node.model.expert_names import GROUPS, ExpertName
from node.model.gguf.types import TENSOR_TYPES, tensor_bytes
from routing.errors import LocalError

VERSION: Final = 3  # 1 declared no runs, 2 had digests that no list of chunks can be checked against
MAX_MANIFEST_BYTES = 64 << 20  # 60 layers x 512 experts are 1.4 MB; the rest is room, not an invitation
MAX_WIDTH = 1 << 16  # of a row; the wire's limit too
MODEL_ID = re.compile(r"[0-9a-f]{64}")

# Types ggml can multiply with: a manifest of a stranger may name no other, for ggml aborts on them.
NO_MATRIX = frozenset({"I8", "I16", "I32", "I64", "F64", "Q8_1", "Q8_K"})

# Names go into errors and announcements: one word each.
_Word = Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,64}\Z")]
_Role = Annotated[str, msgspec.Meta(pattern=r"^[a-z_]{1,16}\.[a-z]{1,16}\Z")]
_Digest = Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{64}\Z")]
_Size = Annotated[int, msgspec.Meta(ge=1, le=1 << 32)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=65535)]


class ManifestError(LocalError):
    """A manifest contradicts itself, or names what panal does not know."""


class OldManifest(ManifestError):
    """A manifest of a version before this one: what it describes has to be made again."""


class ExpertTensor(msgspec.Struct, frozen=True):
    """One stacked tensor of a layer's experts.

    Attributes:
        role: "gate.weight", "down.scale", ...
        type: ggml's type id.
        shape: of one expert, ggml order; () for a scale.
    """

    role: _Role
    type: int
    shape: tuple[_Size, ...]

    @property
    def bytes_per_expert(self) -> int:
        return tensor_bytes(self.shape or (1,), TENSOR_TYPES[self.type])

    def name(self, layer: int, group: str) -> str:
        """Its name in a GGUF file."""
        part, what = self.role.split(".")
        return ExpertName(layer, group, part, what).tensor_name


class ExpertCall(msgspec.Struct, frozen=True):
    """The routed experts of one layer (grovemoe: two calls a layer, the second with chunk experts).

    Attributes:
        group: "exps" or "chexps".
        run_length: experts of a run; runs are [0, n), [n, 2n), ..., the last may be shorter. Where combine is
            stable a run is added up by itself, by whoever holds all of it.
        n_in, n_out: width of the row that enters an expert and of the one that leaves it.
        tensors: sorted by role; just those that the recipe reads.
        digests: of each expert's bytes (its tensors in order), as node.model.chunks makes them; base64 of
            n_experts x 32 bytes.
    """

    layer: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    group: _Word
    n_experts: _Count
    run_length: _Count
    n_in: Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]
    n_out: Annotated[int, msgspec.Meta(ge=1, le=MAX_WIDTH)]
    recipe: R.Recipe
    tensors: tuple[ExpertTensor, ...]
    digests: str

    @property
    def index(self) -> int:
        """Which call of its layer it is: the wire's call index."""
        return GROUPS.index(self.group)

    @property
    def label(self) -> str:
        return f"layer {self.layer}" if self.group == "exps" else f"layer {self.layer} ({self.group})"

    @property
    def bytes_per_cell(self) -> int:
        return sum(tensor.bytes_per_expert for tensor in self.tensors)

    def digest(self, expert: int) -> bytes:
        return base64.b64decode(self.digests)[expert * DIGEST_BYTES : (expert + 1) * DIGEST_BYTES]


class _Version(msgspec.Struct, frozen=True):
    """What every version's manifest has."""

    version: int


class TrunkTensor(msgspec.Struct, frozen=True):
    """One tensor that stays with the backbone.

    Attributes:
        digest: of its bytes, as node.model.chunks makes it.
    """

    name: str
    type: int
    shape: tuple[_Size, ...]
    digest: _Digest

    @property
    def n_bytes(self) -> int:
        return tensor_bytes(self.shape, TENSOR_TYPES[self.type])


class Manifest(msgspec.Struct, frozen=True):
    """The whole of a model.

    Attributes:
        kinds: which kinds of slice this manifest describes; "layers" will bring a cut table.
        calls: in the order they run.
        trunk: sorted by name.
    """

    version: Literal[3]
    architecture: _Word
    kinds: tuple[Literal["experts"], ...]
    calls: tuple[ExpertCall, ...]
    trunk: tuple[TrunkTensor, ...]

    def encoded(self) -> bytes:
        """Canonical JSON: the bytes whose digest is the model id."""
        return msgspec.json.encode(self, order="sorted")

    def model_id(self) -> str:
        """64 hexadecimal digits."""
        return digest_of([memoryview(self.encoded())]).hex()

    def call(self, layer: int, index: int) -> ExpertCall | None:
        return next((c for c in self.calls if c.layer == layer and c.index == index), None)

    def layers(self) -> Iterator[int]:
        """Layers with routed experts, in order, once each."""
        seen: set[int] = set()
        for call in self.calls:
            if call.layer not in seen:
                seen.add(call.layer)
                yield call.layer

    @property
    def trunk_bytes(self) -> int:
        """Of the tensors that stay with the backbone."""
        return sum(tensor.n_bytes for tensor in self.trunk)

    @property
    def expert_bytes(self) -> int:
        return sum(call.n_experts * call.bytes_per_cell for call in self.calls)


def decode_manifest(encoded: bytes, *, model_id: str | None = None, source: str = "manifest") -> Manifest:
    """Read a manifest, also a stranger's.

    Args:
        model_id: what its digest must be, if known.
        source: where it came from, for the error.

    Raises:
        OldManifest: of an earlier version; the caller knows what has to be made again.
        ManifestError: malformed, contradictory, or another model's.
    """
    if len(encoded) > MAX_MANIFEST_BYTES:
        raise ManifestError(
            f"{source}: a manifest of {len(encoded)} bytes passes the limit of {MAX_MANIFEST_BYTES}"
        )
    try:
        manifest = msgspec.json.decode(encoded, type=Manifest)
    except (msgspec.DecodeError, RecursionError) as error:
        version = _version(encoded)
        if 0 < version < VERSION:
            raise OldManifest(f"{source}: made by an older panal") from None
        if version > VERSION:
            raise ManifestError(f"{source}: made by a newer panal; update this one") from None
        raise ManifestError(f"{source}: not a manifest of panal: {error}") from None
    try:
        check(manifest)
    except LocalError as error:
        raise ManifestError(f"{source}: {error}") from None
    found = manifest.model_id()
    if model_id is not None and found != model_id:
        raise ManifestError(f"{source}: is the manifest of model {found[:12]}, not of {model_id[:12]}")
    return manifest


def _version(encoded: bytes) -> int:
    """The version a manifest names, whatever else it says; 0 if none."""
    try:
        return msgspec.json.decode(encoded, type=_Version).version
    except (msgspec.DecodeError, RecursionError):
        return 0


def check(manifest: Manifest) -> None:
    """Every shape, type and digest fits every other.

    Raises:
        ManifestError, RecipeError: the first thing that does not.
    """
    seen: set[tuple[int, str]] = set()
    if not manifest.calls:
        raise ManifestError("no layer has routed experts")
    for call in manifest.calls:
        if call.group not in GROUPS or (call.layer, call.group) in seen:
            raise ManifestError(f"{call.label}: group {call.group!r} is unknown or there twice")
        seen.add((call.layer, call.group))
        _check_call(call)
    before = ""
    for tensor in manifest.trunk:
        if tensor.type not in TENSOR_TYPES:
            raise ManifestError(f"trunk tensor {tensor.name!r} has unknown type {tensor.type}")
        if tensor.name <= before:
            raise ManifestError(f"trunk tensor {tensor.name!r} is not in the order of names, or there twice")
        before = tensor.name
        try:
            tensor_bytes(tensor.shape, TENSOR_TYPES[tensor.type])
        except ValueError as error:
            raise ManifestError(f"trunk tensor {tensor.name!r} has {error}") from None


def _check_call(call: ExpertCall) -> None:
    if call.run_length > call.n_experts:
        raise ManifestError(f"{call.label}: runs of {call.run_length} of its {call.n_experts} experts")
    R.check(call.recipe)
    roles = tuple(tensor.role for tensor in call.tensors)
    if roles != R.roles(call.recipe):
        raise ManifestError(f"{call.label}: has tensors {', '.join(roles)}, but its recipe reads others")
    try:
        digests = base64.b64decode(call.digests, validate=True)
    except ValueError:  # binascii.Error, or characters beyond ASCII
        digests = b""
    if len(digests) != call.n_experts * DIGEST_BYTES:
        raise ManifestError(f"{call.label}: not one digest for each of its {call.n_experts} experts")
    for tensor in call.tensors:
        kind = TENSOR_TYPES.get(tensor.type)
        what = tensor.role.partition(".")[2]
        wanted = {"weight": 2, "bias": 1, "scale": 0}[what]
        if kind is None or kind.name in NO_MATRIX or (what != "weight" and kind.name != "F32"):
            raise ManifestError(f"{call.label}: {tensor.role} has type {kind.name if kind else tensor.type}")
        if len(tensor.shape) != wanted or any(side > MAX_WIDTH for side in tensor.shape):
            raise ManifestError(f"{call.label}: {tensor.role} has shape {tensor.shape}")
        if tensor.shape and tensor.shape[0] % kind.block_size:
            raise ManifestError(
                f"{call.label}: {tensor.role}: rows of {tensor.shape[0]} are no whole blocks of {kind.name}"
            )
    widths = {tensor.role: tensor.shape for tensor in call.tensors}
    if output_width(call.recipe, call.n_in, widths) != call.n_out:
        raise ManifestError(f"{call.label}: its experts do not give rows of {call.n_out}")


def output_width(recipe: R.Recipe, n_in: int, shapes: dict[str, tuple[int, ...]]) -> int:
    """Width of the row that a recipe gives, checked operation by operation so that ggml never aborts on it.

    Raises:
        ManifestError: an operation gets a row it cannot take.
    """

    def width(expression: R.Expression) -> tuple[int, bool]:
        """Width of the expression's row, and whether there is one for each used expert."""
        inner = [width(child) for child in R.children(expression)]
        columns, per_expert = inner[0] if inner else (n_in, False)
        match expression:
            case R.Matmul(tensor=role):
                takes, gives = shapes[role] if len(shapes[role]) == 2 else (0, 0)
                if takes != columns:
                    raise ManifestError(f"{role} takes rows of {takes}, not of {columns}")
                return gives, True
            case R.Bias() | R.Scale() | R.Weigh() if not per_expert:
                raise ManifestError("the input itself gets a bias, a scale or a weight")
            case R.Bias(tensor=role):
                if shapes[role] != (columns,):
                    raise ManifestError(f"{role} does not fit rows of {columns}")
            case R.Scale(tensor=role):
                if shapes[role] != ():
                    raise ManifestError(f"{role} is not one number an expert")
            case R.Half():
                if columns % 2:
                    raise ManifestError(f"half of a row of {columns}")
                return columns // 2, per_expert
            case R.Glu(up=None):
                if columns % 2:
                    raise ManifestError(f"a gated activation of a row of {columns}")
                return columns // 2, per_expert
            case R.Glu() | R.Product() | R.Total():
                if columns != inner[1][0]:
                    raise ManifestError(f"rows of {columns} and {inner[1][0]} are joined")
                if per_expert != inner[1][1]:
                    raise ManifestError("the input itself is joined with an expert's row")
        return columns, per_expert

    columns, per_expert = width(recipe.output)
    if not per_expert:
        raise ManifestError("its experts give a row that no expert matrix has made")
    if isinstance(recipe.output, R.Half):
        raise ManifestError("its experts give half of a row, which does not lie in one piece")
    return columns
