"""User-registered shape functions, which compute result sizes at run time (TVM's
register_shape_func).

    relay.op.register_shape_func("own.repeat", True, repeat_shape)

A shape function gets the attributes, tensors and the ranks of the results, and gives a vector of
int64 for each result, as a te.compute or a hybrid script. The tensors are those of the call where
it depends on data, else vectors with their shapes. What it computes becomes scalar expressions, so
that it may have no loops but of constant extents, and no sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ekiden.arith import simplify
from ekiden.ir.attrs import Attrs, unwrap_user_attrs
from ekiden.ir.op import OPS, DimsOf, ShapeCheck, get, set_dynamic_dims
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, Select, Var, cast, const
from ekiden.ir.prim_visitor import rewrite, substitute
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.ir.user_extensions import record_extension
from ekiden.runtime.errors import CompileError
from ekiden.te import ComputeOp, ExternOp, Reduce, Tensor, placeholder
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, For, IfThenElse, SeqStmt, Stmt

ShapeFunc = Callable[[Any, Sequence[Tensor], Sequence[int]], Sequence[Tensor]]
"""Function (attributes, tensors, result ranks) -> result shapes."""
Load = Callable[[Any, tuple[PrimExpr, ...]], PrimExpr]
"""Function (tensor or buffer, indices) -> element."""


def register_shape_func(
    op_name: str,
    data_dependent: bool | Sequence[bool],
    shape_func: ShapeFunc | None = None,
    level: int = 10,
) -> Callable[[ShapeFunc], ShapeFunc]:
    """Register the shape function of a user-defined operator.

    Args:
        op_name: The operator.
        data_dependent: Whether the function reads elements, of all arguments or of each.
        shape_func: The function; without it, a decorator is returned.
        level: Not used, as there is one such function.

    Raises:
        ValueError: The operator is one of Ekiden's, whose shapes follow from its types.
        KeyError: There is no such operator.
    """
    get(op_name)

    def register(function: ShapeFunc) -> ShapeFunc:
        """Register the function as the user's, and return it."""
        record_extension(function)
        set_dynamic_dims(op_name, _make_dims_rule(op_name, data_dependent, function))
        return function

    if shape_func is not None:
        register(shape_func)
    return register


def _make_dims_rule(
    name: str, data_dependent: bool | Sequence[bool], shape_func: ShapeFunc
) -> DimsOf:
    def compute_dims(
        attrs: Attrs, buffers: Sequence[Buffer]
    ) -> tuple[list[PrimExpr], list[ShapeCheck]]:
        """Return the unknown result dimensions, and conditions on the known ones.

        Both are expressions over the arguments' shapes and, if the function reads them, their
        elements.

        Raises:
            CompileError: The function is for another number of arguments or results.
        """
        reads = (
            [bool(data_dependent)] * len(buffers)
            if isinstance(data_dependent, (bool, int))
            else list(data_dependent)
        )
        if len(reads) != len(buffers):
            raise CompileError(f"{name}: its shape function is for {len(reads)} arguments")
        inputs = [_shape_func_input(b, by_data) for b, by_data in zip(buffers, reads, strict=True)]
        result = OPS[name].relation([TensorType(b.shape, b.dtype) for b in buffers], attrs)
        kinds = _tensor_leaves(name, result)
        shapes = shape_func(unwrap_user_attrs(attrs), inputs, [len(k.shape) for k in kinds])
        if len(shapes) != len(kinds):
            raise CompileError(
                f"{name}: its shape function gives {len(shapes)} shapes for {len(kinds)} results"
            )
        # The function is evaluated symbolically once: its results are expressions of the call's
        # arguments.
        reader = _ShapeExpressionReader(
            name, dict(zip(inputs, zip(buffers, reads, strict=True), strict=True))
        )
        unknown: list[PrimExpr] = []
        checks: list[ShapeCheck] = []
        for shape, kind in zip(shapes, kinds, strict=True):
            _collect_dims(reader.read_vector(shape), kind, unknown, checks)
        return unknown, checks

    return compute_dims


def _collect_dims(
    shape: Sequence[PrimExpr], kind: TensorType, unknown: list[PrimExpr], checks: list[ShapeCheck]
) -> None:
    """Collect the unknown dimensions of a result, and checks of the known ones against the
    function.
    """
    for size, dim in zip(shape, kind.shape, strict=True):
        if isinstance(dim, AnyDim):
            unknown.append(size)
            checks.append(ShapeCheck(size >= 0, "a dimension is negative", {"it": size}))
        else:
            what = "its shape function says another size than its type"
            # The user's function may disagree with the type relation: it is compared at run time.
            checks.append(ShapeCheck(size.equal(dim), what, {"it": size, "the type's": dim}))


def _shape_func_input(buffer: Buffer, by_data: bool) -> Tensor:
    if by_data:
        return placeholder(buffer.shape, buffer.dtype, buffer.name)
    return placeholder((len(buffer.shape),), "int64", f"{buffer.name}_shape")


def _tensor_leaves(name: str, kind: Type) -> list[TensorType]:
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    leaves = [f for f in fields if isinstance(f, TensorType)]
    if len(leaves) != len(fields):
        raise CompileError(f"{name}: a shape function is of tensors, not of {kind}")
    return leaves


class _ShapeExpressionReader:
    """Symbolic evaluator of shape functions: tensor elements as expressions over a call's
    arguments.
    """

    def __init__(self, name: str, inputs: dict[Tensor, tuple[Buffer, bool]]) -> None:
        self.name, self.inputs = name, inputs
        self.sources: dict[Buffer, Tensor] = {}
        """Tensors by the buffers that hybrid scripts read."""

    def read_vector(self, shape: Tensor) -> list[PrimExpr]:
        """Return all elements of a vector as expressions."""
        if len(shape.shape) != 1 or not isinstance(shape.shape[0], IntImm):
            raise CompileError(f"{self.name}: its shape function must give vectors, got {shape}")
        count = int(shape.shape[0].value)
        return [
            cast(simplify(self.read_element(shape, (const(n),))), "int64") for n in range(count)
        ]

    def read_element(self, tensor: Tensor, at: tuple[PrimExpr, ...]) -> PrimExpr:
        """Return an element of an argument or of a computed tensor as an expression."""
        if tensor in self.inputs:
            buffer, by_data = self.inputs[tensor]
            return BufferLoad(buffer, at, buffer.dtype) if by_data else self._shape_dim(buffer, at)
        match tensor.op:
            case ComputeOp(axis=axis, body=body) if not isinstance(body[0], Reduce):
                values = {i.var: index for i, index in zip(axis, at, strict=True)}
                return self._substitute_loads(substitute(body[tensor.value_index], values), {})
            case ExternOp() as op:
                return self._run_hybrid_element(op, tensor.value_index, at)
        raise CompileError(f"{self.name}: its shape function may not reduce: {tensor}")

    def _shape_dim(self, buffer: Buffer, at: tuple[PrimExpr, ...]) -> PrimExpr:
        return buffer.shape[self._static_index(at[0])]

    def _static_index(self, index: PrimExpr) -> int:
        number = simplify(index)
        # A position that is data would need the whole vector as one expression.
        if not isinstance(number, IntImm):
            raise CompileError(
                f"{self.name}: its shape function reads at {number}, which is no constant"
            )
        return int(number.value)

    def _substitute_loads(
        self, value: PrimExpr, stored: dict[tuple[Buffer, int], PrimExpr]
    ) -> PrimExpr:
        """Substitute loads by element expressions; `stored` holds those of results."""

        def substitute_load(e: PrimExpr) -> PrimExpr:
            """Return the expression of a loaded element."""
            if isinstance(e, ProducerLoad):
                return self.read_element(e.producer, e.indices)
            if isinstance(e, BufferLoad) and e.buffer in self.sources:
                return self.read_element(self.sources[e.buffer], e.indices)
            if isinstance(e, BufferLoad) and len(e.indices) == 1:
                return stored.get((e.buffer, self._static_index(e.indices[0])), e)
            return e

        return rewrite(value, substitute_load)

    def _run_hybrid_element(self, op: ExternOp, number: int, at: tuple[PrimExpr, ...]) -> PrimExpr:
        """Return an element computed by a hybrid script."""
        stored: dict[tuple[Buffer, int], PrimExpr] = {}
        self.sources |= dict(zip(op.input_buffers, op.inputs, strict=True))
        self._run_statements(op.body, {}, stored)
        target = op.output_buffers[number], self._static_index(at[0])
        if target not in stored:
            raise CompileError(f"{self.name}: its shape function leaves element {target[1]} open")
        return stored[target]

    def _run_statements(
        self,
        body: Stmt,
        values: dict[Var, PrimExpr],
        stored: dict[tuple[Buffer, int], PrimExpr],
    ) -> None:
        match body:
            case SeqStmt(seq=statements):
                for statement in statements:
                    self._run_statements(statement, values, stored)
            case BufferStore(buffer=buffer, value=value, indices=(index,)):
                position = self._static_index(substitute(index, values))
                stored[buffer, position] = self._substitute_loads(substitute(value, values), stored)
            case For(loop_var=var, min=low, extent=extent, body=inner):
                first, count = (self._static_index(substitute(e, values)) for e in (low, extent))
                # Loops are unrolled: their bounds must be constants.
                for n in range(first, first + count):
                    self._run_statements(inner, {**values, var: const(n, var.dtype)}, stored)
            case IfThenElse(condition=condition, then_case=yes, else_case=no):
                test = self._substitute_loads(substitute(condition, values), stored)
                # Each branch starts from what was stored before it.
                sides = [dict(stored), dict(stored)]
                self._run_statements(yes, values, sides[0])
                if no is not None:
                    self._run_statements(no, values, sides[1])
                # An element that only one side sets is open, and an error if it is asked for.
                for key in sides[0].keys() & sides[1].keys():
                    a, b = sides[0][key], sides[1][key]
                    stored[key] = a if a is b else Select(test, a, b, a.dtype)
            case _:
                raise CompileError(
                    f"{self.name}: its shape function has a {type(body).__name__}, which no"
                    " expression says"
                )


__all__ = ["register_shape_func"]
