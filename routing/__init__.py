"""Who has what, how to reach them, which of them to ask: wire formats, dispatch, the QUIC plane.

The bottom of the house: imports nothing of `node`, `relay` or `market`. Formats, plans and state
machines are pure; sockets and the clock live in `routing.quic` and `routing.dispatch.star` only.
"""
