"""The analyzer's caches change no result and are bounded."""

from __future__ import annotations

import threading

import pytest

from ekiden.arith import Analyzer, prove_equal, simplify
from ekiden.arith.analyzer import _SHARED_ANALYZER
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.prim import AnyDim, PrimExpr, SizeVar, maximum

pytestmark = pytest.mark.quick


def sizes(name: str) -> list[PrimExpr]:
    """Dimensions as convolutions make them of one, two of which are written alike."""
    h = SizeVar(name)
    halves = [((h + 1) // 2 - 1) // 2 + 1, (h + 3) // 4]
    return [h, h * 2, h + h, *halves, maximum(h, 1), (h + 3) // 4, h % 2]


def test_reused_analyzer_equals_new_analyzer() -> None:
    for name in ("h", "w", "h"):
        result = sizes(name)
        for a in result:
            for b in result:
                assert prove_equal(a, b) == Analyzer().can_prove_equal(a, b), (a, b)
            assert format_prim_expr(simplify(a)) == format_prim_expr(Analyzer().simplify(a))
            assert simplify(a) is simplify(a)


def test_unknown_dimensions_are_not_cached_as_facts() -> None:
    one, other = AnyDim(), AnyDim()
    assert not any(prove_equal(a, b) for a in (one, one + 1) for b in (one, other, one + 1))


def test_analyzer_cache_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(_SHARED_ANALYZER), "MAX_CACHED_EXPRS", 50)
    for number in range(100):
        n = SizeVar(f"n{number}")
        assert prove_equal(n + n, n * 2) and format_prim_expr(simplify(n + n)) == f"n{number} * 2"
    assert len(_SHARED_ANALYZER.canonical_forms) <= 51 and _SHARED_ANALYZER.analyzer.size <= 60


def test_analyzer_caches_are_per_thread() -> None:
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(_SHARED_ANALYZER.analyzer))
    thread.start()
    thread.join()
    assert seen and seen[0] is not _SHARED_ANALYZER.analyzer
