"""`panal market audits`, `pardon`: who answered falsely, how that was found, and whom the owner forgives."""

from __future__ import annotations

import argparse
import json
import time
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from node.cli.market_books import balances_of, config_of, peer_among
from routing.errors import LocalError

if TYPE_CHECKING:
    from market.evidence_sqlite import Evidence
    from node.config import NodeConfig

SHOWN = 10
"""False answers that are shown unless more are asked for."""

MOST = 4_096
"""As many as are kept (market.evidence_sqlite)."""

MAX_PEER_CHARS = 64

_NONE = (
    "no call was run again yet: a node with a [backbone] does that where [market] mode is not free and audit "
    "is above 0"
)


def add(subparsers: Subparsers) -> None:
    """Declare both."""
    audits = add_command(
        subparsers,
        "audits",
        run_audits,
        "show whose answers were run again, who answered falsely and is not asked",
        epilog="A share of the answers that this node's backbone got is computed again elsewhere ([market]\n"
        "audit). The digests of what was asked and answered are in --json (docs/market.md, Audit).",
    )
    add_config(audits, required=False)
    audits.add_argument(
        "--limit", type=int, default=SHOWN, metavar="N", help=f"false answers shown (default: {SHOWN})"
    )
    add_json(audits)
    pardon = add_command(
        subparsers,
        "pardon",
        run_pardon,
        "forgive a peer its false answers, or that it has signed double",
        epilog="It is asked, and served, again at once. What was found stays in the file, marked.",
    )
    pardon.add_argument("peer", metavar="PEER", help="its peer id, or the end of it")
    add_config(pardon, required=False)
    add_json(pardon)


def run_audits(args: argparse.Namespace) -> int:
    """By the running node or by the files."""
    if not 1 <= args.limit <= MOST:
        raise LocalError(f"--limit {args.limit}: 1 to {MOST:,} are possible")
    config = config_of(args)
    told, evidence, double = _audits(config), _evidence(config, args.limit), _double(config)
    if args.json:
        print(json.dumps(told | {"evidence": [_as_dict(each) for each in evidence], "double": double}))
        return 0
    from node.cli.peer_labels import peer_labels
    from node.cli.table import format_table

    label = peer_labels(config)
    peers = [each for each in told["peers"] if isinstance(each, dict)]
    if not peers and not evidence and not double:
        print(_NONE)
        return 0
    if peers:
        print(format_table(_PEERS, [_peer_row(label(str(each["peer"])), each) for each in peers]))
    if evidence:
        print(("\n" if peers else "") + "false answers, the newest first:")
        print(format_table(_FOUND, [_found_row(label(each.peer_id), each) for each in evidence]))
    if double and (peers or evidence):
        print()
    for each in double:
        print(
            f"{each['peer']} has signed double: {each['why']} ({_when(each['at'])})"
            + (f", pardoned {_when(each['pardoned'])}" if each["pardoned"] else "; it gets no work here")
        )
    return 0


_PEERS = (
    "peer", "run again", "agreed", "differed", "marks", "strikes", "standing", "by hearsay", "build",
    "not asked until",
)  # fmt: skip


def _peer_row(peer: str, each: dict[str, Any]) -> tuple[object, ...]:
    from routing.wire.text import sanitise

    until = each["until"]
    state = "in dispute" if each["suspected"] else "-"
    return (
        peer,
        f"{each['checked']:,}",
        f"{each['agreed']:,}",
        f"{each['checked'] - each['agreed']:,}",
        each["marks"],
        each["strikes"],
        f"{each['standing']:,.1f}",
        f"{each['hearsay']:,.1f}",
        sanitise(str(each["build"]), 16) or "-",
        state if until is None else _when(until),
    )


_FOUND = ("when (UTC)", "peer", "layer", "pairs", "1 - cosine", "length off by", "how it was decided")


def _found_row(peer: str, each: Evidence) -> tuple[object, ...]:
    pardoned = f" (pardoned {_when(each.pardoned)})" if each.pardoned else ""
    return (
        _when(each.at),
        peer,
        each.layer,
        each.pairs,
        f"{each.cosine:.1e}",
        f"{each.length * 100:.2g} %",
        each.reason + pardoned,
    )


def _as_dict(each: Evidence) -> dict[str, Any]:
    """As the status tells it, and with the digests."""
    import msgspec

    from node.market.audits_told import evidence_told

    (told,) = evidence_told([each])
    digests = {"request": each.request, "answer": each.answer, "other_answer": each.other_answer}
    return {**msgspec.to_builtins(told), **{name: digest.hex() for name, digest in digests.items()}}


def run_pardon(args: argparse.Namespace) -> int:
    """By the running node or in its files."""
    from node.device.folder import NodeFolder
    from node.device.running_node import NodeRefused, find_running

    config = config_of(args)
    peer = _whole_id(config, args.peer)
    running = find_running(NodeFolder.of(config), config.http.key_file)
    if running is not None:
        try:
            told = running.post("/api/market/pardon", {"peer": peer})
        except NodeRefused as error:
            raise LocalError(error.reason) from None
    else:
        import msgspec

        from node.market.pardoning import pardon_offline

        told = msgspec.to_builtins(pardon_offline(config, peer))
    if args.json:
        print(json.dumps(told))
        return 0
    strikes = int(told["strikes"])
    what = [f"{strikes} strike{'' if strikes == 1 else 's'}"] if strikes else []
    what += ["that it has signed double"] if told["fault"] else []
    print(
        f"{peer}: {' and '.join(what)} forgiven" + ("" if running else "; the node goes by it when it runs")
    )
    return 0


def _whole_id(config: NodeConfig, text: str) -> str:
    """Of a peer that was audited, or has accounts here; a whole id is taken as it is.

    Raises:
        LocalError: none, or several.
    """
    known = {str(each["peer"]) for each in _audits(config)["peers"]}
    known |= {each.peer_id for each in _evidence(config, MOST)}
    known |= {each["peer"] for each in _accounts(config)}
    missing = f"no peer {text[:80]!r} is known here: panal market audits shows against whom anything stands"
    return peer_among(known, text, missing)


# --- what there is ---


def _audits(config: NodeConfig) -> dict[str, Any]:
    """Of the running node; of one without audits, or where none runs, by its file."""
    import msgspec

    from node.device.folder import NodeFolder
    from node.device.running_node import find_running
    from node.market.audits_told import audits_told
    from node.market.findings import found_earlier
    from node.status.facts import Audits

    running = find_running(NodeFolder.of(config), config.http.key_file)
    if running is not None:
        status = running.get("/api/status")
        market = status.get("market") if isinstance(status, dict) else None
        told = market.get("audits") if isinstance(market, dict) else None
        if told is not None:
            try:
                return dict(msgspec.to_builtins(msgspec.convert(told, Audits)))
            except msgspec.ValidationError as error:
                raise LocalError(
                    "the node that runs here tells of audits otherwise than this panal reads it "
                    f"({error}): start it again"
                ) from None
    with found_earlier(NodeFolder.of(config)) as findings:
        share = config.market.audit
        if findings is None:
            return dict(msgspec.to_builtins(Audits(share, 0, 0, 0, 0, 0, 0, 0, 0, [], 0, [])))
        return dict(msgspec.to_builtins(audits_told(findings, None, share, time.time())))


def _evidence(config: NodeConfig, limit: int) -> list[Evidence]:
    """False answers, the newest first."""
    from contextlib import closing

    from market.evidence_sqlite import AuditBook
    from node.device.folder import NodeFolder

    book = AuditBook.reading(NodeFolder.of(config).audit)
    if book is None:
        return []
    with closing(book):
        return book.evidence(limit)


def _accounts(config: NodeConfig) -> list[dict[str, Any]]:
    """Who owes whom; nothing where there are no accounts yet."""
    from node.device.folder import NodeFolder

    return balances_of(config) if NodeFolder.of(config).market.exists() else []


def _double(config: NodeConfig) -> list[dict[str, Any]]:
    """Proofs that peers have signed double, the newest first."""
    from contextlib import closing

    from market.ledger_sqlite import SqliteLedger
    from node.device.folder import NodeFolder

    path = NodeFolder.of(config).market
    if not path.exists():
        return []
    with closing(SqliteLedger.reading(path)) as ledger:
        return [
            {
                "peer": each.peer,
                "at": each.at,
                "why": each.why,
                "pardoned": each.pardoned or None,
                "receipts": [each.one.encode().hex(), each.other.encode().hex()],
            }
            for each in ledger.evidence()
        ]


def _when(at: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.gmtime(at))
