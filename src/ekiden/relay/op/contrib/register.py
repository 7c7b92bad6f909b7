"""Registry of external compilers' pattern tables.

@register_pattern_table("mine")
def table():
    return [("mine.dense_relu", is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard())))]

relay.transform.MergeComposite(get_pattern_table("mine"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

PatternTable = Sequence[tuple[object, ...]]
"""Pattern table of MergeComposite: entries (name, pattern) or (name, pattern, check)."""
PatternTableBuilder = Callable[[], PatternTable]

_TABLE_BUILDERS: dict[str, PatternTableBuilder] = {}


def register_pattern_table(
    compiler: str, table: PatternTableBuilder | None = None
) -> Callable[[PatternTableBuilder], PatternTableBuilder]:
    """Register a function that builds a compiler's pattern table, replacing an earlier one; without
    it, a decorator.
    """

    def register(maker: PatternTableBuilder) -> PatternTableBuilder:
        """Record the function that builds the compiler's table."""
        _TABLE_BUILDERS[compiler] = maker
        return maker

    if table is not None:
        register(table)
    return register


def get_pattern_table(compiler: str) -> PatternTable | None:
    """Return a compiler's pattern table, or None."""
    maker = _TABLE_BUILDERS.get(compiler)
    return None if maker is None else maker()


__all__ = ["get_pattern_table", "register_pattern_table"]
