"""A node's place in the swarm: who is there, how each is reached, and what this node says of itself.

`SwarmNode` (node.py) puts the parts together, for whoever serves and whoever asks alike.
"""
