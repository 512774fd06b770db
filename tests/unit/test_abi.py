"""The ABI guard: only a library laid out as ours is used."""

from __future__ import annotations

import ctypes.util
from pathlib import Path
from typing import Any

import pytest

from node.engine import abi
from node.engine import library as llama
from node.engine.expression_graph import GLU_KINDS, UNARY_KINDS
from node.engine.library import PINNED, EngineError, Library


def refused(path: Path) -> str:
    with pytest.raises(EngineError) as caught:
        Library(path)
    message = str(caught.value)
    assert "\n" not in message
    return message


class Differing:
    """The real library with some functions replaced."""

    def __init__(self, library: Library, **replaced: Any) -> None:
        self._library = library
        self._replaced = replaced

    def __getattr__(self, name: str) -> Any:
        return self._replaced.get(name) or getattr(self._library, name)


def test_the_pinned_library_fits(library: Library) -> None:
    assert abi.mismatch(library) == ""
    assert library.path == llama.default_path()
    assert "CPU" in library.system_info()


def test_another_library_is_refused() -> None:
    libm = ctypes.util.find_library("m")
    assert libm is not None
    message = refused(Path(libm))
    assert PINNED in message and "no function" in message


def test_a_path_without_a_library(tmp_path: Path) -> None:
    missing = tmp_path / "libllama.so"
    assert "no such llama.cpp library" in refused(missing)
    missing.write_text("no library")
    assert "cannot be loaded" in refused(missing)


def test_another_tensor_size_is_refused(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    larger = library.ggml_tensor_overhead() + 8
    assert "ggml_tensor has" in abi.mismatch(Differing(library, ggml_tensor_overhead=lambda: larger))
    monkeypatch.setattr(abi, "OBJECT_BYTES", abi.OBJECT_BYTES + 8)
    message = refused(llama.default_path())
    assert PINNED in message and "ggml_tensor has" in message


@pytest.mark.parametrize("op", abi.EXPECTED_OPS)
def test_another_order_of_operations_is_refused(library: Library, op: int) -> None:
    def name(number: int) -> bytes:
        return b"OTHER" if number == op else bytes(library.ggml_op_name(number))

    assert f"operation {op}" in abi.mismatch(Differing(library, ggml_op_name=name))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n_batch", 1),
        ("n_ubatch", 2048),
        ("n_seq_max", 0),
        ("type_k", 0),
        ("type_v", 2),
        ("flash_attn_type", 0),
        ("yarn_ext_factor", 0.0),
        ("offload_kqv", False),
        ("op_offload", False),
        ("kv_unified", True),
    ],
)
def test_other_context_defaults_are_refused(library: Library, field: str, value: object) -> None:
    def defaults() -> Any:
        parameters = library.llama_context_default_params()
        setattr(parameters, field, value)
        return parameters

    assert field in abi.mismatch(Differing(library, llama_context_default_params=defaults))


@pytest.mark.parametrize(
    ("field", "value"),
    [("split_mode", 0), ("vocab_only", True), ("use_extra_bufts", False), ("no_alloc", True)],
)
def test_other_model_defaults_are_refused(library: Library, field: str, value: object) -> None:
    def defaults() -> Any:
        parameters = library.llama_model_default_params()
        setattr(parameters, field, value)
        return parameters

    assert "model parameters" in abi.mismatch(Differing(library, llama_model_default_params=defaults))


def test_one_library_a_process(library: Library, tmp_path: Path) -> None:
    assert llama.load() is library
    with pytest.raises(EngineError, match="one llama"):
        llama.load(tmp_path / "other.so")


def test_functions_of_recipes_are_numbered_as_ggml_numbers_them(library: Library) -> None:
    assert [library.function_name("UNARY", i) for i in range(len(UNARY_KINDS))] == list(UNARY_KINDS)
    assert [library.function_name("GLU", i) for i in range(len(GLU_KINDS))] == list(GLU_KINDS)
    assert library.function_name("ADD", 0) == ""


def test_what_llama_says_is_one_line(library: Library) -> None:
    library.forget_errors()
    for level, text in ((llama.LEVEL_ERROR, b"a\n  b\n"), (llama.LEVEL_CONT, b"c\n"), (2, b"chatter\n")):
        library._on_log(level, text, None)
    said = library.last_errors()
    library.forget_errors()
    assert said.split() == ["a", "bc"] and "\n" not in said
    assert library.last_errors() == ""


def test_a_sampler_with_other_arguments_is_refused(library: Library) -> None:
    """Older builds: without the size of the vocabulary, so that it is taken for how far to look back."""

    def older(n_vocab: int, _last_n: int, *penalties: float) -> Any:
        return library.llama_sampler_init_penalties(n_vocab, n_vocab, *penalties)

    differing = Differing(library, llama_sampler_init_penalties=older)
    assert "penalties takes other arguments" in abi.mismatch(differing)
