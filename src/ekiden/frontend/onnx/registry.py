"""The converter table: (domain, operator) -> its rows, made of the rows of each family."""

from __future__ import annotations

from collections.abc import Callable

from ekiden._lazy import load_module
from ekiden.frontend.onnx.converters._exports import ROWS
from ekiden.frontend.onnx.node import Converter, Row
from ekiden.ir.extensions import note_extension
from ekiden.ir.table import Table

FAMILIES = "ekiden.frontend.onnx.converters"


class Converters(Table[tuple[str, str], tuple[Row, ...]]):
    """The rows of those families whose operators were asked for; all rows where it is asked which
    there are."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.row_modules = {key_of(op): home for home, ops in ROWS.items() for op in ops.split()}

    def load(self, home: str) -> None:
        """Have the rows of a family; threads may at the same time, and what a user has registered
        stays.
        """
        found: dict[tuple[str, str], tuple[Row, ...]] = {}
        for row in load_module(f"{FAMILIES}.{home}").ROWS:
            key = (row.domain, row.op_type)
            have = found.get(key, ())
            assert all(r.since != row.since for r in have), f"{key} since {row.since} has two rows"
            found[key] = (*have, row)
        for key, rows in found.items():
            self.setdefault(key, rows)

    def load_all(self) -> None:
        """Have the rows of all families."""
        for home in ROWS:
            self.load(home)


def key_of(op: str) -> tuple[str, str]:
    """Domain and operator, as "domain:Operator" says them; ONNX's own have no domain there."""
    domain, _, name = op.rpartition(":")
    return domain, name


TABLE = Converters()
"""(domain, operator) -> its rows; what ONNX itself defines has the domain ""."""


def register(
    domain: str, op: str, *, since: int = 1, attributes: str = "", override: bool = False
) -> Callable[[Converter], Converter]:
    """A decorator that teaches the import an operator of a model:

        @ekiden.frontend.onnx.register("com.example", "Scale", attributes="factor")
        def scale(node):
            return relay.op.multiply(node.expr(0), relay.const(node.get_float("factor", 1.0)))

    The function gets a Node (see ekiden.frontend.onnx.node) and gives a Relay expression, or a list
    of one for each output. `since` is the first version of the domain whose meaning it has;
    `attributes` are the names it understands, separated by blanks.

    Raises ValueError where that operator and version have a row, unless `override` is set.
    """

    def add(convert: Converter) -> Converter:
        """Sets the row of the version, and has the converter remembered as the user's own."""
        key = ("" if domain == "ai.onnx" else domain, op)
        have = TABLE.get(key) or ()
        others = tuple(r for r in have if r.since != since)
        if len(others) < len(have) and not override:
            raise ValueError(
                f"register {op!r} of domain {domain!r}: version {since} is there; "
                "say override=True to replace it"
            )
        note_extension(convert)
        row = Row(op, convert, since, attributes, domain=key[0], is_users=True)
        TABLE[key] = (*others, row)
        return convert

    return add
