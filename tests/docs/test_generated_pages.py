"""The reference pages are what `docs/generate.py` makes of the tables now."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def generator() -> dict[str, object]:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return vars(module)


@pytest.mark.parametrize("name", ["operations.md", "errors.md"])
def test_pages_are_up_to_date(name: str) -> None:
    page = generator()["PAGES"][name]  # type: ignore[index]
    assert (DOCS / name).read_text(encoding="utf-8") == page(), "run `python docs/generate.py`"
