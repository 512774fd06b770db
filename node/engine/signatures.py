"""Argument and result types of every llama.cpp function that panal calls: name -> (result, arguments)."""

from __future__ import annotations

import ctypes as C
from typing import Any

from node.engine.structs import (
    Batch,
    ContextParams,
    InitParams,
    LogCallback,
    ModelParams,
    SamplerChainParams,
)

P = C.c_void_p
I32 = C.c_int32
I64 = C.c_int64
SIZE = C.c_size_t
F32 = C.c_float
BOOL = C.c_bool
TEXT = C.c_char_p

GGML: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "ggml_init": (P, (InitParams,)),
    "ggml_free": (None, (P,)),
    "ggml_tensor_overhead": (SIZE, ()),
    "ggml_graph_overhead_custom": (SIZE, (SIZE, BOOL)),
    "ggml_op_name": (TEXT, (C.c_int,)),
    "ggml_unary_op_name": (TEXT, (C.c_int,)),
    "ggml_glu_op_name": (TEXT, (C.c_int,)),
    "ggml_nbytes": (SIZE, (P,)),
    "ggml_quantize_chunk": (SIZE, (C.c_int, P, P, I64, I64, I64, P)),
    "ggml_new_tensor": (P, (P, C.c_int, C.c_int, C.POINTER(I64))),
    "ggml_mul_mat_id": (P, (P, P, P, P)),
    "ggml_add_id": (P, (P, P, P, P)),
    "ggml_add": (P, (P, P, P)),
    "ggml_mul": (P, (P, P, P)),
    "ggml_sqr": (P, (P, P)),
    "ggml_scale_bias": (P, (P, P, F32, F32)),
    "ggml_clamp": (P, (P, P, F32, F32)),
    "ggml_rms_norm": (P, (P, P, F32)),
    "ggml_norm": (P, (P, P, F32)),
    "ggml_l2_norm": (P, (P, P, F32)),
    "ggml_unary": (P, (P, P, C.c_int)),
    "ggml_glu": (P, (P, P, C.c_int, BOOL)),
    "ggml_glu_split": (P, (P, P, P, C.c_int)),
    "ggml_view_3d": (P, (P, P, I64, I64, I64, SIZE, SIZE, SIZE)),
    "ggml_cont": (P, (P, P)),
    "ggml_set_input": (None, (P,)),
    "ggml_set_output": (None, (P,)),
    "ggml_new_graph_custom": (P, (P, SIZE, BOOL)),
    "ggml_build_forward_expand": (None, (P, P)),
    "ggml_graph_add_node": (None, (P, P)),
    "ggml_backend_cpu_init": (P, ()),
    "ggml_backend_cpu_set_n_threads": (None, (P, C.c_int)),
    "ggml_backend_free": (None, (P,)),
    "ggml_backend_graph_compute": (C.c_int, (P, P)),
    "ggml_backend_cpu_buffer_from_ptr": (P, (P, SIZE)),
    "ggml_backend_cpu_buffer_type": (P, ()),
    "ggml_backend_buffer_free": (None, (P,)),
    "ggml_backend_tensor_alloc": (C.c_int, (P, P, P)),
    "ggml_gallocr_new": (P, (P,)),
    "ggml_gallocr_alloc_graph": (BOOL, (P, P)),
    "ggml_gallocr_free": (None, (P,)),
    "ggml_cpu_init": (None, ()),
}

LLAMA: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (LogCallback, P)),
    "llama_print_system_info": (TEXT, ()),
    "llama_model_default_params": (ModelParams, ()),
    "llama_context_default_params": (ContextParams, ()),
    "llama_model_load_from_file": (P, (TEXT, ModelParams)),
    "llama_model_load_from_splits": (P, (C.POINTER(TEXT), SIZE, ModelParams)),
    "llama_model_free": (None, (P,)),
    "llama_model_n_embd": (I32, (P,)),
    "llama_model_n_ctx_train": (I32, (P,)),
    "llama_model_is_recurrent": (BOOL, (P,)),
    "llama_model_is_hybrid": (BOOL, (P,)),
    "llama_init_from_model": (P, (P, ContextParams)),
    "llama_free": (None, (P,)),
    "llama_n_ctx": (C.c_uint32, (P,)),
    "llama_n_batch": (C.c_uint32, (P,)),
    "llama_n_ubatch": (C.c_uint32, (P,)),
    "llama_batch_init": (Batch, (I32, I32, I32)),
    "llama_batch_free": (None, (Batch,)),
    "llama_decode": (I32, (P, Batch)),
    "llama_encode": (I32, (P, Batch)),
    "llama_get_logits_ith": (C.POINTER(F32), (P, I32)),
    "llama_get_embeddings_ith": (C.POINTER(F32), (P, I32)),
    "llama_set_embeddings": (None, (P, BOOL)),
    "llama_get_memory": (P, (P,)),
    "llama_memory_clear": (None, (P, BOOL)),
    "llama_memory_seq_rm": (BOOL, (P, I32, I32, I32)),
    "llama_memory_seq_cp": (None, (P, I32, I32, I32, I32)),
    "llama_model_get_vocab": (P, (P,)),
    "llama_vocab_n_tokens": (I32, (P,)),
    "llama_vocab_type": (C.c_int, (P,)),
    "llama_vocab_is_eog": (BOOL, (P, I32)),
    "llama_tokenize": (I32, (P, TEXT, I32, C.POINTER(I32), I32, BOOL, BOOL)),
    "llama_token_to_piece": (I32, (P, I32, C.c_char_p, I32, I32, BOOL)),
    "llama_sampler_chain_default_params": (SamplerChainParams, ()),
    "llama_sampler_chain_init": (P, (SamplerChainParams,)),
    "llama_sampler_chain_add": (None, (P, P)),
    "llama_sampler_init_greedy": (P, ()),
    "llama_sampler_init_dist": (P, (C.c_uint32,)),
    "llama_sampler_init_top_k": (P, (I32,)),
    "llama_sampler_init_top_p": (P, (F32, SIZE)),
    "llama_sampler_init_min_p": (P, (F32, SIZE)),
    "llama_sampler_init_temp": (P, (F32,)),
    "llama_sampler_sample": (I32, (P, P, I32)),
    "llama_sampler_clone": (P, (P,)),
    "llama_sampler_free": (None, (P,)),
}
