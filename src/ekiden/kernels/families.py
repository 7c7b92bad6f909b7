"""Table of all kernel families, in order of precedence."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ekiden._lazy import load_module
from ekiden.ir.pass_context import KERNEL_DECISIONS_OPTION, PassContext
from ekiden.kernels.decision import Decision, KnobValue, Overrides
from ekiden.kernels.family import Family
from ekiden.runtime.errors import CompileError

_FAMILY_MODULES: Mapping[str, str] = {
    "attention": "attention.scaled_dot_product",
    "paged_attention": "attention.paged_attention_family",
    "recurrent": "recurrent.layers",
    "scatter": "cpu.scatter",
    "dense_pack": "cpu.dense",
    "conv_nhwc_pack": "cpu.conv2d",
    "conv2d_transpose": "cpu.upsample",
    "conv_transpose_pack": "cpu.conv2d_transpose",
    "depthwise_conv_transpose": "cpu.conv2d_transpose",
    "winograd_conv2d": "cpu.winograd",
    "depthwise_conv_nhwc": "cpu.depthwise_in_place",
    "batch_matmul": "cpu.batch_matmul",
    "matmul": "cpu.batch_matmul",
    "dense": "cpu.batch_matmul",
    "dense_nibbles_pack": "quantized.int4_dense",
    "dense_blocks_pack": "quantized.block_quantized_dense",
    "default": "cpu.default",
    "thread_attention": "gpu.attention",
    "thread_product": "gpu.contraction",
    "thread_reduction": "gpu.reduction",
    "thread_scatter": "gpu.scatter",
    "threads": "gpu.default",
}
"""Family name -> module of this package that defines it, as FAMILY or in FAMILIES."""


class _LazyFamilyTable(Mapping[str, Family]):
    """Mapping of families by name, which imports a family's module at its first lookup.

    The layout of weights is asked of few families, and the loops of the others are half of what
    importing this package takes.
    """

    def __getitem__(self, name: str) -> Family:
        """Return the family of a name. Raises KeyError."""
        if name not in _LOADED_FAMILIES:
            module = load_module(f"ekiden.kernels.{_FAMILY_MODULES[name]}")
            # A module may hold several families: all of them are registered at once.
            rows = getattr(module, "FAMILIES", None) or (module.FAMILY,)
            _LOADED_FAMILIES.update({row.name: row for row in rows})
        return _LOADED_FAMILIES[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_FAMILY_MODULES)

    def __len__(self) -> int:
        return len(_FAMILY_MODULES)


_LOADED_FAMILIES: dict[str, Family] = {}
FAMILIES: Mapping[str, Family] = _LazyFamilyTable()


def override_options() -> Mapping[str, Overrides]:
    """Return the overrides of the current PassContext, by family, kernel or node.

    Raises:
        CompileError: For a value that is no mapping of knobs.
    """
    option = PassContext.current().option(KERNEL_DECISIONS_OPTION)
    assert isinstance(option, dict)
    return {str(name): _parse_override(str(name), value) for name, value in option.items()}


def _parse_override(name: str, value: object) -> Overrides:
    if isinstance(value, str):
        return Decision.parse(value)
    if not isinstance(value, Mapping) or not all(
        isinstance(k, str) and type(v) in (int, str) for k, v in value.items()
    ):
        raise CompileError(f"decisions: choices by name expected for '{name}', got {value!r}")
    return dict(value)


def merged_overrides(
    names: Iterable[str], options: Mapping[str, Overrides] | None = None
) -> Overrides:
    """Return the overrides that apply to several names; later names take precedence."""
    overrides: dict[str, KnobValue] = {}
    by_name = override_options() if options is None else options
    for name in names:
        overrides.update(by_name.get(name, {}))
    return overrides


def can_all_write_rows(names: Iterable[str]) -> bool:
    """Return whether there are families and all their kernels can write results into rows of a
    larger tensor.
    """
    rows = [FAMILIES[name] for name in names]
    return bool(rows) and all(row.writes_strided_rows for row in rows)


def has_epilogue(names: Iterable[str], ending: str) -> bool:
    """Return whether some family's kernels support the epilogue `ending`."""
    return any(ending in FAMILIES[name].special_epilogues for name in names)


__all__ = [
    "FAMILIES",
    "can_all_write_rows",
    "has_epilogue",
    "merged_overrides",
    "override_options",
]
