"""Operations are on inductor's list where it would write about each at length."""

from __future__ import annotations

import inspect
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch._library.custom_ops import CustomOpDef
from torch._subclasses.fake_tensor import FakeTensorMode

import coda_lang.torch as ct
from coda_lang.torch import act, cross_entropy, cross_entropy_total, inductor, llama, residual_rms, rope, swiglu

MODULES: tuple[ModuleType, ...] = (act, cross_entropy, cross_entropy_total, llama, residual_rms, rope, swiglu)


@pytest.mark.parametrize("writes", [True, False])
def test_a_traced_operation_is_on_the_list_where_the_message_is_written(
    writes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed: set[str] = set()
    monkeypatch.setattr(inductor, "WRITES", writes)
    monkeypatch.setitem(sys.modules, "torch._inductor.lowering", SimpleNamespace(FALLBACK_ALLOW_LIST=listed))
    with FakeTensorMode():
        x, weight = torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(16, 8, dtype=torch.bfloat16)
        assert ct.linear_act(x, weight).shape == (4, 16)
    assert ("coda_lang::linear_act" in listed) == writes


def test_nothing_is_imported_for_those_who_do_not_compile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "WRITES", True)
    monkeypatch.delitem(sys.modules, "torch._inductor.lowering", raising=False)
    with FakeTensorMode():
        ct.linear_act(torch.empty(4, 8, dtype=torch.bfloat16), torch.empty(16, 8, dtype=torch.bfloat16))
    assert "torch._inductor.lowering" not in sys.modules


def test_every_operation_is() -> None:
    operations = {id(op): op for m in MODULES for op in vars(m).values() if isinstance(op, CustomOpDef)}
    names = {op._qualname for op in operations.values()}
    assert names == {n.split(".")[0] for n in torch._C._dispatch_get_all_op_names() if n.startswith("coda_lang::")}
    for op in operations.values():
        assert op._abstract_fn is not None
        assert inspect.unwrap(op._abstract_fn) is not op._abstract_fn, op._qualname


@pytest.mark.parametrize(("version", "writes"), [("2.9.1", True), ("2.11.0+cu130", True), ("2.12.1", True),
                                                 ("2.13.0+cpu", False), ("2.14.0", False)])  # fmt: skip
def test_which_versions_write(version: str, writes: bool) -> None:
    assert (torch.torch_version.TorchVersion(version) < "2.13") == writes
