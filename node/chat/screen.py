"""What a chat shows: text for people, lines of JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from typing import Any, Protocol

from market.credits import credits_text
from node.chat.events import Heard
from node.cli.table import format_table

PROMPT = "> "

_CUT_OFF = {
    "context": "the context is full: /reset begins anew",
    "budget": "cut off: the budget of the answer or of the day is spent ([market] in the node's config)",
}


class Screen(Protocol):
    """Where a chat is shown."""

    def text(self, text: str) -> None:
        """A piece of an answer."""
        ...

    def end(self, heard: Heard, *, stopped: bool) -> None:
        """An answer has ended; stopped: by Ctrl-C."""
        ...

    def note(self, line: str) -> None:
        """A word of the program's own."""
        ...

    def error(self, line: str, code: str) -> None:
        """A turn that was not answered."""
        ...

    def stats(self, usage: Mapping[str, Any]) -> None:
        """What an answer took."""
        ...


class TextScreen:
    """Answers on stdout, everything else on stderr.

    Args:
        always_stats: show what each answer took.
    """

    def __init__(self, *, always_stats: bool) -> None:
        self._always_stats = always_stats
        self._on_terminal = sys.stdout.isatty()

    def text(self, text: str) -> None:
        # A model may write what would move the cursor, or rename the window.
        print(_harmless(text) if self._on_terminal else text, end="", flush=True)

    def end(self, heard: Heard, *, stopped: bool) -> None:
        print(flush=True)
        if stopped:
            self.note("stopped")
        elif heard.finish == "length":
            why = heard.usage.get("panal", {}).get("stopped")
            self.note(_CUT_OFF.get(str(why), "cut off: -n, or the context, had room for no more"))
        if self._always_stats:
            self.stats(heard.usage)

    def note(self, line: str) -> None:
        print(f"panal: {_harmless(line)}", file=sys.stderr, flush=True)

    def error(self, line: str, code: str) -> None:
        self.note(line)
        if code == "context_length_exceeded":
            self.note("/reset begins anew")

    def stats(self, usage: Mapping[str, Any]) -> None:
        rows = stats_rows(usage)
        print(
            format_table(("", ""), rows) if rows else "panal: no figures of an answer",
            file=sys.stderr,
            flush=True,
        )


class JsonScreen:
    """One object a line, for each answer, error and command."""

    def text(self, text: str) -> None:
        pass

    def end(self, heard: Heard, *, stopped: bool) -> None:
        _print({**heard.as_dict(), "finish_reason": "interrupted" if stopped else heard.finish})

    def note(self, line: str) -> None:
        _print({"note": line})

    def error(self, line: str, code: str) -> None:
        _print({"error": {"message": line, "code": code}})

    def stats(self, usage: Mapping[str, Any]) -> None:
        _print({"usage": dict(usage)})


def stats_rows(usage: Mapping[str, Any]) -> list[tuple[str, str]]:
    """An answer's ledger: names and values; none if there is no ledger."""
    told = usage.get("panal")
    if not isinstance(told, Mapping):
        return []
    get = told.get
    return [
        ("prompt tokens", f"{get('prompt_tokens', 0)}"),
        ("of these cached", f"{get('cached_tokens', 0)}"),
        ("tokens", f"{get('tokens', 0)}"),
        ("tokens/s", f"{get('tokens_per_second', 0):.1f}"),
        ("seconds waiting for a place", f"{get('queued', 0):.2f}"),
        ("seconds to the first token", f"{get('prompt_seconds', 0):.2f}"),
        ("seconds", f"{get('seconds', 0):.2f}"),
        ("passes", f"{get('passes', 0)}"),
        ("trips", f"{get('trips', 0)}"),
        ("trips per layer and token", f"{get('trips_per_layer_token', 0):.3f}"),
        ("guessed, right", f"{get('drafted', 0)}, {get('accepted', 0)}"),
        ("bytes out", f"{get('bytes_out', 0):,}"),
        ("bytes back", f"{get('bytes_back', 0):,}"),
        ("seconds waited for experts", f"{get('waited', 0):.2f}"),
        ("seconds computed at home", f"{get('computed_home', 0):.2f}"),
        ("slowest peer", str(get("slowest_peer") or "-")),
        *([("cost", credits_text(get("cost", 0)))] if get("cost") else []),
    ]


def _print(told: Mapping[str, Any]) -> None:
    print(json.dumps(told), flush=True)


def _harmless(text: str) -> str:
    """Without control characters, but line ends and tabs."""
    return "".join(
        char if char in "\n\t" or not (ord(char) < 0x20 or 0x7F <= ord(char) < 0xA0) else "\ufffd"
        for char in text
    )
