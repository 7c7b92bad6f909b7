"""Base class of the attributes of sliding-window operators."""

from __future__ import annotations

import dataclasses
from functools import cache

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import NODE_TYPES


class WindowAttrs(Attrs):
    """Attributes of an operator that slides a window over spatial axes; the defaults' lengths give
    the number of axes.
    """

    __slots__ = ()

    @classmethod
    def expand_abbreviations(cls, fields: dict[str, object]) -> dict[str, object]:
        """Expand scalars to one value per axis, and one padding to both sides."""
        for name, default in _numeric_defaults(cls.type_key):
            numbers, count = fields.get(name), len(default) if isinstance(default, tuple) else 0
            # A padding of half the numbers is one width per axis for both of its borders.
            short = (1, count // 2) if name == "padding" else (1,)
            if count and isinstance(numbers, tuple) and len(numbers) in short:
                fields[name] = numbers * (count // len(numbers))
        return fields

    def check(self) -> None:
        """Check the number of values in each field.

        Raises:
            ValueError: A field has too many or too few numbers, a step, an extent or a count is
                below 1,
                or padding is below 0.
        """
        for name, default in _numeric_defaults(self.type_key):
            value = getattr(self, name)
            numbers = value if isinstance(value, tuple) else (value,)
            if isinstance(default, tuple) and len(numbers) != len(default):
                raise ValueError(f"{name} must be {len(default)} numbers, got {numbers}")
            # A stride of 0 would divide by 0 when windows are counted.
            if name in PER_AXIS_FIELDS and any(isinstance(n, int) and n < 1 for n in numbers):
                raise ValueError(f"{name} must be at least 1, got {value}")
            if name in PADDING_FIELDS and any(isinstance(n, int) and n < 0 for n in numbers):
                raise ValueError(f"{name} must not be negative, got {value}; nn.pad crops")


PER_AXIS_FIELDS = frozenset(
    {"strides", "dilation", "dilations", "pool_size", "kernel_size", "pooled_size", "groups",
     "deformable_groups", "stride1", "stride2"}
)  # fmt: skip
"""Attribute fields with one number per axis (strides, extents, counts)."""

PADDING_FIELDS = frozenset({"padding", "output_padding"})
"""Attribute fields of padding widths."""


@cache
def _numeric_defaults(type_key: str) -> tuple[tuple[str, object], ...]:
    """Return the (field, default) pairs of the class's numeric fields."""
    fields = dataclasses.fields(NODE_TYPES[type_key])  # type: ignore[arg-type]
    return tuple((f.name, f.default) for f in fields if f.default != () and f.name != "layout")


__all__ = ["WindowAttrs"]
