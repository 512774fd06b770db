"""Whatever comes and goes: a cache is taken only where its bits are right, nobody is lost, nobody starves."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from node.decode.continuous.admission import WaitingRoom
from node.decode.continuous.layout import bring_together
from node.decode.continuous.prefix import Past, Reuse, choose_seat
from node.decode.continuous.schedule import Turns, window

GRID = 4

texts = st.lists(st.integers(0, 1), min_size=1, max_size=22)


class Bits:
    """A cache as a machine would have it that gives every row other bits in every other pass."""

    def __init__(self) -> None:
        self.past = Past()
        self.bits: list[int] = []

    def read(self, prompt: list[int]) -> None:
        """The rest of a prompt, in chunks from where it is."""
        start = len(self.past)
        for begin in range(start, len(prompt), GRID):
            end = min(begin + GRID, len(prompt))
            made = hash((tuple(self.bits[:begin]), tuple(prompt[begin:end])))
            self.bits += [hash((made, row)) for row in range(begin, end)]
            self.past.read(prompt[begin:end], GRID)

    def write(self, tokens: list[int]) -> None:
        for token in tokens:
            self.bits.append(hash(("wrote", tuple(self.bits), token)))
            self.past.wrote([token])

    def cut(self, length: int) -> None:
        del self.bits[length:]
        self.past.cut(length, GRID)


def alone(prompt: list[int]) -> list[int]:
    plain = Bits()
    plain.read(prompt)
    return plain.bits


@given(texts, texts, texts, texts, st.integers(0, 22))
def test_what_is_taken_has_the_right_bits(
    first: list[int], answer: list[int], more: list[int], prompt: list[int], cut: int
) -> None:
    rule = Reuse(GRID, exact=True, can_rewind=True)
    old = Bits()
    old.read(first)
    old.write(answer)
    old.read([*old.past.tokens, *more])
    if cut < len(first):
        old.cut(cut)
    asked = (first + answer + more)[: len(prompt)] + prompt  # often alike
    kept = rule.of(old.past, asked)
    assert 0 <= kept < len(asked) and asked[:kept] == old.past.tokens[:kept]
    written = len(first) if cut >= len(first) else None
    if written is None or kept <= written:  # it is no further turn: as if nothing had been there
        new = Bits()
        new.bits, new.past = old.bits[:kept], old.past.copy()
        new.past.cut(kept, GRID)
        new.read(asked)
        assert new.bits == alone(asked)
    else:  # as llama.cpp has it that kept its cache: no pass is taken in part
        assert kept in old.past.ends


@given(texts, texts, texts)
def test_a_state_is_never_taken_in_part(first: list[int], answer: list[int], prompt: list[int]) -> None:
    for exact in (True, False):
        old = Bits()
        old.read(first)
        old.write(answer)
        asked = (first + answer + prompt)[: len(first) + len(prompt)]
        kept = Reuse(GRID, exact=exact, can_rewind=False).of(old.past, asked)
        assert kept in (0, len(old.past)) and asked[:kept] == old.past.tokens[:kept] and kept < len(asked)


@given(
    st.lists(texts, min_size=2, max_size=5),
    texts,
    st.sets(st.integers(0, 4), min_size=1),
    st.integers(1, 8),
    st.booleans(),
)
def test_a_seat_is_free_and_holds_what_it_says(
    old: list[list[int]], prompt: list[int], free: set[int], least: int, exact: bool
) -> None:
    pasts = []
    for tokens in old:
        bits = Bits()
        bits.read(tokens)
        pasts.append(bits.past)
    slots = sorted(slot for slot in free if slot < len(pasts)) or [0]
    rule = Reuse(GRID, exact=exact, can_rewind=True)
    seat = choose_seat(prompt, pasts, slots, rule, least)
    assert seat.slot in slots
    source = seat.slot if seat.source is None else seat.source
    assert prompt[: seat.kept] == pasts[source].tokens[: seat.kept]
    assert seat.kept == rule.of(pasts[source], prompt)
    if seat.source is not None:
        assert seat.kept >= least and seat.source != seat.slot


@given(st.integers(1, 10), st.data())
def test_places_change_and_nobody_is_lost(count: int, data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from("wwoie"), min_size=count, max_size=count))
    wanted, others = ({p for p, kind in enumerate(kinds) if kind == wish} for wish in "wo")
    idle = data.draw(st.permutations([place for place, kind in enumerate(kinds) if kind == "i"]))
    moves = bring_together(count, wanted, others, idle)
    if moves is None:
        assert others and not idle and "e" not in kinds
        return
    holds: dict[int, int | None] = {place: place if kind != "e" else None for place, kind in enumerate(kinds)}
    for source, target in moves:
        assert holds[source] is not None
        holds[target], holds[source] = holds[source], None
    now = {held: place for place, held in holds.items() if held is not None}
    assert wanted | others <= set(now)
    at = sorted(now[each] for each in wanted)
    assert at == list(range(at[0], at[0] + len(at))) if at else not moves
    lost = set(idle) - set(now)
    if "e" in kinds:
        assert not lost
    assert len(lost) <= 1 or not moves
    assert len(moves) <= 2 * len(wanted)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.floats(0.01, 10)), min_size=30, max_size=60))
def test_time_is_shared(seconds: list[tuple[float, float]]) -> None:
    turns, spent = Turns(0.5), {True: 0.0, False: 0.0}
    longest = 0.0
    for reading, writing in seconds:
        reads = turns.reads(1, 1)
        took = reading if reads else writing
        turns.spent(took, reading=reads)
        spent[reads] += took
        longest = max(longest, took)
        assert abs(spent[True] - spent[False]) <= longest + 1e-6


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=60))
def test_nobody_starves_in_the_waiting_room(happens: list[tuple[str, bool]]) -> None:
    room: WaitingRoom[int] = WaitingRoom(100)
    waiting: dict[str, list[int]] = {user: [] for user in "abc"}
    passed: Counter[str] = Counter()
    for number, (user, comes) in enumerate(happens):
        if comes:
            room.add(user, number)
            waiting[user].append(number)
            continue
        following = room.peek([])
        if following is None:
            assert not any(waiting.values())
            continue
        whose, item = following
        assert room.take(whose) == item == waiting[whose].pop(0)
        passed[whose] = 0
        for other in "abc":
            if other != whose and waiting[other]:
                passed[other] += 1
                assert passed[other] <= 2  # the two others at most go before
    assert len(room) == sum(map(len, waiting.values()))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.integers(1, 9))
def test_everybody_who_writes_is_in_a_pass_soon(counts: list[int], most: int) -> None:
    # However many there are from pass to pass: nobody waits for longer than if all took turns.
    waited = [1] * max(counts)
    for count in [number for number in counts for _ in range(3)]:
        taken = window(waited[:count], most)
        assert len(taken) == min(count, most) and max(taken) < count
        for index in range(count):
            waited[index] = 0 if index in taken else waited[index] + 1
    for _ in range(-(-len(waited) // most) * 2):
        taken = window(waited, most)
        waited = [0 if index in taken else each + 1 for index, each in enumerate(waited)]
    assert max(waited) <= 2 * -(-len(waited) // most)
