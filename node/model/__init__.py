"""What a model is on disk: strict GGUF reading, manifest, trunk, slices, the local store."""
