"""`tool_choice`: a call that must be made. Pure.

What a model writes when it calls a function differs from template to template, so no grammar holds it to
that. A call that must come is asked for as JSON instead, by the schemas of the functions that may be
called: whatever the model would rather do, its answer is one. Its text is the call.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from node.gateway.requests import Tools
from node.gateway.tool_calls import ToolCall

_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


def schema_of(tools: Tools) -> dict[str, Any] | None:
    """The schema of the answer; None: the model may do as it likes."""
    if not tools.forced:
        return None
    functions = [tool["function"] for tool in tools.tools]
    calls = [_call(each) for each in functions if not tools.named or each["name"] == tools.choice]
    return calls[0] if len(calls) == 1 else {"anyOf": calls}


def _call(function: Mapping[str, Any]) -> dict[str, Any]:
    parameters = function.get("parameters")
    return {
        "type": "object",
        "properties": {
            "name": {"const": function["name"]},
            "arguments": parameters if isinstance(parameters, dict) and parameters else _ANY_OBJECT,
        },
        "required": ["name", "arguments"],
        "additionalProperties": False,
    }


class ForcedCall:
    """Reads such an answer, as `ToolCalls` reads others.

    Args:
        draw_id: an id for the call.

    Attributes:
        found: the answer is a call.
    """

    def __init__(self, draw_id: Callable[[], str]) -> None:
        self._draw_id = draw_id
        self._text = ""
        self.found = False
        self.spelt: Mapping[int, bytes] = {}

    def feed(self, text: str) -> tuple[str, Sequence[ToolCall]]:
        """Nothing is shown before the call is complete."""
        self._text += text
        return "", []

    def finish(self) -> tuple[str, Sequence[ToolCall]]:
        """The call; or the text, if it was cut off."""
        try:
            call = json.loads(self._text)
            name, arguments = call["name"], json.dumps(call["arguments"], ensure_ascii=False)
        except (ValueError, TypeError, KeyError):
            return self._text, []
        self.found = True
        return "", [ToolCall(id=self._draw_id(), name=name, arguments=arguments)]
