"""`panal market balance`, `settle`: who owes whom."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from routing.errors import LocalError

if TYPE_CHECKING:
    from market.ledger import Balance
    from node.config import NodeConfig

MAX_CREDITS = 2**53 // 1_000_000
"""Of a settlement, as of any total of a receipt."""


def add(subparsers: Subparsers) -> None:
    """Declare both."""
    balance = add_command(
        subparsers,
        "balance",
        run_balance,
        "show who owes whom",
        epilog="Debts count by receipts that both sides have signed. What was computed since is shown apart.",
    )
    add_config(balance, required=False)
    add_json(balance)
    settle = add_command(
        subparsers,
        "settle",
        run_settle,
        "sign off what a peer owes: it was paid in some other way, or is forgiven",
        epilog="The peer is told when it is next connected. Nothing takes it back. With --forgive also what\n"
        "it has not signed for can be given up.",
    )
    settle.add_argument("peer", metavar="PEER", help="its peer id, or the end of it")
    settle.add_argument("amount", metavar="CREDITS", help='how much, like 2.5, or "all"')
    settle.add_argument("--forgive", action="store_true", help="it was not paid; it is given up")
    add_config(settle, required=False)
    add_json(settle)


def run_balance(args: argparse.Namespace) -> int:
    """Who owes whom, by the running node or by the file."""
    from market.credits import credits_text

    config = config_of(args)
    balances = balances_of(config)
    owed = sum(max(0, each["owes"]) for each in balances)
    owes = sum(max(0, -each["owes"]) for each in balances)
    if args.json:
        print(json.dumps({"owed": owed, "owes": owes, "peers": balances}))
        return 0
    if not balances:
        print("nobody owes anybody anything")
        return 0
    from node.cli.peer_labels import peer_labels
    from node.cli.table import format_table

    label = peer_labels(config)
    rows = [
        (
            label(each["peer"]),
            _or_dash(each["owes"]),
            _or_dash(each["unsigned"]),
            "-" if each["limit"] is None else credits_text(each["limit"]),
            _or_dash(-each["owes"]),
            _or_dash(each["due"]),
            _note(each),
        )
        for each in balances
    ]
    print(format_table(_HEADER, rows))
    print(f"owed to this node: {credits_text(owed)}; this node owes {credits_text(owes)}")
    return 0


_HEADER = ("peer", "it owes", "not signed", "its limit", "we owe", "to be signed", "note")


def _or_dash(micro: int) -> str:
    from market.credits import credits_text

    return credits_text(micro) if micro > 0 else "-"


def _note(each: dict[str, Any]) -> str:
    """What is wrong with an account, the gravest first; and what waits."""
    from market.credits import credits_text

    said = []
    if each["fault"]:
        said.append(str(each["fault"]))
    elif each.get("refuses"):
        said.append(f"it computes nothing for us: {each['refuses']}")
    elif each.get("refused_here"):
        said.append(f"we compute nothing for it: {each['refused_here']}")
    elif each["refused"]:
        said.append(f"it took no receipt: {each['refused']}")
    if each.get("waiting"):
        said.append(f"{credits_text(each['waiting'])} signed off, it has not taken it yet")
    return "; ".join(said)


def run_settle(args: argparse.Namespace) -> int:
    """Sign off a debt, by the running node or in its file."""
    from market.credits import credits_text
    from node.device.folder import NodeFolder
    from node.device.running_node import NodeRefused, find_running

    config = config_of(args)
    peer = peer_of(config, args.peer)
    found = next((each for each in balances_of(config) if each["peer"] == peer), None)
    if found is None:
        raise LocalError(f"{peer} owes nothing: there is nothing to settle")
    most, waiting = _most(found, forgive=args.forgive), int(found.get("waiting", 0))
    if args.amount == "all" and not most and waiting:
        raise LocalError(
            f"nothing left to settle with {peer}: what waits for its signature is {credits_text(waiting)}"
        )
    credits = _amount(args.amount, most)
    running = find_running(NodeFolder.of(config), config.http.key_file)
    body = {"peer": found["peer"], "credits": credits, "forgiven": args.forgive}
    if running is not None:
        try:
            running.post("/api/market/settle", body)
        except NodeRefused as error:
            raise LocalError(error.reason) from None
    else:
        from node.market.settled_offline import settle_offline

        settle_offline(config, found["peer"], credits, forgiven=args.forgive)
    if args.json:
        print(json.dumps(body))
    else:
        told = (
            "it is told as soon as it is connected"
            if running is not None
            else "it is told when the node runs"
        )
        print(f"{credits_text(credits)} of {found['peer']} signed off; {told}")
    return 0


# --- what there is ---


def balances_of(config: NodeConfig) -> list[dict[str, Any]]:
    """Of the running node, which knows what is not signed yet; else of its file. In micro-credits."""
    from node.device.folder import NodeFolder
    from node.device.running_node import find_running

    running = find_running(NodeFolder.of(config), config.http.key_file)
    if running is not None:
        told = running.get("/api/status")
        market = told.get("market") if isinstance(told, dict) else None
        if isinstance(market, dict) and not market.get("credits_left_out"):
            return list(market["credits"])
    from market.ledger_sqlite import SqliteLedger

    ledger = SqliteLedger.reading(NodeFolder.of(config).market)
    try:
        return [
            _told(each)
            for each in ledger.balances()
            if each.owes_us or each.due or each.fault or each.waiting
        ]
    finally:
        ledger.close()


def _told(balance: Balance) -> dict[str, Any]:
    """As the status tells it."""
    return {
        "peer": balance.peer,
        "owes": balance.owes_us,
        "unsigned": 0,
        "due": balance.due,
        "limit": None if balance.limit < 0 else balance.limit,
        "refused": balance.refused,
        "refuses": "",
        "refused_here": "",
        "fault": balance.fault,
        "waiting": balance.waiting,
    }


def peer_of(config: NodeConfig, text: str) -> str:
    """The peer with accounts here whose id this is, or ends so.

    Raises:
        LocalError: none, or several.
    """
    from market.ledger_sqlite import SqliteLedger
    from node.device.folder import NodeFolder

    ledger = SqliteLedger.reading(NodeFolder.of(config).market)
    try:
        known = {each.peer for each in ledger.balances()}
    finally:
        ledger.close()
    known |= {each["peer"] for each in balances_of(config)}
    missing = f"no account with a peer {text[:80]!r}: panal market balance shows those there are"
    return peer_among(known, text, missing)


def peer_among(known: Collection[str], text: str, missing: str) -> str:
    """The one of these whose id this is, or ends so.

    Args:
        missing: what is said if there is none.

    Raises:
        LocalError: none, or several.
    """
    found = sorted(peer for peer in known if text and peer.endswith(text))
    if len(found) == 1:
        return found[0]
    if not found:
        raise LocalError(missing)
    raise LocalError(f"{text[:80]!r} may be {', '.join(found[:3])}: give more of the id")


def _most(found: dict[str, Any], *, forgive: bool) -> int:
    """What of a debt can be signed off still: forgiven also what was not signed for."""
    owed = max(0, int(found["owes"]) - int(found.get("waiting", 0)))
    return owed + (int(found["unsigned"]) if forgive else 0)


def _amount(text: str, owed: int) -> int:
    """Micro-credits.

    Args:
        owed: what "all" means.

    Raises:
        LocalError: it is no amount.
    """
    from market.credits import MICRO

    if text == "all":
        if owed <= 0:
            raise LocalError(
                "this peer owes nothing by receipts: there is nothing to settle (--forgive also gives up "
                "what is not signed)"
            )
        return owed
    try:
        credits = float(text)
    except ValueError:
        credits = 0.0
    if not 1 / MICRO <= credits <= MAX_CREDITS:
        raise LocalError(f'{text[:40]!r} is no amount: credits like 2.5, or "all"')
    return round(credits * MICRO)


def config_of(args: argparse.Namespace) -> NodeConfig:
    """The config that a command was given, or this device's own."""
    from node.device.which_config import load

    return load(args.config, os.environ)
