"""The ABI guard: is this library laid out as `structs` says? Checked before any struct is trusted."""

from __future__ import annotations

import ctypes as C
from typing import Any

from node.engine.structs import TYPE_F16, ContextParams, ModelParams, Tensor, TokenData, TokenDataArray

# sizeof(struct ggml_object), which ggml_tensor_overhead() adds to sizeof(struct ggml_tensor).
OBJECT_BYTES = 32

# Names at fixed places of enums that recipes and hooks rely on.
EXPECTED_OPS = {0: b"NONE", 2: b"ADD", 3: b"ADD_ID", 7: b"MUL", 30: b"MUL_MAT_ID", 37: b"VIEW"}


def mismatch(library: Any) -> str:
    """What differs between the library and our layouts, in words; "" if nothing that can be seen."""
    tensor = library.ggml_tensor_overhead() - OBJECT_BYTES
    if tensor != C.sizeof(Tensor):
        return f"its ggml_tensor has {tensor} bytes, ours {C.sizeof(Tensor)}"
    for op, name in EXPECTED_OPS.items():
        found = library.ggml_op_name(op)
        if found != name:
            return f"its operation {op} is {found!r}, ours {name!r}"
    context: ContextParams = library.llama_context_default_params()
    seen = {
        "n_batch": (context.n_batch, 2048),
        "n_ubatch": (context.n_ubatch, 512),
        "n_seq_max": (context.n_seq_max, 1),
        "type_k": (context.type_k, TYPE_F16),
        "type_v": (context.type_v, TYPE_F16),
        "flash_attn_type": (context.flash_attn_type, -1),
        "yarn_ext_factor": (context.yarn_ext_factor, -1.0),
        "offload_kqv": (context.offload_kqv, True),
        "op_offload": (context.op_offload, True),
        "kv_unified": (context.kv_unified, False),
    }
    for field, (found, expected) in seen.items():
        if found != expected:
            return f"its default context has {field} {found}, ours {expected}"
    model: ModelParams = library.llama_model_default_params()
    booleans = (model.vocab_only, model.check_tensors, model.use_extra_bufts, model.no_host, model.no_alloc)
    if model.split_mode != 1 or booleans != (False, False, True, False, False):
        return "its default model parameters are laid out otherwise"
    if _penalised(library) != [1.0, 1.0, 0.5, 1.0]:
        return "its sampler of penalties takes other arguments"
    return ""


def _penalised(library: Any) -> list[float]:
    """Four logits of 1 after tokens 1 and 2, when a repetition within the last one token halves.

    Builds differ in whether the size of the vocabulary is an argument; a call that is wrong there goes
    unnoticed otherwise.
    """
    candidates = (TokenData * 4)(*(TokenData(token, 1.0, 0.0) for token in range(4)))
    sampler = library.llama_sampler_init_penalties(4, 1, 2.0, 0.0, 0.0)
    for token in (1, 2):
        library.llama_sampler_accept(sampler, token)
    library.llama_sampler_apply(sampler, C.byref(TokenDataArray(candidates, 4, -1, False)))
    library.llama_sampler_free(sampler)
    return [candidate.logit for candidate in candidates]
