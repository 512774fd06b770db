"""Messages as chat templates want them. Pure.

Clients send a call's arguments as JSON text, most templates want what it stands for; and some look for the
name of the function in its result, where clients send the call's id alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from node.gateway.template_questions import Inspected
from routing.errors import LocalError

Json = dict[str, Any]


class MessagesError(LocalError):
    """Messages that are not what they should be."""


def prepared(messages: Sequence[Mapping[str, Any]], how: Inspected) -> list[Json]:
    """The messages for a template.

    Raises:
        MessagesError: a call of a tool is not one.
    """
    names: dict[str, str] = {}
    found = []
    for i, message in enumerate(messages):
        ready: Json = dict(message)
        if calls := ready.get("tool_calls"):
            ready["tool_calls"] = [
                _call(f"messages[{i}].tool_calls[{j}]", call, as_text=how.arguments_as_text)
                for j, call in enumerate(calls)
            ]
            for call in ready["tool_calls"]:
                names[call["id"]] = call["function"]["name"]
            if how.empty_content and ready.get("content") is None:
                ready["content"] = ""
        if ready.get("role") == "tool" and "name" not in ready:
            name = names.get(ready.get("tool_call_id", ""))
            if name is not None:
                ready["name"] = name
        found.append(ready)
    return found


def _call(where: str, call: Mapping[str, Any], *, as_text: bool) -> Json:
    function = call.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise MessagesError(f"{where}: expected a function with a name")
    identity = call.get("id") or ""
    if not isinstance(identity, str):
        raise MessagesError(f"{where}.id: expected a text")
    arguments = function.get("arguments", "{}")
    if as_text:
        if not isinstance(arguments, str):
            arguments = msgspec.json.encode(arguments).decode()
    elif isinstance(arguments, str):
        arguments = _parsed(where, arguments)
    return {"id": identity, "type": "function", "function": {**function, "arguments": arguments}}


def _parsed(where: str, arguments: str) -> Any:
    if not arguments.strip():
        return {}
    try:
        return msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        raise MessagesError(f"{where}.function.arguments: expected JSON, as a text") from None
