"""A zoo of tiny MoE models, one for each way llama.cpp computes routed experts."""
