"""What is typed in a chat, what comes back, and what is shown of it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from node.chat.conversation import Command, Conversation, Turn, parse_line
from node.chat.events import MOST_EVENT_BYTES, EventReader, Heard, Refused, refusal_in
from node.chat.screen import TextScreen, stats_rows


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("", None),
        (" \t\r", None),
        (" Hello. ", Turn("Hello.")),
        ("/reset", Command("/reset", "")),
        ("/system Be  kind. ", Command("/system", "Be  kind.")),
        ("//etc/passwd", Turn("/etc/passwd")),
        ("//", Turn("/")),
        ("a / b", Turn("a / b")),
        ('{"content": "a"}', Turn('{"content": "a"}')),
    ],
)
def test_lines(line: str, meaning: Turn | Command | None) -> None:
    assert parse_line(line) == meaning


def test_lines_of_json() -> None:
    for text in ("a\nb", "/reset", "", "\u00e9"):
        assert parse_line(json.dumps({"content": text}), as_json=True) == Turn(text)
    for line in ('{"content": 1}', '{"content": "a", "b": 1}', "{", "[1]", '"a"', "{" * 100_000):
        assert parse_line(line, as_json=True) == Turn(line)


def test_conversation() -> None:
    talk = Conversation(system="s")
    talk.note("a", "b")
    roles = [(each["role"], each["content"]) for each in talk.messages_with("c")]
    assert roles == [("system", "s"), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert len(talk.messages_with("d")) == 4  # asking alone keeps nothing
    talk.reset()
    talk.system = ""
    assert talk.is_empty and talk.messages_with("c") == [{"role": "user", "content": "c"}]


def chunk(text: str | None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": text}, "finish_reason": None, **more}]}


CHUNKS = [chunk(""), chunk("H\u00e9\n\n"), chunk("llo"), chunk(None, finish_reason="stop")]
LEDGER = {"prompt_tokens": 3, "tokens": 2, "tokens_per_second": 1.5, "stopped": "end", "slowest_peer": ""}
LAST = {"choices": [], "usage": {"completion_tokens": 2, "panal": LEDGER}}
STREAM = b"".join(
    b"data: " + json.dumps(each, ensure_ascii=False).encode() + b"\n\n" for each in [*CHUNKS, LAST]
)


@given(st.lists(st.integers(0, len(STREAM)), max_size=8))
def test_streams_in_pieces(places: list[int]) -> None:
    reader, heard = EventReader(), Heard()
    stream = STREAM + b": a comment\n\ndata: [DONE]\n\n"
    ends = [*sorted(places), len(stream)]
    pieces = [stream[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    found = [each for piece in pieces for each in reader.feed(piece)]
    assert found == [*CHUNKS, LAST]
    assert "".join(map(heard.take, found)) == heard.text == "H\u00e9\n\nllo"
    assert heard.as_dict() == {"text": heard.text, "finish_reason": "stop", "usage": LAST["usage"]}
    assert dict(stats_rows(heard.usage))["tokens/s"] == "1.5"


def test_a_ledger_without_usage() -> None:
    heard = Heard()
    heard.take({**chunk("a"), "panal": LEDGER})
    assert heard.usage == {"panal": LEDGER} and stats_rows({}) == []


def test_streams_that_fail() -> None:
    error = b'{"error": {"message": "no experts", "code": "model_incomplete"}}'
    with pytest.raises(Refused, match=r"^no experts$") as caught:
        EventReader().feed(b"data: " + error + b"\n\n")
    assert caught.value.code == "model_incomplete"
    for data in (b"data: {\n\n", b"data: 1\n\n", b"x" * (MOST_EVENT_BYTES + 1)):
        with pytest.raises(Refused, match="no stream"):
            EventReader().feed(data)
    for wrong in ({}, {"choices": 1}, {"choices": [1]}, {"choices": [{"delta": {"content": 1}}]}):
        with pytest.raises(Refused, match="no stream"):
            Heard().take(wrong)
    for body in (b"", b"{", b"[]", b'{"error": 1}', b'{"error": {}}'):
        assert str(refusal_in(body, "otherwise")) == "otherwise"


def test_nothing_steers_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    screen = TextScreen(always_stats=False)
    screen.text("a\x1b]0;x\x07\n\t\u00e9\x9b")
    screen.note("b\x1b[2J")
    shown = capsys.readouterr()
    assert shown.out == "a\ufffd]0;x\ufffd\n\t\u00e9\ufffd"
    assert shown.err == "panal: b\ufffd[2J\n"
