"""The data plane: QUIC on one UDP socket a node, driven by trio, speaking libp2p's QUIC.

`Endpoint` listens and dials, `Connection` is one authenticated peer, `Stream` carries
length-prefixed messages of one protocol. The QUIC engines (qh3 by default, aioquic) stand behind
`core.QuicCore` and are named only in `qh3_core`, `aioquic_core` and `tls`.
"""
