"""`panal verify`: a swarm against plain llama.cpp on the whole file, and what each mode promises."""
