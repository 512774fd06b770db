"""Work on words that strangers chose (grammars, chat templates), in processes of its own.

There it may hang, crash or eat memory, and one answer fails. `process` is the side that asks, `serving` the
one that answers, `frames` what passes between them. Imports nothing of panal but its errors.
"""
