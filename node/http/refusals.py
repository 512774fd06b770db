"""How a request is turned down: a status and one line, in the shape that OpenAI's clients read. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

INVALID = "invalid_request_error"
"""OpenAI's type for whatever the client should change."""

UNAVAILABLE = "server_error"
"""Its type for what is no fault of the client's."""

Headers = Sequence[tuple[str, str]]


class Refusal(Exception):
    """Raised by whoever handles a request; the door answers with it.

    Attributes:
        status: of HTTP.
        message: one line: what, where, what to do.
        kind: OpenAI's `type`; param: the field of the request it is about; code: for programs.
        headers: of the response, besides the usual.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Headers = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind or (INVALID if status < 500 else UNAVAILABLE)
        self.param = param
        self.code = code
        self.headers = tuple(headers)

    def body(self) -> bytes:
        """The JSON of the response."""
        return json.dumps(self.as_dict()).encode()

    def as_dict(self) -> Mapping[str, object]:
        """As OpenAI writes errors."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }
