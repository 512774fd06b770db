"""Stock llama.cpp through ctypes: library and ABI guard, the hook that lifts experts out of a graph,
their recipe, the kernels that compute them elsewhere, the backbone, tokenizer and sampler."""
