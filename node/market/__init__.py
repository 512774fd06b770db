"""The market on a running node: prices from adverts, receipts over QUIC, audits; `part` puts it together.

Nothing of it is imported where `[market] mode` is "free". The rules themselves are in `market`, without I/O.
"""
