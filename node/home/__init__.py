"""The home set: which cells a backbone computes itself, what that saves, and getting them from peers.

What chooses is pure. `fetched` keeps in the store what `fetch` has got from peers.
"""
