"""scripts/lint_words.py: shares of filler names and of docstrings without a verb."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).parents[1]
SOURCE = '''
def double(values: list[int]) -> list[int]:
    """Return each value twice as large."""
    found = [2 * value for value in values]
    return found


def last(values: list[int]) -> int:
    """The last value."""
    last_value = values[-1]
    return last_value
'''


@pytest.fixture(scope="module")
def lint_words() -> ModuleType:
    path = ROOT / "scripts" / "lint_words.py"
    spec = importlib.util.spec_from_file_location("lint_words", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lint_words"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_filler_names_and_docstrings_without_a_verb_are_listed(
    lint_words: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lint_words, "ROOT", tmp_path)
    (tmp_path / "source.py").write_text(SOURCE)
    files = iter([tmp_path / "source.py"])
    names, docstrings = lint_words.measures(files, {"names": 0.0, "docstrings": 0.0})
    assert (names.places, names.total) == (["source.py:4 found"], 3)
    assert (docstrings.places, docstrings.total) == (["source.py:8 last"], 2)
    assert docstrings.share == 50


@pytest.mark.parametrize(
    ("docstring", "lacks"),
    [("Return it.", False), ("(Re)build the table.", False), ("", True), ("`x` as text.", True),
     ("Of the weight.", True), ("A table.", True)],
)  # fmt: skip
def test_verb_is_expected_first(lint_words: ModuleType, docstring: str, lacks: bool) -> None:
    assert lint_words.lacks_verb(docstring) is lacks
