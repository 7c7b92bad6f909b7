"""The walk over a program of StableHLO: its operations in order, each through its row."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from jaxlib.mlir import ir

from ekiden.frontend.common.arithmetic import SMALL, Rule, evaluated, fold, followed
from ekiden.frontend.common.complex import Complex
from ekiden.frontend.common.node import Result
from ekiden.frontend.common.unsupported import Unsupported
from ekiden.frontend.common.value import Value, constant
from ekiden.frontend.common.walk import Walk
from ekiden.frontend.jax.dtype import array_of, is_complex, part_dtype_of, parts_of
from ekiden.frontend.jax.node import Many, Node, Pair, Row, describe, source
from ekiden.frontend.jax.registry import TABLE, find
from ekiden.ir.op import Array
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.expr import Expr, const

CALLS = ("func.call", "stablehlo.while", "stablehlo.if", "stablehlo.case")
_SUFFIXES = ("real", "imag")
TERMINATORS = ("stablehlo.return", "func.return")


class Graph:
    """A program being imported. What its values stand for is kept in one dictionary: every value is
    defined once, and the operations of a region see those around it.
    """

    def __init__(self, walk: Walk, module: ir.Module) -> None:
        self.walk, self.scope = walk, walk.scope
        self.env: dict[ir.Value, Value | Complex | None] = {}
        self._functions: Mapping[str, ir.Block] = {
            each.attributes["sym_name"].value: each.regions[0].blocks[0]
            for each in module.body.operations
            if each.operation.name == "func.func" and len(each.regions[0].blocks)
        }
        self._count = 0
        self._place = ""
        """The line of the user's program that is being imported."""

    def function(self, name: str) -> ir.Block:
        """The body of a function. Raises Unsupported where there is none."""
        if name not in self._functions:
            raise Unsupported(f"there is no function {name!r}")
        return self._functions[name]

    def real(self, value: ir.Value) -> Value | None:
        """What a value stands for, if it is known and real."""
        found = self.env.get(value)
        return found if isinstance(found, Value) else None

    @staticmethod
    def row(name: str) -> Row | None:
        """The row of an operation, composite or function outside, if there is one."""
        return TABLE.get(name)

    def run(self, block: ir.Block, inputs: Sequence[Value]) -> list[Value]:
        """Import a block for these inputs; what it gives, which must be real. Raises Unsupported
        as `results` does.
        """
        found = self.results(block, inputs)
        real = [v for v in found if isinstance(v, Value)]
        if len(real) < len(found):
            raise Unsupported("complex numbers are not supported here")
        return real

    def results(self, block: ir.Block, inputs: Sequence[Value | Complex | None]) -> Many:
        """Import a block for these inputs; what it gives. Raises Unsupported where an operation of
        it has been reported.
        """
        self.env.update(zip(block.arguments, inputs, strict=True))
        for each in block.operations:
            operation = each.operation
            if operation.name in TERMINATORS:
                found = [self.env[o] for o in operation.operands]
                made = [v for v in found if v is not None]
                if len(made) < len(found):
                    raise Unsupported("")
                return made
            self._call(operation)
        raise Unsupported("a block without an end")

    def _call(self, operation: ir.Operation) -> None:
        inputs = [self.env[o] for o in operation.operands]
        self.env.update(dict.fromkeys(operation.results))
        if any(v is None for v in inputs):
            return  # made by an operation that has already been reported
        names = self._names(operation)
        self.scope.used.update(filter(None, names))
        labels = {f"input {i}": v for i, v in enumerate(inputs) if isinstance(v, Value)}
        around = self._place
        self._place = source(str(operation.location)) or around
        with self.walk.at(describe(operation, around), labels):
            if operation.name not in CALLS:  # what is inside them is reported there
                for value in (*operation.operands, *operation.results):
                    part_dtype_of(value.type)
            made = self._made(self._converted(operation, inputs, names), names)
            self.env.update(zip(operation.results, made, strict=True))
        self._place = around

    def _made(
        self, result: Result | Many | Pair, names: Sequence[str]
    ) -> list[Value | Complex | None]:
        """What a converter gave, as values with the names of the outputs: a tuple is the parts of
        one that is complex.
        """
        if isinstance(result, tuple):
            real, imaginary = (self._part(p, names) for p in zip(result, _SUFFIXES, strict=True))
            return [None if real is None or imaginary is None else Complex(real, imaginary)]
        many = list(result) if isinstance(result, Sequence) else [result]
        pairs = {i: v for i, v in enumerate(many) if isinstance(v, Complex)}
        plain = [None if isinstance(v, Complex) else v for v in many]
        wanted = ["" if i in pairs else name for i, name in enumerate(names)]
        single = plain[0] if not isinstance(result, Sequence) else None
        found = self.walk.outputs(plain if single is None else single, wanted)
        return [pairs.get(i, found.get(name)) for i, name in enumerate(names)]

    def _part(self, part: tuple[Expr, str], names: Sequence[str]) -> Value | None:
        expr, suffix = part
        own = [name and f"{name}.{suffix}" for name in names]
        self.scope.used.update(filter(None, own))
        return self.walk.outputs(expr, own).get(own[0])

    def _names(self, operation: ir.Operation) -> list[str]:
        """A name for each output that is used; "" for others."""
        self._count += 1
        base = f"{operation.name.rpartition('.')[2]}_{self._count}"
        return [
            f"{base}.{i}" if any(True for _ in r.uses) else ""
            for i, r in enumerate(operation.results)
        ]

    def _converted(
        self,
        operation: ir.Operation,
        inputs: Sequence[Value | Complex | None],
        names: Sequence[str],
    ) -> Result | Many | Pair:
        if operation.name == "stablehlo.constant":
            if _has_complex(operation):
                return list[Value | Complex]([Complex(*map(constant, parts_of(operation)))])
            return self._constant(array_of(operation.attributes["value"]))
        row = find(operation.name)
        node = Node(operation, inputs, self.scope, names, self, str(self.scope.span))
        if _has_complex(operation):
            if row.on_complex is None:
                raise Unsupported("complex numbers are not supported here")
            return row.on_complex(row.convert)(node)
        if row.rule is None:
            return self._declared(node, fold(self.scope, node.inputs, row.convert(node)))
        return self._evaluated(node, row, row.rule(node))

    def _evaluated(self, node: Node, row: Row, rule: Rule) -> Result:
        dtype = node.out_dtype()
        known = evaluated(node.inputs, rule, dtype, row.is_view)
        if known is not None:
            return known
        result = self._declared(node, fold(self.scope, node.inputs, row.convert(node)))
        if isinstance(result, Expr):
            result = self.scope.bound(result)
        if not isinstance(result, Value):
            return result
        return followed(self.scope, node.inputs, rule, result)

    def _declared(self, node: Node, result: Result) -> Result:
        """An output in the dtype that it is declared to have."""
        if not isinstance(result, Expr) or len(node.operation.results) != 1:
            return result
        kind, wanted = self.scope.type_of(result), node.out_dtype()
        if isinstance(kind, TensorType) and kind.dtype != wanted:
            return op.cast(result, wanted)
        return result

    def _constant(self, array: Array) -> Result:
        if array.size > SMALL and not any(array.strides):
            return op.broadcast_to(const(array.flat[0]), array.shape)
        return constant(np.ascontiguousarray(array).reshape(array.shape))


def _has_complex(operation: ir.Operation) -> bool:
    return any(is_complex(v.type) for v in (*operation.operands, *operation.results))
