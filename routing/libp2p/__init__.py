"""libp2p over TCP, as far as the control plane needs it: Noise, Yamux, identify, ping, Kademlia.

An own implementation of the published specs on trio and `cryptography`; it needs no libp2p package.
py-libp2p and js-libp2p are what the tests hold it against. The reasons: it bounds what each peer can
make us hold (py-libp2p's Yamux does not enforce its own receive window, and a stream that fails to
negotiate ends its whole host), it ends at once when cancelled, and it costs no import and no compiler.

    protobuf, noise, kad_wire        bytes in and out, no I/O
    kad_table, kad_store, kad_lookup Kademlia's tables and the order of a lookup, no I/O
    secure_channel, yamux, delimited one connection: encrypted, with streams, with whole messages on them
    identify, host                   all connections of a node
    directory                        adverts in the DHT
"""
