"""Tables and positions of RoPE that do not fit are refused: the numbers they would give look like any others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from oracles import normal
from test_torch_modes import mlp_arguments
from torch import Tensor

import coda_lang.torch as ct
from coda_lang import ArgumentError

M, K, N, HEAD = 9, 16, 24, 8
POSITION = torch.arange(M)
BLOCK = ct.LlamaBlock(32, 48, 4, 2, dtype=torch.bfloat16)  # heads of width 8
X = normal(2, 9, 32)


def linear_rope(cos: Tensor, sin: Tensor, position: Tensor, rotated: int = 16) -> Any:
    return ct.linear_rope(normal(M, K), normal(N, K), cos, sin, position, rotated, head_dim=HEAD)


def rms_linear_rope(cos: Tensor, sin: Tensor, position: Tensor, rotated: int = 16) -> Any:
    return ct.rms_linear_rope(
        normal(M, K), torch.ones(K), normal(N, K), cos, sin, position, rotated, head_dim=HEAD
    )  # fmt: skip


def llama_span(cos: Tensor, sin: Tensor, position: Tensor, rotated: int = 16) -> Any:
    mlp = [t.detach() for t in mlp_arguments()]
    return ct.llama_span(
        *mlp, torch.ones(K), normal(N, K), cos, sin, position, rotated, head_dim=HEAD
    )  # fmt: skip


OPERATIONS: list[Callable[..., Any]] = [linear_rope, rms_linear_rope, llama_span]
TABLES = {
    "of the next smaller heads": ct.rope_tables(16, 4),
    "of the next larger heads": ct.rope_tables(16, 16),
    "with each angle twice": tuple(t.repeat(1, 2) for t in ct.rope_tables(16, 8)),
    "of one dimension": tuple(t[0] for t in ct.rope_tables(16, 8)),
    "of two lengths": (ct.rope_tables(16, 8)[0], ct.rope_tables(15, 8)[1]),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_tables_of_other_heads(operation: Callable[..., Any], table: str) -> None:
    with pytest.raises(ArgumentError, match=rf"{operation.__name__}: cos and sin must be \[P, 8/2\]") as caught:
        operation(*TABLES[table], POSITION)
    wide = TABLES[table][0].shape[-1] == HEAD
    assert ("the first half of the columns" in str(caught.value)) == wide


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("given", [False, True])
def test_a_block_with_a_table_of_other_heads(table: str, given: bool) -> None:
    position = torch.arange(9).expand(2, 9) if given else None
    with pytest.raises(ArgumentError, match="cos and sin must be"):
        BLOCK(X, *TABLES[table], position)


@pytest.mark.parametrize("rotated", [-8, 4, 12, 32])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_parts_of_heads(operation: Callable[..., Any], rotated: int) -> None:
    with pytest.raises(ArgumentError, match=f"{rotated} of them that are rotated, must be whole heads"):
        operation(*ct.rope_tables(16, HEAD), POSITION, rotated)


@pytest.mark.parametrize("position", [POSITION[None], POSITION[1:], POSITION.float(), POSITION.to(torch.int16)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_positions_of_another_shape_or_type(operation: Callable[..., Any], position: Tensor) -> None:
    with pytest.raises(ArgumentError, match=r"position must be int32 or int64 \[9\]"):
        operation(*ct.rope_tables(16, HEAD), position)


@pytest.mark.parametrize("wrong", [-1, 16, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda f: f.__name__)
def test_positions_outside_the_table(operation: Callable[..., Any], wrong: int) -> None:
    tables = ct.rope_tables(16, HEAD)
    position = POSITION.clone()
    position[4] = 15
    operation(*tables, position)
    position[4] = wrong
    with pytest.raises(ArgumentError, match=f"{operation.__name__}: position {wrong} is outside .* 16 rows"):
        operation(*tables, position)


def test_a_block_with_positions_outside_the_table() -> None:
    tables = ct.rope_tables(9, HEAD)
    position = torch.arange(9).expand(2, 9)
    assert torch.equal(BLOCK(X, *tables), BLOCK(X, *tables, position))
    for shift in (-1, 1):
        with pytest.raises(ArgumentError, match="is outside the table, which has 9 rows"):
            BLOCK(X, *tables, position + shift)


def test_a_table_shorter_than_the_sequence() -> None:
    """Known from the shapes alone, so on a GPU too: here on tensors that hold no numbers."""
    with pytest.raises(ArgumentError, match="cos and sin have 8 rows, and x 9 positions"):
        BLOCK(X, *ct.rope_tables(8, HEAD))
    with torch.device("meta"):
        block = ct.LlamaBlock(32, 48, 4, 2, dtype=torch.bfloat16)
        x, tables = torch.empty(2, 9, 32, dtype=torch.bfloat16), ct.rope_tables(8, HEAD)
        with pytest.raises(ArgumentError, match="cos and sin have 8 rows"):
            block(x, *tables)
        with pytest.raises(ArgumentError, match="cos and sin must be"):
            block(x, *ct.rope_tables(9, 4))


def test_a_compiled_block_keeps_the_rules() -> None:
    compiled = torch.compile(BLOCK, backend="aot_eager")
    position = torch.arange(9).expand(2, 9)
    tables = ct.rope_tables(9, HEAD)
    assert torch.equal(compiled(X, *tables, position), BLOCK(X, *tables, position))
    with pytest.raises(ArgumentError, match="is outside the table"):
        compiled(X, *tables, position + 1)
    with pytest.raises(ArgumentError, match="cos and sin must be"):
        compiled(X, *ct.rope_tables(9, 4), position)
