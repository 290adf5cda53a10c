"""The tests notice a wrong operation: each meaning is replaced by a slightly wrong one, and a check must fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_random_programs import hold, load

from coda_lang.interp.operations import OPERATIONS
from coda_lang.ir.ops import OPS
from programs import random_call, random_program

sys.path.insert(0, str(Path(__file__).parents[1] / "interp"))
from test_rows import CASES, check_row


def off_by_an_ulp(function: Callable[..., Any]) -> Callable[..., Any]:
    """The next float, the next integer, or the other truth."""

    def wrong(*args: Any) -> Any:
        right = np.asarray(function(*args))
        if right.dtype.kind == "f":
            return np.nextafter(right, right.dtype.type(np.inf))
        return ~right if right.dtype.kind == "b" else right + 1

    return wrong


@pytest.mark.parametrize(("name", "kinds"), CASES)
def test_a_row_that_is_an_ulp_off(name: str, kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    row = OPS[name]
    assert row.meaning is not None
    monkeypatch.setitem(OPS, name, replace(row, meaning=off_by_an_ulp(row.meaning)))
    with pytest.raises(AssertionError):
        check_row(name, kinds, 200)


@pytest.mark.parametrize(("name", "kinds"), [c for c in CASES if len(c[1]) > 1 and c[0] in ("sub", "div", "lt", "mod")])
def test_operands_that_are_swapped(name: str, kinds: str, monkeypatch: pytest.MonkeyPatch) -> None:
    meaning = OPS[name].meaning
    assert meaning is not None
    monkeypatch.setitem(OPS, name, replace(OPS[name], meaning=lambda x, y: meaning(y, x)))
    with pytest.raises(AssertionError):
        check_row(name, kinds, 200)


@cache
def users() -> dict[str, list[tuple[str, int]]]:
    """Random programs by the operations that they use."""
    found: dict[str, list[tuple[str, int]]] = {}
    for seed in range(150):
        text = random_program(seed)
        for op in {v.op for v in load(text).ir.values}:
            found.setdefault(op, []).append((text, seed))
    return found


@pytest.mark.parametrize("name", sorted(OPERATIONS))
def test_an_operation_that_is_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What needs the tile: loads, positions, reductions. Off by one, one of a few programs that use it must fail."""
    right = OPERATIONS[name]

    def wrong(context: Any, value: Any, args: list[Any]) -> Any:
        result = np.asarray(right(context, value, args))
        return ~result if result.dtype.kind == "b" else result + result.dtype.type(1)

    programs = users().get(name, [])
    assert programs, f"no random program uses {name}"
    monkeypatch.setitem(OPERATIONS, name, wrong)
    for text, seed in programs[:12]:
        try:
            hold(text, random_call(load(text).ir, seed, "normal"))
        except AssertionError:
            return
    pytest.fail(f"{len(programs[:12])} programs that use {name} took the wrong result for right")
