"""Decoding: passes of the backbone, sessions that own a sequence, and what an answer cost in trips."""
