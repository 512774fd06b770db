"""Vocabularies and chat templates other than the demo's, without weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from node.model.gguf.split import open_model
from node.model.gguf.types import ValueType
from node.model.gguf.values import GGUFValue, StringArray
from node.model.gguf.writer import write_gguf

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, BYTE = 1, 2, 3, 4, 6  # llama_token_type


def write_vocabulary(
    source: Path,
    target: Path,
    *,
    controls: Sequence[str] = (),
    words: Sequence[str] = (),
    bos: str = "",
    templates: Mapping[str, str] | None = None,
) -> Path:
    """A vocabulary without weights: the source's, with tokens in place of its last ones.

    Args:
        controls, words: texts of further control and user-defined tokens.
        bos: that of them which every text begins with; "": none does.
        templates: by name; "" is the plain one.
    """
    metadata = dict(open_model(source).metadata)
    found = metadata["tokenizer.ggml.tokens"].value
    assert isinstance(found, StringArray)
    texts, types = list(found), [NORMAL] * len(found)
    types[:3] = [CONTROL] * 3
    for i, (text, kind) in enumerate(
        [*((text, CONTROL) for text in controls), *((text, USER_DEFINED) for text in words)]
    ):
        texts[-1 - i], types[-1 - i] = text, kind
    metadata["tokenizer.ggml.tokens"] = GGUFValue.array(ValueType.STRING, texts)
    metadata["tokenizer.ggml.token_type"] = GGUFValue.array(ValueType.INT32, types)
    metadata["tokenizer.ggml.add_bos_token"] = GGUFValue(ValueType.BOOL, bool(bos))
    if bos:
        metadata["tokenizer.ggml.bos_token_id"] = GGUFValue.uint32(texts.index(bos))
    _add_templates(metadata, templates)
    write_gguf(target, metadata, [])
    return target


def write_sentencepiece(target: Path, *, templates: Mapping[str, str] | None = None) -> Path:
    """A small vocabulary of the older kind, in which ordinary merges can spell `<s>`."""
    texts = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]"]
    types = [UNKNOWN, CONTROL, CONTROL, CONTROL, CONTROL]
    texts += [f"<0x{byte:02X}>" for byte in range(256)]
    types += [BYTE] * 256
    pieces = ["<s", "</", "</s", "[I", "he", "ll", "hell", "hello", "\u2581hello", "\u2581"]
    pieces += [chr(code) for code in range(33, 127)]
    texts += pieces
    types += [NORMAL] * len(pieces)
    scores = [-float(i) for i in range(len(texts))]
    metadata = {
        "general.architecture": GGUFValue.string("llama"),
        "llama.context_length": GGUFValue.uint32(64),
        "llama.embedding_length": GGUFValue.uint32(32),
        "llama.block_count": GGUFValue.uint32(1),
        "llama.feed_forward_length": GGUFValue.uint32(32),
        "llama.attention.head_count": GGUFValue.uint32(1),
        "llama.attention.layer_norm_rms_epsilon": GGUFValue(ValueType.FLOAT32, 1e-5),
        "tokenizer.ggml.model": GGUFValue.string("llama"),
        "tokenizer.ggml.tokens": GGUFValue.array(ValueType.STRING, texts),
        "tokenizer.ggml.scores": GGUFValue.array(ValueType.FLOAT32, scores),
        "tokenizer.ggml.token_type": GGUFValue.array(ValueType.INT32, types),
        "tokenizer.ggml.bos_token_id": GGUFValue.uint32(1),
        "tokenizer.ggml.eos_token_id": GGUFValue.uint32(2),
        "tokenizer.ggml.unknown_token_id": GGUFValue.uint32(0),
    }
    _add_templates(metadata, templates)
    write_gguf(target, metadata, [])
    return target


def _add_templates(metadata: dict[str, GGUFValue], templates: Mapping[str, str] | None) -> None:
    for name, text in (templates or {}).items():
        metadata["tokenizer.chat_template" + (f".{name}" if name else "")] = GGUFValue.string(text)
