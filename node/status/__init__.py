"""The status of a node: its facts, gathered once for all who ask, and page, JSON and metrics made of them.

`facts` is what is told; `gather` reads it off the running parts, with the help of the pure `rates`,
`peers_met`, `coverage` and `concerns`; `board` keeps it fresh; `routes` gives it out over HTTP. May import
all of node.
"""
