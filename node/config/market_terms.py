"""What a [market] table means: credits counted in micro-credits, bounds that fit each other."""

from __future__ import annotations

from node.config.settings import MICRO, ConfigError, MarketConfig
from node.config.shape import MAX_CAP_RATIO, MarketTable
from node.line_rate import RateError, parse_rate


def market_terms(file: object, table: MarketTable) -> MarketConfig:
    """As the file says.

    Args:
        file: where it stands, for messages.

    Raises:
        ConfigError: floor and cap cannot be, or the uplink is no rate.
    """
    if table.floor > table.cap:
        raise ConfigError(
            f"{file}: market.floor is {table.floor}, above market.cap, which is {table.cap}: "
            "the floor is the least that a price falls to, the cap the most that it rises to"
        )
    if table.mode == "scarcity" and not 1 <= table.floor <= table.cap <= MAX_CAP_RATIO * table.floor:
        raise ConfigError(
            f"{file}: market.cap is {table.cap}, and market.floor {table.floor}: no price settles "
            f"between them; the cap may be {MAX_CAP_RATIO:,} times the floor, which is at least 1"
        )
    return MarketConfig(
        mode=table.mode,
        price=table.price,
        floor=table.floor,
        cap=table.cap,
        prefer=table.prefer,
        budget_answer=None if table.budget_answer is None else _micro(table.budget_answer),
        budget_day=None if table.budget_day is None else _micro(table.budget_day),
        credit_line=_micro(table.credit_line),
        newcomers=_micro(table.newcomers),
        second=_micro(table.second),
        audit=table.audit,
        vouch=table.vouch,
        uplink=None if table.uplink is None else _rate(file, table.uplink),
    )


def _micro(credits: float) -> int:
    return round(credits * MICRO)


def _rate(file: object, text: str) -> float:
    try:
        return parse_rate(text)
    except RateError as error:
        raise ConfigError(f"{file}: market.uplink: {error}") from None
