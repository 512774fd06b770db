"""Whether a request may change something: it shows the node's token, or the page's cookie from the page."""

from __future__ import annotations

from starlette.requests import Request

from node.http.refusals import Refusal
from node.status.token import HEADER, Token


def may_change(request: Request, token: Token) -> None:
    """Raises Refusal (403) for a request that may not."""
    shown = request.headers.get(HEADER)
    if shown is not None:
        if not token.is_shown(shown):
            raise Refusal(403, f"{HEADER} is not this node's token", code="wrong_token")
    elif not token.is_in_cookie(request.cookies.get(token.cookie_name)):
        raise Refusal(
            403,
            f"changing something takes this node's token: open its page, or send {HEADER} from its "
            "http-token file",
            code="no_token",
        )
    elif "origin" not in request.headers:  # the door has seen to it that it is ours
        raise Refusal(403, "a request with the page's cookie must say its Origin", code="no_origin")
