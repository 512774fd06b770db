"""Guessing the next tokens, so that one pass over the swarm yields several: who guesses, and how far it
pays."""
