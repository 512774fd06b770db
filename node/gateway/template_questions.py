"""What a process that renders chat templates is asked, and what it answers. Pure."""

from __future__ import annotations

from typing import Any

import msgspec


class Setup(msgspec.Struct, frozen=True):
    """Of which model.

    Attributes:
        plain: its template; tools: the one for requests with tools, "" where that is the same.
        controls: texts of its control tokens.
        names: "bos_token" and the like, as templates are given them.
    """

    plain: str
    tools: str
    controls: list[str]
    names: dict[str, str]


class Inspect(msgspec.Struct, frozen=True, tag=True):
    """What do the templates do with tools? Answer: `Inspected`."""


class Render(msgspec.Struct, frozen=True, tag=True):
    """A chat. Answer: `Rendered`.

    Attributes:
        now: seconds since 1970, for templates that say what day it is.
        extra: further variables.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    now: float
    extra: dict[str, Any]


class Inspected(msgspec.Struct, frozen=True):
    """What was found by rendering chats with tools.

    Attributes:
        shows_tools: the model is told of them.
        arguments_as_text: a call's arguments must be JSON text; else what that stands for.
        empty_content: a message that is nothing but calls has the content ""; else none.
    """

    shows_tools: bool = False
    arguments_as_text: bool = False
    empty_content: bool = False


class Rendered(msgspec.Struct, frozen=True):
    """A chat as a text, in which stand-ins show what users wrote (`template_marks`).

    Attributes:
        marks: what each stand-in stands for.
    """

    text: str
    marks: dict[str, str]


Question = Inspect | Render
