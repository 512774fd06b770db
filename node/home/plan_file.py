"""The plan of a model's home sets as it lies in the store: what calibration found, read back strictly.

models/<model id>/home-plan.json    written by `panal home plan`; may be copied to another device
models/<model id>/heat.json         experts' choices counted in use
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from node.home.estimate import Estimator
from node.home.heat import Heat, HeatNumbers
from node.home.home_set import HomeSet, Shapes, shapes_of
from node.home.worth import Worth
from node.model.manifest import Manifest
from node.model.store import StoredModel, StoreError, replace_file
from routing.errors import LocalError

PLAN_NAME = "home-plan.json"
HEAT_NAME = "heat.json"

MAX_FILE_BYTES = 16 << 20
"""60 layers of 512 experts are 0.3 MB; the rest is room, not an invitation."""

MAX_SETS = 10_000  # measured sets; a calibration measures some dozens

_Count = Annotated[int, Meta(ge=0, le=1 << 53)]
_Share = Annotated[float, Meta(ge=0, le=1)]
_Number = Annotated[float, Meta(ge=0, le=1e15)]


class PlanLayer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A layer with routed experts.

    Attributes:
        worth: what guesses lose without it (node.home.worth).
        choices: of each expert, in the text.
    """

    layer: Annotated[int, Meta(ge=0, le=65535)]
    worth: Annotated[float, Meta(ge=0, le=100)]
    choices: tuple[_Number, ...]


class MeasuredSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A home set that was tried.

    Attributes:
        experts: layers -> experts, as ranges.
        n_bytes: of its cells.
        trips: per layer and token; plain: without guesses.
        tokens_per_pass: with guesses.
        tokens: over which all this was counted.
    """

    experts: dict[str, str]
    n_bytes: _Count
    trips: _Share
    plain: _Share
    tokens_per_pass: Annotated[float, Meta(ge=1, le=1000)]
    tokens: _Count


class BudgetChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The best set that was found for a budget.

    Attributes:
        n_bytes: the budget; share: of all cells' bytes.
        chosen: which of the measured sets.
    """

    n_bytes: _Count
    share: _Share
    chosen: _Count


class HomePlan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `panal home plan` found.

    Attributes:
        made_at: seconds since 1970; seconds: that it took.
        text: what it was measured on, in words; text_tokens: tokens decoded of it.
        drafts: guesses of a pass that it is told for; 0 where the model cannot take guesses back.
        n_used: experts that a token uses.
        base: see node.home.worth.
    """

    version: Literal[1]
    model_id: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    made_at: _Number
    seconds: _Number
    seed: _Count
    text: Annotated[str, Meta(max_length=4096)]
    text_tokens: _Count
    drafts: Annotated[int, Meta(ge=0, le=64)]
    n_used: Annotated[int, Meta(ge=1, le=65535)]
    base: Annotated[float, Meta(ge=0, le=100)]
    layers: tuple[PlanLayer, ...]
    measured: Annotated[tuple[MeasuredSet, ...], Meta(max_length=MAX_SETS)]
    budgets: tuple[BudgetChoice, ...]

    def heat(self, shapes: Shapes) -> Heat:
        """The text's choices."""
        counts = {layer.layer: layer.choices for layer in self.layers}
        return Heat(shapes, HeatNumbers(float(self.text_tokens), counts))

    def worth(self) -> Worth | None:
        """None where nothing is guessed."""
        if not self.drafts:
            return None
        return Worth(self.base, {layer.layer: layer.worth for layer in self.layers}, self.drafts)

    def estimator(self, shapes: Shapes, heat: Heat | None = None) -> Estimator:
        """With the text's heat, or with what was counted since."""
        return Estimator(shapes, heat or self.heat(shapes), self.worth(), self.n_used)

    def known(self, shapes: Shapes) -> dict[HomeSet, MeasuredSet]:
        """What was tried."""
        return {HomeSet.from_ranges(each.experts, shapes): each for each in self.measured}


def read_plan(stored: StoredModel, config: Path | None = None) -> HomePlan | None:
    """The model's plan; None if none was made.

    Args:
        config: the node's, for the command that is named if it must be made again.

    Raises:
        StoreError: it is damaged or another model's. One line that says what to do.
    """
    path = stored.folder / PLAN_NAME
    data = _read(path)
    if data is None:
        return None
    try:
        return _decoded(data, stored)
    except LocalError as error:
        raise StoreError(
            f"{path}: is no home plan of this model ({error}); "
            f"make it again with `{plan_command(stored, config)}`, or remove the file"
        ) from None


def planned_model(path: Path) -> str:
    """The model that a plan carried from elsewhere is of, to be looked for in the store.

    Raises:
        LocalError: it cannot be read, or is no plan.
    """
    try:
        return msgspec.json.decode(_carried(path), type=HomePlan).model_id
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LocalError(f"{path}: is no home plan ({_why(error)})") from None


def carried_plan(path: Path, stored: StoredModel) -> HomePlan:
    """A plan from elsewhere, checked as those in the store are.

    Raises:
        LocalError: it cannot be read, is no plan, or another model's.
    """
    try:
        return _decoded(_carried(path), stored)
    except StoreError:
        raise
    except LocalError as error:
        raise LocalError(f"{path}: is no home plan of model {stored.model_id[:12]} ({error})") from None


def plan_stamp(stored: StoredModel) -> tuple[int, int]:
    """What changes when a plan is written; zeros without one."""
    try:
        found = (stored.folder / PLAN_NAME).stat()
    except OSError:
        return 0, 0
    return found.st_ino, found.st_mtime_ns


def write_plan(stored: StoredModel, plan: HomePlan) -> Path:
    """Put a plan in place of the one before, at once."""
    path = stored.folder / PLAN_NAME
    carry_plan(path, plan)
    return path


def carry_plan(path: Path, plan: HomePlan) -> None:
    """Write a plan to any file, at once.

    Raises:
        StoreError: it cannot be written.
    """
    try:
        replace_file(path, msgspec.json.encode(plan))
    except OSError as error:
        raise StoreError(f"{path}: cannot be written: {error.strerror}") from None


def read_heat(stored: StoredModel, shapes: Shapes) -> Heat:
    """What was counted in use; nothing if there is none, or it is damaged: it is counted again."""
    try:
        data = _read(stored.folder / HEAT_NAME)
        numbers = None if data is None else msgspec.json.decode(data, type=HeatNumbers)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError, StoreError):
        numbers = None
    return Heat(shapes, numbers)


def write_heat(stored: StoredModel, heat: Heat) -> None:
    """Keep it for the next run. Only a memory: where it cannot be written, the next run starts without."""
    try:
        replace_file(stored.folder / HEAT_NAME, msgspec.json.encode(heat.numbers()))
    except OSError:
        pass


def _read(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > MAX_FILE_BYTES:
        raise StoreError(f"{path}: is over {MAX_FILE_BYTES >> 20} MiB, which no home plan is; remove it")
    return data


def _carried(path: Path) -> bytes:
    data = _read(path)
    if data is None:
        raise StoreError(f"{path}: no such file")
    return data


def _decoded(data: bytes, stored: StoredModel) -> HomePlan:
    try:
        plan = msgspec.json.decode(data, type=HomePlan)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise LocalError(_why(error)) from None
    _check(plan, stored.model_id, stored.manifest)
    return plan


def _why(error: Exception) -> str:
    return "nested too deeply" if isinstance(error, RecursionError) else str(error)


def plan_command(stored: StoredModel, config: Path | None = None) -> str:
    """What makes a plan, as it is typed: by the node's config, or by its store if there is none."""
    if config is not None and config.is_file():
        return f"panal home plan -c {shlex.quote(str(config))}"
    return f"panal home plan {stored.model_id[:12]} --store {shlex.quote(str(stored.folder.parent.parent))}"


def _check(plan: HomePlan, model_id: str, manifest: Manifest) -> None:
    """Does a plan fit the model and itself?"""
    if plan.model_id != model_id:
        raise LocalError(f"it is model {plan.model_id[:12]}'s")
    shapes = shapes_of(manifest)
    if [layer.layer for layer in plan.layers] != list(shapes):
        raise LocalError("it has other layers")
    for layer in plan.layers:
        if len(layer.choices) != shapes[layer.layer].n_experts:
            raise LocalError(f"layer {layer.layer} has {len(layer.choices)} experts in it")
    for each in plan.measured:
        if HomeSet.from_ranges(each.experts, shapes).n_bytes(shapes) != each.n_bytes:
            raise LocalError("a set's bytes are not those of its cells")
    for budget in plan.budgets:
        if budget.chosen >= len(plan.measured):
            raise LocalError(f"a budget's set is number {budget.chosen} of {len(plan.measured)}")
