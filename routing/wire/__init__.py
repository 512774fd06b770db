"""What travels between nodes: codecs, typed tensors and the messages of `/panal/...` protocols.

Sans-IO: bytes in, messages or a `PeerError` out. No sockets, no clock, no trio. The formats are
described for other implementations in docs/protocol.md.
"""
