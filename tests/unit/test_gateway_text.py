"""Tokens to text: stop strings, characters spread over tokens, and which tokens are told of."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from node.gateway.stop_strings import StopStrings
from node.gateway.text_flow import TextFlow

ALPHABET = "ab·"
TEXTS = st.text(ALPHABET, max_size=24)
STOPS = st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4)


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Bytes in pieces."""
    ends = sorted({min(place, len(data)) for place in places} | {len(data)})
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def expected(text: str, stops: list[str]) -> tuple[str, str]:
    """By looking at every character in turn: what is given out, and what ended it."""
    for end in range(1, len(text) + 1):
        for begin in range(end):
            if text[begin:end] in stops:
                return text[:begin], text[begin:end]
    return text, ""


@given(TEXTS, STOPS, st.lists(st.integers(0, 60)))
def test_stops_do_not_depend_on_the_pieces(text: str, stops: list[str], places: list[int]) -> None:
    flow: TextFlow[int] = TextFlow(stops)
    given_out, told = "", list[tuple[int, int]]()
    for number, piece in enumerate(cut(text.encode(), places)):
        found = flow.feed(piece, number)
        given_out += found.text
        told += found.told
        assert text.startswith(given_out)
        if flow.is_stopped:
            break
    else:
        last = flow.finish()
        given_out += last.text
        told += last.told
    wanted, stop = expected(text, stops)
    assert (given_out, flow.is_stopped) == (wanted, bool(stop))
    assert [number for _, number in told] == list(range(len(told)))
    assert [begin for begin, _ in told] == sorted(begin for begin, _ in told)


@given(TEXTS, STOPS)
def test_nothing_of_a_stop_string_is_given_out_and_no_more_is_held_back(text: str, stops: list[str]) -> None:
    looking = StopStrings(stops)
    given_out = ""
    for at, character in enumerate(text):
        given_out += looking.feed(character)
        if looking.found:
            break
        held = text[len(given_out) : at + 1]
        longest = next(
            (
                size
                for size in range(at + 1, 0, -1)
                if any(len(stop) > size and stop.startswith(text[at + 1 - size : at + 1]) for stop in stops)
            ),
            0,
        )
        assert len(held) == longest


def test_the_one_that_is_complete_first_counts() -> None:
    stops = StopStrings(["ab", "xaby"])
    assert [stops.feed(character) for character in "xab"] == ["", "", "x"]
    assert stops.found == "ab"
    assert stops.feed("more") == ""
    both = StopStrings(["ab", "xab"])
    assert (both.feed("1xab2"), both.found) == ("1", "xab")


def test_a_token_goes_out_with_the_text_it_ends_in() -> None:
    flow: TextFlow[str] = TextFlow(["STOP"])
    assert flow.feed(b"one", "a").told == ((0, "a"),)
    begun = flow.feed(b" S", "b")
    assert begun.text == " " and begun.told == ()  # it ends in what is held back
    assert not flow.feed(b"TO", "c")
    released = flow.feed(b"RE", "d")
    assert released.text == "STORE" and released.told == ((3, "b"), (5, "c"), (7, "d"))


def test_a_token_that_a_stop_string_cuts_in_two_is_told_of() -> None:
    flow: TextFlow[str] = TextFlow(["\n"])
    assert flow.feed(b"one", "a").text == "one"
    last = flow.feed(b"two\nthree", "b")
    assert last.text == "two" and last.told == ((3, "b"),) and flow.is_stopped
    flow = TextFlow(["\n\n"])
    assert flow.feed(b"\n", "a").text == ""
    last = flow.feed(b"\n", "b")
    assert last.text == "" and last.told == ()


def test_a_character_in_several_tokens() -> None:
    flow: TextFlow[int] = TextFlow()
    whole = "€🐝".encode()
    pieces = [flow.feed(bytes([byte]), i) for i, byte in enumerate(whole)]
    assert [piece.text for piece in pieces] == ["", "", "€", "", "", "", "🐝"]
    assert [number for piece in pieces for _, number in piece.told] == list(range(7))
    assert pieces[2].told == ((0, 0), (0, 1), (0, 2))
    assert flow.feed(b"\xf0\x9f", 7).text == ""
    last = flow.finish()
    assert last.text == "�" and [number for _, number in last.told] == [7]
