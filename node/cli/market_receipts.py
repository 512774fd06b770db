"""`panal market receipts`, `export`: what both sides have signed."""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from node.cli.arguments import Subparsers, add_command, add_config, add_json
from node.cli.market_books import config_of, peer_of
from routing.errors import LocalError

if TYPE_CHECKING:
    from market.ledger_rows_sqlite import ReceiptRow

SHOWN = 50
"""Receipts that are shown unless more are asked for: a screen. --json and export have all."""

MOST = 1_000_000
"""Receipts in a file: far more than it keeps."""

SECONDS_A_DAY, EPOCH = 86_400, 3_600

_COLUMNS = (
    "hour", "epoch", "peer", "we_pay", "kind", "n", "pairs", "micro_credits", "model", "quote", "full",
    "receipt",
)  # fmt: skip


def add(subparsers: Subparsers) -> None:
    """Declare both."""
    receipts = add_command(subparsers, "receipts", run_receipts, "show receipts, the latest hours first")
    add_config(receipts, required=False)
    _add_which(receipts)
    receipts.add_argument(
        "--limit", type=int, default=SHOWN, metavar="N", help=f"at most so many (default: {SHOWN})"
    )
    add_json(receipts)
    export = add_command(
        subparsers,
        "export",
        run_export,
        "write all receipts as CSV, with their signatures",
        epilog="The last column is the signed receipt in hexadecimal (docs/protocol.md): proof for anybody.",
    )
    add_config(export, required=False)
    _add_which(export)
    export.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: standard output")
    add_json(export)


def _add_which(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", metavar="PEER", help="only this peer's: its id, or the end of it")
    parser.add_argument("--days", type=float, metavar="N", help="only of the last N days")


def run_receipts(args: argparse.Namespace) -> int:
    """Receipts as a table."""
    if not 1 <= args.limit <= MOST:
        raise LocalError(f"--limit {args.limit}: 1 to {MOST:,} are possible")
    rows = _receipts(args, MOST if args.json else args.limit)
    if args.json:
        print(json.dumps([_as_dict(row) for row in rows]))
        return 0
    if not rows:
        print("no receipts")
        return 0
    from market.credits import credits_text
    from node.cli.peer_labels import peer_labels
    from node.cli.table import format_table

    label = peer_labels(config_of(args))
    print(
        format_table(
            ("hour (UTC)", "peer", "who owes", "kind", "pairs", "amount", "signed by"),
            [
                (
                    _hour(row.signed.receipt.epoch),
                    label(row.peer),
                    "we do" if row.we_pay else "it does",
                    row.signed.receipt.kind.name.lower(),
                    f"{row.signed.receipt.pairs:,}",
                    credits_text(row.signed.receipt.credits),
                    "both" if row.signed.full else "one",
                )
                for row in rows
            ],
        )
    )
    if not all(row.signed.full for row in rows):
        print("amounts are totals of the hour: what one has signed replaces the one before, once both have")
    return 0


def run_export(args: argparse.Namespace) -> int:
    """Receipts as CSV."""
    import csv
    import io

    told = [_as_dict(row) for row in _receipts(args, MOST)]
    if args.json:
        text = json.dumps(told) + "\n"
    else:
        file = io.StringIO()
        writer = csv.DictWriter(file, _COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows({name: _cell(value) for name, value in row.items()} for row in told)
        text = file.getvalue()
    if args.output is None:
        print(text, end="")
        return 0
    try:
        args.output.write_text(text, encoding="utf-8")
    except OSError as error:
        raise LocalError(f"{args.output} cannot be written: {error.strerror}; choose another") from None
    print(f"{len(told):,} receipts in {args.output}")
    return 0


def _cell(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _as_dict(row: ReceiptRow) -> dict[str, Any]:
    receipt = row.signed.receipt
    return {
        "hour": _hour(receipt.epoch),
        "epoch": receipt.epoch,
        "peer": row.peer,
        "we_pay": row.we_pay,
        "kind": receipt.kind.name.lower(),
        "n": receipt.n,
        "pairs": receipt.pairs,
        "micro_credits": receipt.credits,
        "model": receipt.model_id if receipt.quote else "",
        "quote": receipt.quote,
        "full": row.signed.full,
        "receipt": row.signed.encode().hex(),
    }


def _receipts(args: argparse.Namespace, limit: int) -> list[ReceiptRow]:
    from market.ledger_sqlite import SqliteLedger
    from node.device.folder import NodeFolder

    config = config_of(args)
    if args.days is not None and not 0 < args.days <= 36_500:
        raise LocalError(f"--days {args.days:g}: more than 0, and at most 36,500")
    since = 0 if args.days is None else int(time.time() - args.days * SECONDS_A_DAY) // EPOCH
    peer = "" if args.peer is None else peer_of(config, args.peer)
    ledger = SqliteLedger.reading(NodeFolder.of(config).market)
    try:
        return ledger.receipts(peer, since, limit)
    finally:
        ledger.close()


def _hour(epoch: int) -> str:
    return time.strftime("%Y-%m-%d %H:00", time.gmtime(epoch * EPOCH))
