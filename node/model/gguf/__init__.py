"""GGUF files: a strict reader of our own, a writer, split files and read-only maps.

Nothing here trusts a file: every length, count and offset is checked against the file's size and a
named limit before anything is allocated. Tensor data is never read to learn what a file holds.
May import `routing.errors` and numpy, nothing of llama.cpp.
"""
