"""Continuous batching: questions come and go, all that are under way share each pass and so each trip.

`decoder.Decoder` is what the gateway talks to; it runs a `worker.Worker` on a thread of its own, which owns a
backbone with a cache for each session. What it decides is pure: who waits and who is next (admission), what
the next pass does (schedule), what a prompt takes from the caches of others (prefix), which caches change
places (layout).
"""
