"""The patterns that external compilers take, by compiler.

@register_pattern_table("mine")
def table():
    return [("mine.dense_relu", is_op("nn.relu")(is_op("nn.dense")(wildcard(), wildcard())))]

relay.transform.MergeComposite(get_pattern_table("mine"))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

Table = Sequence[tuple[object, ...]]
"""What MergeComposite takes: (name, pattern) or (name, pattern, check)."""
Maker = Callable[[], Table]

_TABLES: dict[str, Maker] = {}


def register_pattern_table(compiler: str, table: Maker | None = None) -> Callable[[Maker], Maker]:
    """Give a compiler a function that makes its table, in place of one it had; without it, a
    decorator.
    """

    def register(maker: Maker) -> Maker:
        _TABLES[compiler] = maker
        return maker

    if table is not None:
        register(table)
    return register


def get_pattern_table(compiler: str) -> Table | None:
    """Return the table of a compiler, or None if it has none."""
    maker = _TABLES.get(compiler)
    return None if maker is None else maker()


__all__ = ["get_pattern_table", "register_pattern_table"]
