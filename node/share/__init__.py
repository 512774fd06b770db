"""A model on its way between devices: what a node gives, and how another fetches it, proven chunk by chunk.

Fetching is one machine for all that is fetched: `work` says what is left and who is asked, `fetch` asks, and
a target takes what comes: `download` here, `node.home.fetched` for home sets.
"""
