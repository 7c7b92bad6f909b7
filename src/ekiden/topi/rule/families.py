"""All families of kernels: a literal table, looked through from the top."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ekiden.ir.pass_context import DECISIONS, PassContext
from ekiden.runtime.errors import CompileError
from ekiden.topi.rule import (
    attention,
    batch_matmul,
    blocks,
    conv2d,
    conv2d_transpose,
    default,
    dense_listed,
    depthwise,
    nibbles,
    page_attention,
    recurrent,
    scatter,
    thread,
    thread_product,
    thread_reduction,
    upsample,
    winograd,
)
from ekiden.topi.rule.decision import Decision, Fixed, Value
from ekiden.topi.rule.family import Family

ROWS: tuple[Family, ...] = (
    attention.FAMILY,
    page_attention.FAMILY,
    recurrent.FAMILY,
    scatter.FAMILY,
    dense_listed.FAMILY,
    conv2d.FAMILY,
    upsample.FAMILY,
    *conv2d_transpose.FAMILIES,
    winograd.FAMILY,
    depthwise.FAMILY,
    *batch_matmul.FAMILIES,
    nibbles.FAMILY,
    blocks.FAMILY,
    default.FAMILY,
    thread_product.FAMILY,
    thread_reduction.FAMILY,
    thread.FAMILY,
)
FAMILIES: Mapping[str, Family] = {row.name: row for row in ROWS}


def given_decisions() -> Mapping[str, Fixed]:
    """What the current PassContext fixes, by family, kernel or node. Raises CompileError for what
    is no mapping of choices."""
    found = PassContext.current().option(DECISIONS)
    assert isinstance(found, dict)
    return {str(name): _choices(str(name), value) for name, value in found.items()}


def _choices(name: str, value: object) -> Fixed:
    if isinstance(value, str):
        return Decision.parse(value)
    if not isinstance(value, Mapping) or not all(
        isinstance(k, str) and type(v) in (int, str) for k, v in value.items()
    ):
        raise CompileError(f"decisions: choices by name expected for '{name}', got {value!r}")
    return dict(value)


def fixed_for(names: Iterable[str], given: Mapping[str, Fixed] | None = None) -> Fixed:
    """What is fixed for what goes by some names: of a choice that several fix, the last."""
    found: dict[str, Value] = {}
    known = given_decisions() if given is None else given
    for name in names:
        found.update(known.get(name, {}))
    return found


def strided(names: Iterable[str]) -> bool:
    """Whether kernels of some families, of which there is one at least, write their results into
    longer rows."""
    rows = [FAMILIES[name] for name in names]
    return bool(rows) and all(row.writes_rows for row in rows)


def has_ending(names: Iterable[str], ending: str) -> bool:
    """Whether kernels of some family may end so."""
    return any(ending in FAMILIES[name].endings for name in names)


__all__ = [
    "FAMILIES",
    "ROWS",
    "fixed_for",
    "given_decisions",
    "has_ending",
    "strided",
]
