"""What a pause does: calls are refused, nothing is given away, no slices are told of. Connections stay."""

from __future__ import annotations

from typing import Protocol

from node.device.pause_rules import PauseState


class Pausable(Protocol):
    """Something that works for others, and can be told to stop for a while."""

    def pause(self, text: str) -> None:
        """Refuse all work from now on; `text` says why, to peers."""

    def resume(self) -> None:
        """Work again."""


class Announced(Protocol):
    """A node whose advert tells what it serves."""

    def offer_changed(self) -> None:
        """What it offers is no longer what its advert says."""


REFUSAL = "paused"
"""All that peers are told. Why its owner wants the device is nobody else's business."""


class PauseEffect:
    """Carries the state over to what works for others; parts may come later."""

    def __init__(self, node: Announced) -> None:
        self._node = node
        self._parts: list[Pausable] = []
        self._paused = False

    def serve(self, *parts: Pausable | None) -> None:
        """Parts that were just opened; None: not part of this node."""
        for part in parts:
            if part is not None:
                self._parts.append(part)
                self._tell(part)

    def take(self, state: PauseState) -> None:
        """A new state."""
        if state.paused is self._paused:
            return
        self._paused = state.paused
        for part in self._parts:
            self._tell(part)
        self._node.offer_changed()

    def _tell(self, part: Pausable) -> None:
        if self._paused:
            part.pause(REFUSAL)
        else:
            part.resume()
