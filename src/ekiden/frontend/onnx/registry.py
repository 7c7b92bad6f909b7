"""Converter table of ONNX, (domain, operator) -> entries, loaded lazily per operator family."""

from __future__ import annotations

from collections.abc import Callable

from ekiden._lazy import load_module
from ekiden.frontend.onnx.converters._exports import ROWS
from ekiden.frontend.onnx.node import Converter, OnnxRow
from ekiden.ir.lazy_registry import LazyRegistry
from ekiden.ir.user_extensions import record_extension

FAMILY_PACKAGE = "ekiden.frontend.onnx.converters"


class ConverterTable(LazyRegistry[tuple[str, str], tuple[OnnxRow, ...]]):
    """Converter table that imports a family's module on the first lookup of one of its
    operators.
    """

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__()
        self.row_modules = {
            operator_key(op): home for home, ops in ROWS.items() for op in ops.split()
        }

    def load(self, home: str) -> None:
        """Import a family's module and add its entries, except where a user has registered one.
        Several threads may do so at once.
        """
        by_operator: dict[tuple[str, str], tuple[OnnxRow, ...]] = {}
        for row in load_module(f"{FAMILY_PACKAGE}.{home}").ROWS:
            key = (row.domain, row.op_type)
            have = by_operator.get(key, ())
            assert all(r.since_version != row.since_version for r in have), (
                f"{key} since {row.since_version} has two rows"
            )
            by_operator[key] = (*have, row)
        for key, rows in by_operator.items():
            # setdefault, so that rows that a user registered before the family was loaded are kept.
            self.setdefault(key, rows)

    def load_all(self) -> None:
        """Import the modules of all families."""
        for home in ROWS:
            self.load(home)


def operator_key(op: str) -> tuple[str, str]:
    """Split "domain:Operator" into (domain, operator); ONNX's own domain is ""."""
    domain, _, name = op.rpartition(":")
    return domain, name


CONVERTER_TABLE = ConverterTable()
"""(domain, operator) -> its rows; what ONNX itself defines has the domain ""."""


def register(
    domain: str, op: str, *, since: int = 1, attributes: str = "", override: bool = False
) -> Callable[[Converter], Converter]:
    """Return a decorator that registers a converter for an operator:

        @ekiden.frontend.onnx.register("com.example", "Scale", attributes="factor")
        def scale(node):
            return relay.op.multiply(node.expr(0), relay.const(node.get_float("factor", 1.0)))

    The function receives a Node (see ekiden.frontend.onnx.node) and returns a Relay expression, or
    a list of one for each output.

    Args:
        domain: the operator's domain; "" or "ai.onnx" for ONNX's own.
        op: the operator's name.
        since: the first version of the domain whose meaning the converter implements.
        attributes: the supported names, separated by blanks.
        override: whether an existing row of that operator and version is replaced.

    Raises:
        ValueError: that operator and version have a row, and `override` is not set.
    """

    def add(convert: Converter) -> Converter:
        """Add the entry to the table and record the converter as an extension."""
        key = ("" if domain == "ai.onnx" else domain, op)
        have = CONVERTER_TABLE.get(key) or ()
        other_versions = tuple(r for r in have if r.since_version != since)
        if len(other_versions) < len(have) and not override:
            raise ValueError(
                f"register {op!r} of domain {domain!r}: version {since} is there; "
                "say override=True to replace it"
            )
        record_extension(convert)
        row = OnnxRow(op, convert, since, attributes, domain=key[0], is_extension=True)
        CONVERTER_TABLE[key] = (*other_versions, row)
        return convert

    return add
