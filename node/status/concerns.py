"""What the owner of a node may have to do something about, in words. Pure.

A concern is found anew each time; since when it has been so is remembered by what it is about, not by its
words.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from market.credits import credits_text
from node.sizes import size_text
from node.status.facts import Market, Model, Node, Warning, WarningCode, short_id
from node.status.facts.runs import Runs, runs_in_words
from routing.advert_rows import Clone
from routing.not_reached import advice, describe
from routing.wire.advert import CLOCK_SKEW
from routing.wire.text import sanitise

ALONE_SECONDS = 15.0
"""Without any connection for so long after the start, or since the last one."""

UNREACHABLE_SECONDS = 60.0
"""A node that has just begun is still finding out."""

LEAST_FREE_BYTES = 1 << 30
"""Free on the store's disk: less than a slice of any model worth serving."""

MEMBER_DAYS = 14.0
"""Before a membership ends."""

MAX_OF_A_KIND = 8
"""Warnings about different peers, models or keys; the rest is counted."""

MAX_PAUSED_NAMED = 3
"""Peers that one line names."""

LINE_BYTES = 400

_RANK = {"error": 0, "warning": 1, "info": 2}


@dataclass(frozen=True)
class Observed:
    """What the warnings are made of, besides the facts themselves.

    Attributes:
        now: unix time.
        alone_since: since when no peer is connected; None while one is.
        clones: keys in use on two machines.
        clock_offsets: peer's clock minus ours, by peer.
        failures: peers of the config that are wanted and do not answer, by label, with the reason.
        free_bytes: on the store's disk; None if unknown. store: where that is.
        member_until: when the membership in a private swarm ends; None in an open one.
        listens_to_others: it is not bound to loopback.
        refusing: peers that compute nothing for this node before they are paid, by label, with the reason.
        refused_here: the same the other way round.
        market: prices, debts, budgets, audits; None where everything is free.
        label: what people call a peer.
        asking: holders of this node's model that ask prices, where this node pays none.
        paused: peers that have some cells of a model and are paused, by name, and how many of them.
    """

    now: float
    alone_since: float | None = None
    clones: Sequence[Clone] = ()
    clock_offsets: Mapping[str, float] = field(default_factory=dict)
    failures: Mapping[str, str] = field(default_factory=dict)
    free_bytes: int | None = None
    store: str = ""
    member_until: float | None = None
    listens_to_others: bool = True
    refusing: Mapping[str, str] = field(default_factory=dict)
    refused_here: Mapping[str, str] = field(default_factory=dict)
    asking: Sequence[str] = ()
    market: Market | None = None
    label: Callable[[str], str] = str
    paused: Callable[[str, Runs], Mapping[str, int]] = lambda model_id, missing: {}


@dataclass(frozen=True)
class _Concern:
    about: str
    code: WarningCode
    level: str
    what: str
    advice: str


class Concerns:
    """Remembers since when."""

    def __init__(self) -> None:
        self._since: dict[tuple[str, str], float] = {}

    def told(self, node: Node, models: Sequence[Model], observed: Observed) -> list[Warning]:
        """All of them, the gravest first, then those that began last."""
        found = [
            *_clones(observed),
            *_clocks(observed),
            *_disk(observed),
            *_membership(observed),
            *_missing(models, observed),
            *_network(node, observed),
            *_relay(node),
            *_failures(observed),
            *_credit(observed),
            *_convicted(observed),
            *_paused(node),
        ]
        self._since = {
            (each.code, each.about): self._since.get((each.code, each.about), observed.now) for each in found
        }
        warnings = [
            Warning(
                code=each.code,
                level=each.level,  # type: ignore[arg-type]
                what=sanitise(each.what, LINE_BYTES),
                advice=sanitise(each.advice, LINE_BYTES),
                since=round(self._since[each.code, each.about], 1),
            )
            for each in found
        ]
        return sorted(warnings, key=lambda each: (_RANK[each.level], -each.since))


def _clones(observed: Observed) -> Iterable[_Concern]:
    for clone in observed.clones[:MAX_OF_A_KIND]:
        first, second = clone.addresses
        if clone.own:
            what = f"this node's own identity is in use elsewhere, at {second} (here: {first})"
            advice = (
                "its key file was copied: move it away on one of the two machines and start that one again"
            )
        else:
            what = f"identity {clone.peer_id} is in use on two machines, at {first} and at {second}"
            advice = "one of the two needs a key of its own; their owners have to see to it"
        yield _Concern(
            f"{clone.peer_id} {second}", "clone", "error" if clone.own else "warning", what, advice
        )


def _clocks(observed: Observed) -> Iterable[_Concern]:
    wrong = {peer: each for peer, each in observed.clock_offsets.items() if abs(each) > CLOCK_SKEW}
    ours = len(wrong) >= 2 and 2 * len(wrong) > len(observed.clock_offsets)
    if ours:
        mean = sum(wrong.values()) / len(wrong)
        side = "behind" if mean > 0 else "ahead"
        yield _Concern(
            "own",
            "clock",
            "error",
            f"this node's clock is probably wrong: it is {abs(mean):.0f} s {side} of {len(wrong)} of "
            f"{len(observed.clock_offsets)} peers",
            f"set it by NTP; adverts of clocks more than {CLOCK_SKEW} s apart are refused",
        )
        return
    for peer, offset in sorted(wrong.items())[:MAX_OF_A_KIND]:
        side = "ahead of" if offset > 0 else "behind"
        yield _Concern(
            peer,
            "clock",
            "warning",
            f"the clock of {peer} is {abs(offset):.0f} s {side} this node's: the two cannot use each other's "
            "adverts",
            "set both clocks by NTP",
        )


def _disk(observed: Observed) -> Iterable[_Concern]:
    free = observed.free_bytes
    if free is not None and free < LEAST_FREE_BYTES:
        yield _Concern(
            "store",
            "disk-full",
            "error" if free < LEAST_FREE_BYTES // 16 else "warning",
            f"{size_text(free)} are free where the store is ({observed.store})",
            "make room (panal slice ls shows what lies there), or name another store in the config",
        )


def _membership(observed: Observed) -> Iterable[_Concern]:
    if observed.member_until is None:
        return
    days = (observed.member_until - observed.now) / 86400
    if days < MEMBER_DAYS:
        over = days <= 0
        yield _Concern(
            "member",
            "membership",
            "error" if over else "warning",
            "this node's membership in the swarm has ended" if over else
            f"this node's membership in the swarm ends in {max(days, 0.0):.0f} days",
            "ask the keeper of the swarm's key for an invitation, and panal swarm join it",
        )  # fmt: skip


def _missing(models: Sequence[Model], observed: Observed) -> Iterable[_Concern]:
    for model in models[:MAX_OF_A_KIND]:
        if "backbone" not in model.here or not model.missing_cells:
            continue
        yield _Concern(
            model.id,
            "missing-cells",
            "error",
            f"{model.name or model.short_id}: {model.missing_cells:,} cells are served by nobody: "
            f"{runs_in_words(model.missing)}{_who_is_paused(model, observed)}",
            "start a node that serves them (panal init --serve), resume one that is paused, or compute them "
            "here (home_memory in the config)",
        )


def _who_is_paused(model: Model, observed: Observed) -> str:
    """Of the holders of missing cells."""
    holders = observed.paused(model.id, model.missing)
    named = [
        f"{peer}, which has {count:,} of them" for peer, count in list(holders.items())[:MAX_PAUSED_NAMED]
    ]
    more = len(holders) - len(named)
    return f"; paused: {'; '.join(named)}{f'; {more} more' if more else ''}" if named else ""


def _network(node: Node, observed: Observed) -> Iterable[_Concern]:
    if not observed.listens_to_others:
        return
    if node.reach.udp is False:
        yield _Concern(
            "udp",
            "udp-blocked",
            "warning",
            "UDP does not get out of this network: peers are reached over TCP and relays, more slowly",
            "let UDP out in the firewall; panal netcheck tells more",
        )
    alone = observed.alone_since
    if alone is not None and observed.now - alone > ALONE_SECONDS:
        yield _Concern(
            "alone",
            "alone",
            "warning",
            "no peer is connected",
            "name a peer of the swarm in the config, or start another node on this network; panal netcheck "
            "tells more",
        )
    elif (
        node.reach.verdict == "private"
        and not node.relay.using
        and node.serves
        and node.uptime_seconds > UNREACHABLE_SECONDS
    ):
        yield _Concern(
            "reach",
            "unreachable",
            "warning",
            f"nobody outside this network can reach this node: {node.reach.reason}, and it has no relay",
            "forward its UDP port in the router, or let it use relays ([relay] use = true)",
        )


def _relay(node: Node) -> Iterable[_Concern]:
    relay = node.relay.serving
    if relay is None:
        return
    full = []
    if relay.reservations >= relay.max_reservations:
        full.append(f"all {relay.max_reservations} reservations")
    if relay.circuits >= relay.max_circuits:
        full.append(f"all {relay.max_circuits} circuits")
    if full:
        yield _Concern(
            "relay",
            "relay-full",
            "warning",
            f"this relay is full: {' and '.join(full)} are taken, others are turned away",
            "raise reservations and circuits in [relay], or have another public node relay too",
        )


def _failures(observed: Observed) -> Iterable[_Concern]:
    failing = sorted(observed.failures.items())
    for label, reason in failing[:MAX_OF_A_KIND]:
        yield _Concern(label, "peer", "warning", describe(label, reason), advice(reason))
    if len(failing) > MAX_OF_A_KIND:
        more = len(failing) - MAX_OF_A_KIND
        what = f"{more} more peers do not answer"
        yield _Concern("more", "peer", "warning", what, "panal peers names them")


def _credit(observed: Observed) -> Iterable[_Concern]:
    for label, why in sorted(observed.refusing.items())[:MAX_OF_A_KIND]:
        yield _Concern(
            f"to {label}",
            "credit",
            "warning",
            f"{label} computes nothing for this node before it is paid: {why}",
            "serve it as much, or have its owner settle; panal market balance tells more",
        )
    for label, why in sorted(observed.refused_here.items())[:MAX_OF_A_KIND]:
        yield _Concern(
            f"of {label}",
            "credit",
            "info",
            f"this node computes nothing for {label} before it is paid; it was told: {why}",
            "panal market settle signs off what it owes (--forgive: without payment); the most is "
            "credit_line in the config",
        )
    market = observed.market
    if market is not None and market.budget_day is not None and market.spent_today >= market.budget_day:
        yield _Concern(
            "budget",
            "credit",
            "warning",
            f"today's budget of {credits_text(market.budget_day)} is used up",
            "answers begin again at midnight UTC, or with a higher market.budget_day in the config",
        )
    if observed.asking:
        more = len(observed.asking) - MAX_OF_A_KIND
        named = ", ".join(observed.asking[:MAX_OF_A_KIND]) + (f" and {more} more" if more > 0 else "")
        want = "wants" if len(observed.asking) == 1 else "want"
        yield _Concern(
            "asking",
            "credit",
            "warning",
            f"{named} {want} to be paid, and this node signs no receipts: such are served for a while only",
            '[market] mode = "fixed" in the config pays',
        )


def _convicted(observed: Observed) -> Iterable[_Concern]:
    """Peers that gave false answers, as long as they are not asked, and those that have signed double."""
    market = observed.market
    if market is None:
        return
    audits = market.audits
    out = [] if audits is None else [each for each in audits.peers if each.until is not None]
    for peer in out[:MAX_OF_A_KIND]:
        until = _minute(peer.until or 0.0)
        yield _Concern(
            peer.peer,
            "convicted",
            "warning",
            f"{observed.label(peer.peer)} gave false answers: it is not asked until {until}",
            f"panal market audits shows what was found; panal market pardon {short_id(peer.peer)} lets it in",
        )
    if len(out) > MAX_OF_A_KIND:
        what = f"{len(out) - MAX_OF_A_KIND} more peers gave false answers, and are not asked"
        yield _Concern("more", "convicted", "warning", what, "panal market audits names them")
    double = [each for each in market.credits if each.fault]
    for credit in double[:MAX_OF_A_KIND]:
        yield _Concern(
            f"double {credit.peer}",
            "convicted",
            "warning",
            f"{observed.label(credit.peer)} has signed double, and gets no work here: {credit.fault}",
            f"if its owner restored an old copy of its accounts, panal market pardon {short_id(credit.peer)} "
            "forgives it",
        )


def _minute(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M UTC")


def _paused(node: Node) -> Iterable[_Concern]:
    if node.pause is not None:
        what = f"this node serves nothing now: {node.pause.text}"
        by_hand = "panal resume, or the button on the page, ends it"
        yield _Concern(
            "paused", "paused", "info", what, by_hand if node.pause.by_hand else "it ends by itself"
        )
