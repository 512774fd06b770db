"""Scarcity prices, receipts, ledger, advice, audit. May import `routing`, nothing else.

Empty until the market lands: every call is free.
"""
