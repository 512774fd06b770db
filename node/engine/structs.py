"""ctypes layouts of the llama.cpp build that panal is pinned to: b11549, `llama.h` and `ggml.h`.

Layouts move between builds without a version number: `abi.check` compares what can be compared before
any of them is used. Structs that the library fills by value end in padding, so that a build with a few
more fields at the end cannot write past ours.
"""

from __future__ import annotations

import ctypes as C

MAX_DIMS = 4  # GGML_MAX_DIMS
MAX_SRC = 10  # GGML_MAX_SRC
MAX_OP_PARAMS = 16  # GGML_MAX_OP_PARAMS / sizeof(int32_t)
MAX_NAME = 64  # GGML_MAX_NAME

TYPE_F32 = 0
TYPE_F16 = 1
TYPE_I32 = 26


class Tensor(C.Structure):
    """`struct ggml_tensor`; pointers to other tensors are plain addresses here."""

    _fields_ = (
        ("type", C.c_int),
        ("buffer", C.c_void_p),
        ("ne", C.c_int64 * MAX_DIMS),
        ("nb", C.c_size_t * MAX_DIMS),
        ("op", C.c_int),
        ("op_params", C.c_int32 * MAX_OP_PARAMS),
        ("flags", C.c_int32),
        ("src", C.c_void_p * MAX_SRC),
        ("view_src", C.c_void_p),
        ("view_offs", C.c_size_t),
        ("data", C.c_void_p),
        ("name", C.c_char * MAX_NAME),
        ("extra", C.c_void_p),
        ("padding", C.c_char * 8),
    )


class InitParams(C.Structure):
    """`struct ggml_init_params`."""

    _fields_ = (("mem_size", C.c_size_t), ("mem_buffer", C.c_void_p), ("no_alloc", C.c_bool))


class ModelParams(C.Structure):
    """`struct llama_model_params`."""

    _fields_ = (
        ("devices", C.c_void_p),
        ("tensor_buft_overrides", C.c_void_p),
        ("n_gpu_layers", C.c_int32),
        ("split_mode", C.c_int),
        ("load_mode", C.c_int),
        ("lazy_mode", C.c_int),
        ("main_gpu", C.c_int32),
        ("tensor_split", C.c_void_p),
        ("progress_callback", C.c_void_p),
        ("progress_callback_user_data", C.c_void_p),
        ("kv_overrides", C.c_void_p),
        ("vocab_only", C.c_bool),
        ("check_tensors", C.c_bool),
        ("use_extra_bufts", C.c_bool),
        ("no_host", C.c_bool),
        ("no_alloc", C.c_bool),
        ("load_mtp", C.c_bool),
        ("_room", C.c_char * 64),
    )


EvalCallback = C.CFUNCTYPE(C.c_bool, C.c_void_p, C.c_bool, C.c_void_p)  # ggml_backend_sched_eval_callback
LogCallback = C.CFUNCTYPE(None, C.c_int, C.c_char_p, C.c_void_p)  # ggml_log_callback


class ContextParams(C.Structure):
    """`struct llama_context_params`."""

    _fields_ = (
        ("n_ctx", C.c_uint32),
        ("n_batch", C.c_uint32),
        ("n_ubatch", C.c_uint32),
        ("n_seq_max", C.c_uint32),
        ("n_rs_seq", C.c_uint32),
        ("n_outputs_max", C.c_uint32),
        ("n_outputs_max_per_seq", C.c_uint32),
        ("n_threads", C.c_int32),
        ("n_threads_batch", C.c_int32),
        ("ctx_type", C.c_int),
        ("rope_scaling_type", C.c_int),
        ("pooling_type", C.c_int),
        ("attention_type", C.c_int),
        ("flash_attn_type", C.c_int),
        ("rope_freq_base", C.c_float),
        ("rope_freq_scale", C.c_float),
        ("yarn_ext_factor", C.c_float),
        ("yarn_attn_factor", C.c_float),
        ("yarn_beta_fast", C.c_float),
        ("yarn_beta_slow", C.c_float),
        ("yarn_orig_ctx", C.c_uint32),
        ("defrag_thold", C.c_float),
        ("cb_eval", EvalCallback),
        ("cb_eval_user_data", C.c_void_p),
        ("type_k", C.c_int),
        ("type_v", C.c_int),
        ("moe_cache_size", C.c_size_t),
        ("abort_callback", C.c_void_p),
        ("abort_callback_data", C.c_void_p),
        ("embeddings", C.c_bool),
        ("offload_kqv", C.c_bool),
        ("no_perf", C.c_bool),
        ("op_offload", C.c_bool),
        ("swa_full", C.c_bool),
        ("kv_unified", C.c_bool),
        ("samplers", C.c_void_p),
        ("n_samplers", C.c_size_t),
        ("ctx_other", C.c_void_p),
        ("_room", C.c_char * 64),
    )


class Batch(C.Structure):
    """`struct llama_batch`."""

    _fields_ = (
        ("n_tokens", C.c_int32),
        ("token", C.POINTER(C.c_int32)),
        ("embd", C.POINTER(C.c_float)),
        ("pos", C.POINTER(C.c_int32)),
        ("n_seq_id", C.POINTER(C.c_int32)),
        ("seq_id", C.POINTER(C.POINTER(C.c_int32))),
        ("logits", C.POINTER(C.c_int8)),
    )


class SamplerChainParams(C.Structure):
    """`struct llama_sampler_chain_params`."""

    _fields_ = (("no_perf", C.c_bool), ("_room", C.c_char * 15))


class TokenData(C.Structure):
    """`llama_token_data`; in numpy, `sampler.CANDIDATE`."""

    _fields_ = (("id", C.c_int32), ("logit", C.c_float), ("p", C.c_float))


class TokenDataArray(C.Structure):
    """`llama_token_data_array`."""

    _fields_ = (
        ("data", C.POINTER(TokenData)),
        ("size", C.c_size_t),
        ("selected", C.c_int64),
        ("sorted", C.c_bool),
    )


class LogitBias(C.Structure):
    """`llama_logit_bias`."""

    _fields_ = (("token", C.c_int32), ("bias", C.c_float))
