"""The rule of TMA's addressing, and the arguments of descriptors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from coda_lang.arrays import ArrayView
from coda_lang.backend_cutlass.abi import TensorMap
from coda_lang.backend_cutlass.tensormap import encoding, misfit


def lying(shape: tuple[int, int], strides: tuple[int, int], dtype: str = "bf16", pointer: int = 4096) -> ArrayView:
    return ArrayView(pointer, shape, strides, dtype, 0, None, "cupy")


def test_an_operand_tile_of_128_by_64() -> None:
    e = encoding(lying((300, 200), (200, 1)), TensorMap("a", (64, 128), 128))
    assert (e.data_type, e.dims, e.strides, e.box, e.swizzle) == (9, (200, 300), (400,), (64, 128), 3)


@pytest.mark.parametrize(
    ("dtype", "kind"), [("f32", 7), ("f16", 6), ("bf16", 9), ("f8e4m3", 0), ("f8e5m2", 0), ("i32", 3), ("i64", 5)]
)
def test_element_types(dtype: str, kind: int) -> None:
    assert encoding(lying((8, 32), (32, 1), dtype), TensorMap("a", (16, 8), 0)).data_type == kind


@pytest.mark.parametrize("run", [2, 4, 8])
def test_rows_in_the_order_that_gives_a_thread_neighbouring_columns(run: int) -> None:
    """Thread q of a row has columns 2q and 2q + 1 of each block of 8 (PTX ISA, wgmma's accumulators)."""
    group = 8 * run
    e = encoding(lying((5 * group, 200), (208, 1)), TensorMap("b", (64, 2 * group), 128, run))
    assert e.dims[0] == 200
    assert e.box[0] == 64
    assert len(e.dims) == len(e.box) == len(e.strides) + 1 == 5
    assert all(stride % 416 == 0 for stride in e.strides)
    steps = [stride // 416 for stride in e.strides]

    def row_at(place: int, extents: Sequence[int]) -> int:
        """The row of the array at a place of the box, whose innermost index comes first."""
        row = 0
        for extent, step in zip(extents, steps, strict=True):
            row += place % extent * step
            place //= extent
        return row

    columns: dict[int, list[int]] = {}
    for place in range(2 * group):
        columns.setdefault(place // group * 4 + place % 8 // 2, []).append(row_at(place, e.box[1:]))
    for i, found in columns.items():
        assert found == list(range(2 * run * i, 2 * run * (i + 1)))
    whole = [row_at(place, e.dims[1:]) for place in range(5 * group)]
    assert sorted(whole) == list(range(5 * group))


@pytest.mark.parametrize("tile", [64, 128, 192, 256])
@pytest.mark.parametrize("rows", [1, 8, 9, 63, 64, 65, 192, 250, 256, 300, 513])
def test_the_box_of_the_last_rows_has_no_more_than_8_at_a_time_need(tile: int, rows: int) -> None:
    e = encoding(lying((rows, 64), (64, 1)), TensorMap("a", (64, tile), 128, end=True))
    last = rows - (rows - 1) // tile * tile
    assert last <= e.box[1] < last + 8
    assert e.box[1] % 8 == 0
    assert e.box[1] <= tile
    assert e.dims == (64, rows)


@pytest.mark.parametrize("run", [4, 8])
@pytest.mark.parametrize("groups", [1, 2, 3, 4, 7])
def test_the_box_of_last_rows_in_another_order_has_the_groups_that_there_are(groups: int, run: int) -> None:
    source = TensorMap("b", (64, 3 * 8 * run), 128, run)
    view = lying((groups * 8 * run, 64), (64, 1))
    whole, end = encoding(view, source), encoding(view, replace(source, end=True))
    assert end.box[-1] == groups - (groups - 1) // 3 * 3
    assert (end.box[:-1], end.dims, end.strides) == (whole.box[:-1], whole.dims, whole.strides)


@pytest.mark.parametrize(("rows", "box"), [(96, 64), (128, 32)])
def test_rows_in_another_order_come_in_whole_groups(rows: int, box: int) -> None:
    with pytest.raises(ValueError, match="no multiples of 64"):
        encoding(lying((rows, 64), (64, 1)), TensorMap("b", (64, box), 128, 8))


def test_rows_farther_apart_than_they_are_long() -> None:
    assert encoding(lying((4, 40), (64, 1)), TensorMap("a", (8, 4), 0)).strides == (128,)


def test_64_bit_strides() -> None:
    assert encoding(lying((4, 8), (2**31, 1)), TensorMap("a", (8, 4), 0)).strides == (2**32,)


@pytest.mark.parametrize(
    ("view", "reason"),
    [
        (lying((4, 521), (521, 1)), "1042 bytes apart, no multiple of 16 bytes (nearest larger: 528 elements)"),
        (lying((4, 64), (64, 1), pointer=4098), "2 bytes past a multiple of 16"),
        (lying((4, 64), (128, 2)), "2 apart, not adjacent"),
        (lying((4, 64), (1, 4)), "4 apart, not adjacent"),
        (lying((4, 64), (0, 1)), "rows are 0 bytes apart"),
        (lying((4, 64), (-64, 1)), "rows are -128 bytes apart"),
        (lying((2, 8), (2**39, 1)), "outside 1 … 2^40"),
        (lying((1, 2**32 + 1), (1, 1)), "above 2^32"),
    ],
)
def test_what_does_not_fit(view: ArrayView, reason: str) -> None:
    found = misfit(view)
    assert found is not None
    assert reason in found
    with pytest.raises(ValueError, match="x: "):
        encoding(view, TensorMap("x", (8, 4), 0))


@pytest.mark.parametrize(
    "view",
    [
        lying((1, 521), (3, 1)),  # one row: its distance to the next does not matter
        lying((64, 1), (8, 77)),  # one column: its stride does not matter
        lying((0, 521), (521, 1)),
        lying((5, 0), (0, 1), pointer=0),
    ],
)
def test_strides_of_extents_of_one_do_not_count(view: ArrayView) -> None:
    assert misfit(view) is None


@pytest.mark.parametrize(
    ("shape", "stride", "pointer", "fits"),
    [((7,), 1, 4096, True), ((7,), 2, 4096, False), ((7,), 1, 4100, False), ((1,), 5, 4096, True), ((0,), 2, 4, True)],
)
def test_a_vector_is_one_row(shape: tuple[int], stride: int, pointer: int, fits: bool) -> None:
    view = ArrayView(pointer, shape, (stride,), "f32", 0, None, "cupy")
    assert (misfit(view) is None) == fits


def test_one_row_gets_a_legal_stride() -> None:
    assert encoding(lying((1, 521), (3, 1)), TensorMap("a", (64, 128), 128)).strides == (1056,)


@pytest.mark.parametrize(("box", "swizzle"), [((64, 257), 0), ((4, 8), 0), ((64, 8), 64)])
def test_a_wrong_box_is_the_emitters_fault(box: tuple[int, int], swizzle: int) -> None:
    with pytest.raises(ValueError, match="box"):
        encoding(lying((300, 200), (200, 1)), TensorMap("a", box, swizzle))


def test_the_driver_gets_them(machine: Any, cuda: Any) -> None:
    import ctypes

    memory = (ctypes.c_uint64 * 40)()
    out = ctypes.addressof(memory) + -ctypes.addressof(memory) % 64
    e = encoding(lying((300, 200), (200, 1)), TensorMap("a", (64, 128), 128))
    machine[0].encode_tiled(out, e.data_type, 4096, e.dims, e.strides, e.box, e.swizzle)
    words = list((ctypes.c_uint64 * 11).from_address(out))
    # address, type, dims, stride, box, then: no interleave, 128 B swizzle, 128 B of L2 promotion, zero fill
    assert words == [4096, 9, 200, 300, 400, 64, 128, 0, 3, 2, 0]
