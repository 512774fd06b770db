"""The node's own part of HTTP: the page, the status, its events, pausing, metrics.

Host, Origin and API keys are looked at by the door (node.http.guard) before anything here runs. What changes
something takes the node's token besides (node.status.token).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from node.device.pause_rules import MAX_PAUSE_SECONDS
from node.http.authority import parse_address
from node.http.caller import caller_of
from node.http.refusals import Refusal
from node.status.board import NotYet, StatusBoard
from node.status.changing import may_change
from node.status.events import event_stream
from node.status.files import INDEX, PageFile, page_files
from node.status.metrics import CONTENT_TYPE, exposition
from node.status.sources import PauseFacts, Pauser
from node.status.token import Token

MAX_BODY_BYTES = 1_024
"""Of a request to pause: a number."""


class _PauseRequest(msgspec.Struct, frozen=True):
    """What `POST /api/pause` takes.

    Attributes:
        seconds: for how long; null until it is resumed.
    """

    seconds: Annotated[float, msgspec.Meta(gt=0, le=MAX_PAUSE_SECONDS)] | None = None


class _Handlers:
    def __init__(self, board: StatusBoard, token: Token, page: Mapping[str, PageFile]) -> None:
        self._board = board
        self._token = token
        self._page = page

    # --- asking ---

    async def status(self, request: Request) -> Response:
        return Response(self._told(), media_type="application/json")

    async def events(self, request: Request) -> Response:
        self._told()
        return event_stream(self._board)

    async def metrics(self, request: Request) -> Response:
        self._told()
        door = self._board.sources.door
        connections = None if door is None else door.connections
        text = exposition(self._board.status(), connections=connections)
        return Response(text, headers={"Content-Type": CONTENT_TYPE})

    def _told(self) -> bytes:
        try:
            return self._board.body()
        except NotYet as error:
            raise Refusal(503, str(error), code="starting", headers=[("Retry-After", "1")]) from None

    # --- the page ---

    async def index(self, request: Request) -> Response:
        response = self._file(request, INDEX)
        if _is_trusted(request):
            response.set_cookie(
                self._token.cookie_name,
                self._token.cookie_value,
                path="/api",
                httponly=True,
                samesite="strict",
            )
        return response

    async def static(self, request: Request) -> Response:
        return self._file(request, request.path_params["name"])

    def _file(self, request: Request, name: str) -> Response:
        file = self._page.get(name)
        if file is None:
            raise Refusal(404, f"there is no {name[:100]!r} here", code="not_found")
        headers = {"ETag": file.etag, "Cache-Control": "no-cache"}
        if file.etag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(file.data, headers=headers | {"Content-Type": file.kind})

    # --- changing ---

    async def pause(self, request: Request) -> Response:
        pauser = self._pauser(request)
        wanted = _read(await request.body())
        return self._changed(pauser.pause(wanted.seconds))

    async def resume(self, request: Request) -> Response:
        pauser = self._pauser(request)
        _read(await request.body())
        return self._changed(pauser.resume())

    def _pauser(self, request: Request) -> Pauser:
        """Who pauses, for a request that may."""
        may_change(request, self._token)
        pauser = self._board.sources.pauser
        if pauser is None:
            raise Refusal(409, "this node has nothing to pause", code="nothing_to_pause")
        return pauser

    def _changed(self, state: PauseFacts) -> Response:
        self._board.changed()
        told = {"state": self._state(), "pause": state.as_dict() if state.paused else None}
        return Response(msgspec.json.encode(told), media_type="application/json")

    def _state(self) -> str:
        """As `node.state` says it."""
        self._told()
        return self._board.status().node.state


def make_routes(
    board: StatusBoard, token: Token, page: Mapping[str, PageFile] | None = None
) -> list[BaseRoute]:
    """For the door.

    Args:
        page: its files by name; None for those of this package.
    """
    handlers = _Handlers(board, token, page_files() if page is None else page)

    def route(path: str, handler: Any, method: str = "GET") -> BaseRoute:
        return Route(path, handler, methods=[method])

    return [
        route("/", handlers.index),
        route("/static/{name}", handlers.static),
        route("/api/status", handlers.status),
        route("/api/events", handlers.events),
        route("/api/pause", handlers.pause, "POST"),
        route("/api/resume", handlers.resume, "POST"),
        route("/metrics", handlers.metrics),
    ]


def _read(body: bytes) -> _PauseRequest:
    if len(body) > MAX_BODY_BYTES:
        raise Refusal(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
    try:
        wanted = msgspec.json.decode(body, type=_PauseRequest | None) if body.strip() else None
        return wanted or _PauseRequest()
    except msgspec.DecodeError as error:
        raise Refusal(400, f'{error}: send {{"seconds": 1800}}, or nothing', param="seconds") from None


def _is_trusted(request: Request) -> bool:
    """Whether the page is loaded on this machine, or by somebody with a key."""
    caller = caller_of(request.scope)
    address = parse_address(caller.address)
    return bool(caller.key) or (address is not None and address.is_loopback)
