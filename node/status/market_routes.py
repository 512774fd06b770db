"""What HTTP tells of the market beyond the status; settling a debt, pardoning a peer."""

from __future__ import annotations

from typing import Annotated, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from node.http.refusals import Refusal
from node.status.board import StatusBoard
from node.status.changing import may_change
from node.status.market_facts import MarketSource
from node.status.token import Token
from routing.errors import LocalError

MAX_BODY_BYTES = 1_024
"""Of what changes something: a peer id and an amount."""

MAX_PEER_CHARS = 64
MAX_MODEL_CHARS = 64


class _Settlement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `POST /api/market/settle` takes.

    Attributes:
        peer: its whole id.
        credits: micro-credits.
        forgiven: given up; else paid in some other way.
    """

    peer: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PEER_CHARS)]
    credits: Annotated[int, msgspec.Meta(ge=1, le=2**53)]
    forgiven: bool = False


class _Pardoning(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `POST /api/market/pardon` takes.

    Attributes:
        peer: its whole id.
    """

    peer: Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_PEER_CHARS)]


_Wanted = TypeVar("_Wanted", _Settlement, _Pardoning)


class _Handlers:
    def __init__(self, board: StatusBoard, token: Token) -> None:
        self._board = board
        self._token = token

    async def quotes(self, request: Request) -> Response:
        peer = request.query_params.get("peer", "")[:MAX_PEER_CHARS]
        return _json(await self._market().quotes(peer))

    async def served(self, request: Request) -> Response:
        model_id = request.query_params.get("model", "")[:MAX_MODEL_CHARS]
        return _json(self._market().served(model_id))

    async def settle(self, request: Request) -> Response:
        wanted = await self._wanted(request, _Settlement, '{"peer": ID, "credits": micro-credits}')
        try:
            await self._market().settle(wanted.peer, wanted.credits, forgiven=wanted.forgiven)
        except LocalError as error:
            raise Refusal(409, str(error), code="not_settled") from None
        self._board.changed()
        return _json({"peer": wanted.peer, "credits": wanted.credits, "forgiven": wanted.forgiven})

    async def pardon(self, request: Request) -> Response:
        wanted = await self._wanted(request, _Pardoning, '{"peer": ID}')
        try:
            pardoned = await self._market().pardon(wanted.peer)
        except LocalError as error:
            raise Refusal(409, str(error), code="not_pardoned") from None
        self._board.changed()
        return _json(pardoned)

    async def _wanted(self, request: Request, form: type[_Wanted], like: str) -> _Wanted:
        """What a request that may change something asks for.

        Raises:
            Refusal: it may not, there is no market, or it is no such request.
        """
        may_change(request, self._token)
        self._market()
        body = await request.body()
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        try:
            return msgspec.json.decode(body, type=form)
        except msgspec.DecodeError as error:
            raise Refusal(400, f"{error}: send {like}") from None

    def _market(self) -> MarketSource:
        market = self._board.sources.market
        if market is None:
            raise Refusal(
                404, 'everything is free here: [market] mode in the config is "free"', code="no_market"
            )
        return market


def make_market_routes(board: StatusBoard, token: Token) -> list[BaseRoute]:
    """For the door."""
    handlers = _Handlers(board, token)
    return [
        Route("/api/market/quotes", handlers.quotes, methods=["GET"]),
        Route("/api/market/served", handlers.served, methods=["GET"]),
        Route("/api/market/settle", handlers.settle, methods=["POST"]),
        Route("/api/market/pardon", handlers.pardon, methods=["POST"]),
    ]


def _json(told: object) -> Response:
    return Response(msgspec.json.encode(told), media_type="application/json")
