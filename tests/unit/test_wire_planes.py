"""Byte planes of payloads, and what the benchmark makes of sizes and seconds."""

from __future__ import annotations

import numpy as np
import pytest

from routing.wire.codecs import Codec, encode
from scripts.bench.wire_planes import Squeeze, join, split, squeeze, ways


@pytest.mark.parametrize("codec", Codec, ids=lambda codec: codec.name.lower())
@pytest.mark.parametrize(("rows", "width"), [(1, 1), (1, 32), (3, 70), (8, 256)])
def test_planes_go_together_again(codec: Codec, rows: int, width: int) -> None:
    values = np.random.default_rng(rows).standard_normal((rows, width)).astype(np.float32)
    data = encode(codec, values)
    planes = split(codec, data, rows, width)
    assert len(planes) == {Codec.F32: 4, Codec.F16: 2, Codec.INT8: 3}[codec]
    assert sum(plane.size for plane in planes) == len(data)
    assert join(codec, planes) == data
    if codec is not Codec.INT8:  # sign and exponent last, numbers being little endian
        assert ((planes[-1] >> 7) == (values.reshape(-1) < 0)).all()
    else:
        assert planes[-1].tobytes() == data[-rows * width :]


@pytest.mark.parametrize("name", ["zlib", "planes", "huffman", "top"])
def test_every_way_is_lossless_and_shrinks_what_repeats(name: str) -> None:
    data = encode(Codec.F32, np.ones((4, 256), np.float32))
    size, packing, unpacking = squeeze(ways()[name], Codec.F32, data, 4, 256)
    assert size < len(data) and packing > 0 and unpacking > 0


def test_break_even() -> None:
    # 1,000 bytes saved in 1 ms each way: 8,000 bits in 2 ms.
    found = Squeeze("m", "x", "f32", 1, 1, "top", 10_000, 9_000, 1e-3, 1e-3)
    assert found.break_even == pytest.approx(4.0)
    assert found.gain(4.0) == pytest.approx(0.0) and found.gain(8.0) < 0 < found.gain(2.0)
    assert found.gain(2.0) == pytest.approx(2e-3) and found.gain_share(2.0) == pytest.approx(0.05)
    assert Squeeze("m", "x", "f32", 1, 1, "top", 10, 11, 1e-3, 1e-3).break_even == 0
