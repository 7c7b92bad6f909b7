"""All families of kernels: a literal table, looked through from the top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ekiden.ir.pass_context import DECISIONS, PassContext
from ekiden.runtime.errors import CompileError
from ekiden.runtime.late import import_late
from ekiden.topi.rule.decision import Decision, Fixed, Value
from ekiden.topi.rule.family import Family

_HOMES: Mapping[str, str] = {
    "attention": "attention",
    "paged_attention": "page_attention",
    "recurrent": "recurrent",
    "scatter": "scatter",
    "dense_pack": "dense_listed",
    "conv_nhwc_pack": "conv2d",
    "conv2d_transpose": "upsample",
    "conv_transpose_pack": "conv2d_transpose",
    "depthwise_conv_transpose": "conv2d_transpose",
    "winograd_conv2d": "winograd",
    "depthwise_conv_nhwc": "depthwise_in_place",
    "batch_matmul": "batch_matmul",
    "matmul": "batch_matmul",
    "dense": "batch_matmul",
    "dense_nibbles_pack": "nibbles",
    "dense_blocks_pack": "blocks",
    "default": "default",
    "thread_attention": "thread_attention",
    "thread_product": "thread_product",
    "thread_reduction": "thread_reduction",
    "threads": "thread",
}
"""Name of a family -> the file beside this one that has its row, as FAMILY or in FAMILIES."""


class _Families(Mapping[str, Family]):
    """The rows by name, each file loaded when a row of it is first asked for: where weights lie
    is asked of few, and the loops of the others are half of what importing this folder takes."""

    def __getitem__(self, name: str) -> Family:
        """The row. Raises KeyError."""
        if name not in _ROWS:
            module = import_late(f"ekiden.topi.rule.{_HOMES[name]}")
            rows = getattr(module, "FAMILIES", None) or (module.FAMILY,)
            _ROWS.update({row.name: row for row in rows})
        return _ROWS[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_HOMES)

    def __len__(self) -> int:
        return len(_HOMES)


_ROWS: dict[str, Family] = {}
FAMILIES: Mapping[str, Family] = _Families()


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
    "fixed_for",
    "given_decisions",
    "has_ending",
    "strided",
]
