"""Reachability, hole punching, relay service and client. May import `routing`, nothing else.

Empty until discovery lands: peers come from the config, and all of them are dialled directly.
"""
