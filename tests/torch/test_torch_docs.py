"""The code of docs/torch.md runs as it stands, from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch


def test_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "torch.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", text, re.S)
    assert blocks
    names: dict[str, Any] = {}
    for block in blocks:
        exec(block, names)
    assert names["loss"].isfinite()
    assert names["y"].shape == (2, 32, 160)
    assert all(isinstance(w, torch.Tensor) for w in names["state"].values())
