"""A user's shape functions: how large the results of an operator of a program's own are, where its
type relation leaves that to run time (TVM's name).

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
from ekiden.ir.attrs import Attrs, own_attrs
from ekiden.ir.extensions import note_extension
from ekiden.ir.op import OPS, DimsOf, Wanted, get, set_dims
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, Select, Var, cast, const
from ekiden.ir.prim_visitor import rewrite, substitute
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.runtime.errors import CompileError
from ekiden.te import ComputeOp, ExternOp, Reduce, Tensor, placeholder
from ekiden.te.tensor import ProducerLoad
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import BufferStore, For, IfThenElse, SeqStmt, Stmt

ShapeFunc = Callable[[Any, Sequence[Tensor], Sequence[int]], Sequence[Tensor]]
"""(attributes, tensors, ranks of the results) -> the shapes of the results."""
Load = Callable[[Any, tuple[PrimExpr, ...]], PrimExpr]
"""(tensor or buffer, indices) -> the element there."""


def register_shape_func(
    op_name: str,
    data_dependent: bool | Sequence[bool],
    shape_func: ShapeFunc | None = None,
    level: int = 10,
) -> Callable[[ShapeFunc], ShapeFunc]:
    """Say how large the results of a program's own operator are; without a function, a decorator.
    `data_dependent`, of all arguments or of each: whether it reads their elements; `level` says
    nothing, as there is one such function.

    Raises ValueError for an operator of Ekiden's, whose shapes follow from its types, KeyError for
    none.
    """
    get(op_name)

    def register(given: ShapeFunc) -> ShapeFunc:
        """Sets the function, and has it remembered as the user's own; gives it as it is."""
        note_extension(given)
        set_dims(op_name, _dims_of(op_name, data_dependent, given))
        return given

    if shape_func is not None:
        register(shape_func)
    return register


def _dims_of(name: str, data_dependent: bool | Sequence[bool], shape_func: ShapeFunc) -> DimsOf:
    def dims(attrs: Attrs, buffers: Sequence[Buffer]) -> tuple[list[PrimExpr], list[Wanted]]:
        """(the unknown dimensions of the results, what must hold of the known ones), as expressions
        over the arguments' shapes and, where the function reads them, their elements. Raises
        CompileError for a function of another number of arguments or results.
        """
        reads = (
            [bool(data_dependent)] * len(buffers)
            if isinstance(data_dependent, (bool, int))
            else list(data_dependent)
        )
        if len(reads) != len(buffers):
            raise CompileError(f"{name}: its shape function is for {len(reads)} arguments")
        inputs = [_input(b, by_data) for b, by_data in zip(buffers, reads, strict=True)]
        result = OPS[name].relation([TensorType(b.shape, b.dtype) for b in buffers], attrs)
        kinds = _leaves(name, result)
        shapes = shape_func(own_attrs(attrs), inputs, [len(k.shape) for k in kinds])
        if len(shapes) != len(kinds):
            raise CompileError(
                f"{name}: its shape function gives {len(shapes)} shapes for {len(kinds)} results"
            )
        reader = _Reader(name, dict(zip(inputs, zip(buffers, reads, strict=True), strict=True)))
        found: list[PrimExpr] = []
        checks: list[Wanted] = []
        for shape, kind in zip(shapes, kinds, strict=True):
            _add(reader.elements(shape), kind, found, checks)
        return found, checks

    return dims


def _add(
    shape: Sequence[PrimExpr], kind: TensorType, found: list[PrimExpr], checks: list[Wanted]
) -> None:
    """The unknown dimensions of a result, and that what is known is as the function says."""
    for size, dim in zip(shape, kind.shape, strict=True):
        if isinstance(dim, AnyDim):
            found.append(size)
            checks.append(Wanted(size >= 0, "a dimension is negative", {"it": size}))
        else:
            what = "its shape function says another size than its type"
            checks.append(Wanted(size.equal(dim), what, {"it": size, "the type's": dim}))


def _input(buffer: Buffer, by_data: bool) -> Tensor:
    if by_data:
        return placeholder(buffer.shape, buffer.dtype, buffer.name)
    return placeholder((len(buffer.shape),), "int64", f"{buffer.name}_shape")


def _leaves(name: str, kind: Type) -> list[TensorType]:
    fields = kind.fields if isinstance(kind, TupleType) else (kind,)
    found = [f for f in fields if isinstance(f, TensorType)]
    if len(found) != len(fields):
        raise CompileError(f"{name}: a shape function is of tensors, not of {kind}")
    return found


class _Reader:
    """What tensors hold, as expressions on the arguments of a call."""

    def __init__(self, name: str, inputs: dict[Tensor, tuple[Buffer, bool]]) -> None:
        self.name, self.inputs = name, inputs
        self.sources: dict[Buffer, Tensor] = {}
        """Buffers that scripts read -> what they stand for."""

    def elements(self, shape: Tensor) -> list[PrimExpr]:
        """All elements of a vector."""
        if len(shape.shape) != 1 or not isinstance(shape.shape[0], IntImm):
            raise CompileError(f"{self.name}: its shape function must give vectors, got {shape}")
        count = int(shape.shape[0].value)
        return [cast(simplify(self.element(shape, (const(n),))), "int64") for n in range(count)]

    def element(self, tensor: Tensor, at: tuple[PrimExpr, ...]) -> PrimExpr:
        """One element of an argument, or of what is computed from them."""
        if tensor in self.inputs:
            buffer, by_data = self.inputs[tensor]
            return BufferLoad(buffer, at, buffer.dtype) if by_data else self._dim(buffer, at)
        match tensor.op:
            case ComputeOp(axis=axis, body=body) if not isinstance(body[0], Reduce):
                values = {i.var: index for i, index in zip(axis, at, strict=True)}
                return self._read(substitute(body[tensor.value_index], values), {})
            case ExternOp() as op:
                return self._scripted(op, tensor.value_index, at)
        raise CompileError(f"{self.name}: its shape function may not reduce: {tensor}")

    def _dim(self, buffer: Buffer, at: tuple[PrimExpr, ...]) -> PrimExpr:
        return buffer.shape[self._number(at[0])]

    def _number(self, index: PrimExpr) -> int:
        found = simplify(index)
        if not isinstance(found, IntImm):
            raise CompileError(
                f"{self.name}: its shape function reads at {found}, which is no constant"
            )
        return int(found.value)

    def _read(self, value: PrimExpr, known: dict[tuple[Buffer, int], PrimExpr]) -> PrimExpr:
        """An expression with elements in the place of loads; `known` are those of results."""

        def load(e: PrimExpr) -> PrimExpr:
            """An element of an argument, or of a result that is computed before."""
            if isinstance(e, ProducerLoad):
                return self.element(e.producer, e.indices)
            if isinstance(e, BufferLoad) and e.buffer in self.sources:
                return self.element(self.sources[e.buffer], e.indices)
            if isinstance(e, BufferLoad) and len(e.indices) == 1:
                return known.get((e.buffer, self._number(e.indices[0])), e)
            return e

        return rewrite(value, load)

    def _scripted(self, op: ExternOp, number: int, at: tuple[PrimExpr, ...]) -> PrimExpr:
        """An element of what statements compute."""
        known: dict[tuple[Buffer, int], PrimExpr] = {}
        self.sources |= dict(zip(op.input_buffers, op.inputs, strict=True))
        self._run(op.body, {}, known)
        wanted = op.output_buffers[number], self._number(at[0])
        if wanted not in known:
            raise CompileError(f"{self.name}: its shape function leaves element {wanted[1]} open")
        return known[wanted]

    def _run(
        self,
        body: Stmt,
        values: dict[Var, PrimExpr],
        known: dict[tuple[Buffer, int], PrimExpr],
    ) -> None:
        match body:
            case SeqStmt(seq=parts):
                for each in parts:
                    self._run(each, values, known)
            case BufferStore(buffer=buffer, value=value, indices=(index,)):
                place = self._number(substitute(index, values))
                known[buffer, place] = self._read(substitute(value, values), known)
            case For(loop_var=var, min=low, extent=extent, body=inner):
                first, count = (self._number(substitute(e, values)) for e in (low, extent))
                for n in range(first, first + count):
                    self._run(inner, {**values, var: const(n, var.dtype)}, known)
            case IfThenElse(condition=condition, then_case=yes, else_case=no):
                test = self._read(substitute(condition, values), known)
                sides = [dict(known), dict(known)]
                self._run(yes, values, sides[0])
                if no is not None:
                    self._run(no, values, sides[1])
                for key in sides[0].keys() & sides[1].keys():
                    a, b = sides[0][key], sides[1][key]
                    known[key] = a if a is b else Select(test, a, b, a.dtype)
            case _:
                raise CompileError(
                    f"{self.name}: its shape function has a {type(body).__name__}, which no"
                    " expression says"
                )


__all__ = ["register_shape_func"]
