"""Amounts of credits for people. Pure."""

from __future__ import annotations

MICRO = 1_000_000
"""Micro-credits of a credit."""

_FIGURES = 3


def credits_text(micro: int) -> str:
    """An amount in credits, to three figures: `1,234 credits`, `0.0312 credits`, `1 credit`."""
    amount = micro / MICRO
    if micro % MICRO == 0 or abs(amount) >= 10 ** (_FIGURES - 1):
        text = f"{amount:,.0f}"
    else:
        whole = len(str(int(abs(amount)))) if abs(amount) >= 1 else 0
        digits = _FIGURES - whole
        if not whole:  # zeros after the point are no figures
            digits += len(str(MICRO)) - 1 - len(str(abs(micro)))
        text = f"{amount:.{digits}f}".rstrip("0").rstrip(".")
    return f"{text} credit" if text in ("1", "-1") else f"{text} credits"
