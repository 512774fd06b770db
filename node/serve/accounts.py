"""What callers owe an expert server, as the server sees it: asked before it computes, told afterwards."""

from __future__ import annotations

from typing import Protocol

from routing.wire.experts import ExpertsRequest


class Accounts(Protocol):
    """Takes microseconds, waits for nothing. What is not refused ends with `served` or `dropped`."""

    def refusal(self, peer_id: str, request: ExpertsRequest) -> str:
        """Why a call is not computed, and what would settle it; "" if it is."""

    def served(self, peer_id: str, request: ExpertsRequest) -> None:
        """A call's answer is about to leave: a caller that has it may pay for it at once."""

    def dropped(self, peer_id: str, request: ExpertsRequest) -> None:
        """A call that was not refused has got no answer."""


class Charge:
    """One call of one caller on its way through the server.

    Args:
        accounts: None where everything is free.
    """

    __slots__ = ("_accounts", "_peer_id", "_request")

    def __init__(self, accounts: Accounts | None, peer_id: str) -> None:
        self._accounts = accounts
        self._peer_id = peer_id
        self._request: ExpertsRequest | None = None

    def refusal(self, request: ExpertsRequest) -> str:
        """As `Accounts.refusal`."""
        if self._accounts is None:
            return ""
        why = self._accounts.refusal(self._peer_id, request)
        if not why:
            self._request = request
        return why

    def end(self, *, is_answered: bool) -> None:
        """The call is over; only the first time counts."""
        request, self._request = self._request, None
        if request is None or self._accounts is None:
            return
        if is_answered:
            self._accounts.served(self._peer_id, request)
        else:
            self._accounts.dropped(self._peer_id, request)
