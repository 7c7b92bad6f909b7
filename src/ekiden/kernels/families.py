"""All families of kernels: a literal table, looked through from the top."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ekiden._lazy import load_module
from ekiden.ir.pass_context import DECISIONS, PassContext
from ekiden.kernels.decision import Decision, Fixed, Value
from ekiden.kernels.family import Family
from ekiden.runtime.errors import CompileError

_HOMES: Mapping[str, str] = {
    "attention": "attention.scaled_dot_product",
    "paged_attention": "attention.page_attention",
    "recurrent": "recurrent.layers",
    "scatter": "cpu.scatter",
    "dense_pack": "quantized.dense_listed",
    "conv_nhwc_pack": "cpu.conv2d",
    "conv2d_transpose": "cpu.upsample",
    "conv_transpose_pack": "cpu.conv2d_transpose",
    "depthwise_conv_transpose": "cpu.conv2d_transpose",
    "winograd_conv2d": "cpu.winograd",
    "depthwise_conv_nhwc": "cpu.depthwise_in_place",
    "batch_matmul": "cpu.batch_matmul",
    "matmul": "cpu.batch_matmul",
    "dense": "cpu.batch_matmul",
    "dense_nibbles_pack": "quantized.nibbles",
    "dense_blocks_pack": "quantized.blocks",
    "default": "cpu.default",
    "thread_attention": "gpu.attention",
    "thread_product": "gpu.product",
    "thread_reduction": "gpu.reduction",
    "threads": "gpu.default",
}
"""Name of a family -> the module of this package that has its row, as FAMILY or in FAMILIES."""


class _Families(Mapping[str, Family]):
    """The rows by name, each file loaded when a row of it is first asked for: where weights lie
    is asked of few, and the loops of the others are half of what importing this folder takes."""

    def __getitem__(self, name: str) -> Family:
        """The row. Raises KeyError."""
        if name not in _ROWS:
            module = load_module(f"ekiden.kernels.{_HOMES[name]}")
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
