"""Calls of PrimFuncs from Relay: call_lowered, and loop programs as Relay functions.

The parameters that it writes, its last ones, are its results. A named dimension of its parameters
is any size that the arguments of a call have. A parameter that is a number is a tensor of no
dimension.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ekiden import te
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr_text import format_type
from ekiden.ir.intrinsic import find_intrinsic
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, get, register_op
from ekiden.ir.prim import Intrinsic, PrimExpr, SizeVar, Var
from ekiden.ir.prim_visitor import free_vars, rewrite, substitute
from ekiden.ir.type import FuncType, TensorType, TupleType, Type, tensor_type
from ekiden.relay.expr import Call, Expr, Function, Tuple
from ekiden.relay.expr import Var as RelayVar
from ekiden.relay.op._interpreter_fallback import InterpretedReference, LoopProgram
from ekiden.relay.unify import match_dims, size_vars, substitute_dims
from ekiden.runtime.errors import TypeInferenceError
from ekiden.tir import transform as tir_transform
from ekiden.tir.expr import Buffer, BufferAddress
from ekiden.tir.stmt import Block, PrimFunc, Stmt
from ekiden.tir.transform.scalars_as_tensors import numbers_as_tensors
from ekiden.tir.visitor import (
    StmtMutator,
    all_exprs,
    buffers_read,
    buffers_written,
    pre_order_stmts,
    rename,
    with_body,
)


@node("relay.attrs.CallLoweredAttrs")
class CallLoweredAttrs(Attrs):
    """Attributes of call_lowered: the called PrimFunc."""

    func: PrimFunc

    def has_external_calls(self) -> bool:
        """Return whether the PrimFunc calls external functions.

        Such functions may have effects, and need not do the same whenever they are called.
        """
        return any(
            isinstance(e, Intrinsic) and find_intrinsic(e.op).is_function_call
            for e in all_exprs(self.func.body)
        )


class _AddressMarker(StmtMutator):
    """Mutator that marks the buffers whose addresses are passed to external functions as read."""

    def __init__(self, buffers: set[Buffer]) -> None:
        self.buffers = buffers

    def rewrite_expr(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with buffer addresses marked as reads."""
        return rewrite(expr, self._mark_address)

    def _mark_address(self, e: PrimExpr) -> PrimExpr:
        if isinstance(e, BufferAddress) and e.access == "rw" and e.buffer in self.buffers:
            return e.with_fields(access="r")
        return e


def _with_external_reads(func: PrimFunc) -> PrimFunc:
    """Return a PrimFunc whose buffers passed to external functions count as read, since an address
    alone does not tell what the callee does.
    """
    func = numbers_as_tensors(func)
    # An address passed to a foreign function may be written through: without the attribute every
    # buffer counts as written.
    count = (func.attrs or {}).get("num_outputs")
    if not isinstance(count, int) or count >= len(func.params):
        return func
    body = _AddressMarker(set(func.buffers[: len(func.params) - count])).visit(func.body)
    return func if body is func.body else with_body(func, body)


def num_outputs(func: PrimFunc) -> int:
    """Return the number of trailing parameters that a PrimFunc writes as results.

    The attribute "num_outputs" decides, or else the parameters that are written.

    Raises:
        TypeInferenceError: There are no results, or a parameter is both read and written: values of
            Relay do not change.
    """
    written = set(buffers_written(func.body))
    # Without the attribute, the parameters that are written count as results.
    declared = (func.attrs or {}).get("num_outputs")
    count = declared if isinstance(declared, int) else len(written.intersection(func.params))
    params = func.buffers
    # `-0` would be the start, not the end.
    inputs, outputs = params[: len(params) - count], params[-count or None :]
    if count == 0 or not written.issuperset(outputs):
        raise TypeInferenceError(f"@{func.name}: its last parameters must be those that it writes")
    changed = [b for b in inputs if b in written]
    changed += [b for b in outputs if declared is None and b in _uninitialized_reads(func)]
    if changed:
        raise TypeInferenceError(
            f"@{func.name}: parameter '{changed[0].name}' is read and written, and an argument of a"
            " call from Relay stays as it is; write to a parameter of its own, or say how many of"
            " the last ones are results by the attribute num_outputs"
        )
    return count


def _uninitialized_reads(func: PrimFunc) -> set[Buffer]:
    """Return the buffers read outside of reductions that initialise them."""
    begun = {
        buffer
        for s in pre_order_stmts(func.body)
        if isinstance(s, Block) and s.init is not None
        for buffer in buffers_written(s.init)
    }
    return set(buffers_read(func.body)) - begun


def relay_function_type(func: PrimFunc) -> FuncType:
    """Return the Relay function type of a PrimFunc.

    Raises:
        TypeInferenceError: As in `num_outputs`, and if a result has a dimension that no argument
            has.
    """
    func = _with_external_reads(func)
    count = num_outputs(func)
    dims: dict[Var, PrimExpr] = {
        v: SizeVar(v.name)
        for b in func.buffers
        for v in free_vars(*b.shape)
        if not isinstance(v, SizeVar)
    }
    kinds = [tensor_type([substitute(d, dims) for d in b.shape], b.dtype) for b in func.buffers]
    inputs, outputs = kinds[:-count], kinds[-count:]
    # A dimension that only results have could not be known before the call.
    missing = set(size_vars(outputs)) - set(size_vars(inputs))
    if missing:
        names = ", ".join(sorted(v.name for v in missing))
        raise TypeInferenceError(f"@{func.name}: no parameter that it reads has dimension {names}")
    return FuncType(tuple(inputs), outputs[0] if count == 1 else TupleType(tuple(outputs)))


def wrap_prim_func(func: PrimFunc) -> Function:
    """Wrap a PrimFunc in a Relay function that calls it, for inlining."""
    kind = relay_function_type(func)
    func = _with_external_reads(func)
    inputs = zip(func.params, kind.arg_types, strict=False)
    params = tuple(RelayVar(b.name, param_type) for b, param_type in inputs)
    return Function(params, call_lowered(func, params), kind.ret_type, attrs={"Inline": 1})


def call_lowered(func: PrimFunc, args: Sequence[Expr]) -> Call:
    """Build a call of a PrimFunc that returns its results."""
    attrs = CallLoweredAttrs(_with_external_reads(func))
    return Call(get("call_lowered"), (Tuple(tuple(args)),), attrs)


def _call_lowered_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(attrs, CallLoweredAttrs) and isinstance(types[0], TupleType)
    kind, name, arg_types = relay_function_type(attrs.func), attrs.func.name, types[0].fields
    if len(arg_types) != len(kind.arg_types):
        expected = f"{len(kind.arg_types)} arguments"
        raise TypeInferenceError(f"call of @{name}: expected {expected}, got {len(arg_types)}")
    flexible = set(size_vars(kind.arg_types))
    dims: dict[Var, PrimExpr] = {}
    for param, arg in zip(kind.arg_types, arg_types, strict=True):
        match_dims(param, arg, flexible, dims)
    # A second pass, as a dimension may be bound by a later argument than the one that disagrees.
    for index, (param, arg) in enumerate(zip(kind.arg_types, arg_types, strict=True)):
        wanted_type = substitute_dims(param, dims)
        if not _is_compatible(wanted_type, arg):
            expected = f"{format_type(wanted_type)}, got {format_type(arg)}"
            raise TypeInferenceError(f"call of @{name}: argument {index}: expected {expected}")
    return substitute_dims(kind.ret_type, dims)


def _is_compatible(expected: Type, actual: Type) -> bool:
    """Return whether a tensor type is compatible with the expected one; symbolic sizes are not
    compared.
    """
    if not isinstance(expected, TensorType) or not isinstance(actual, TensorType):
        return False
    if expected.dtype != actual.dtype or len(expected.shape) != len(actual.shape):
        return False
    pairs = zip(expected.shape, actual.shape, strict=True)
    sizes = [(getattr(a, "value", None), getattr(b, "value", None)) for a, b in pairs]
    return all(a == b for a, b in sizes if a is not None and b is not None)


def _lower_call(
    attrs: CallLoweredAttrs, inputs: Sequence[te.Tensor], out: Type
) -> Sequence[te.Tensor]:
    """Return the tensors computed by the PrimFunc's statements within a kernel."""
    func = attrs.func
    fields = out.fields if isinstance(out, TupleType) else (out,)
    kinds = [field for field in fields if isinstance(field, TensorType)]

    def build_body(ins: Sequence[Buffer], outs: Sequence[Buffer]) -> Stmt:
        """Build the PrimFunc's body over the kernel's buffers.

        Symbolic sizes become those of the buffers; the first buffer that has one decides.
        """
        real = (*ins, *outs)
        pairs = ((b.shape, r.shape) for b, r in zip(func.buffers, real, strict=True))
        dims = [(a, b) for shapes in pairs for a, b in zip(*shapes, strict=True)]
        # Reversed, so that of a dimension that occurs often the first occurrence stays.
        sizes = {old: new for old, new in reversed(dims) if isinstance(old, Var)}
        return rename(func.body, sizes, dict(zip(func.buffers, real, strict=True)))

    shapes, dtypes = [k.shape for k in kinds], [k.dtype for k in kinds]
    return te.extern_op(shapes, inputs, build_body, dtypes, func.name)


def _lower_for_interpreter(attrs: Attrs | None, arrays: Sequence[Array]) -> LoopProgram:
    assert isinstance(attrs, CallLoweredAttrs)
    kinds = tuple(tensor_type(a.shape, str(a.dtype)) for a in arrays)
    result = _call_lowered_relation([TupleType(kinds)], attrs)
    fields = result.fields if isinstance(result, TupleType) else (result,)
    # Zeros, as a program may leave elements unwritten.
    outputs = tuple(
        np.zeros(field.concrete_shape, to_numpy(field.dtype))
        for field in fields
        if isinstance(field, TensorType)
    )
    return LoopProgram(tir_transform.lower(attrs.func), outputs, isinstance(result, TupleType))


register_op(
    OpDef(
        name="call_lowered",
        arguments=("args",),
        variadic=True,
        attrs=CallLoweredAttrs,
        relation=_call_lowered_relation,
        reference=InterpretedReference(_lower_for_interpreter),
        lower=_lower_call,
        result="what the loop program writes",
        description="Call a loop program with the tensors that it reads.",
    )
)

__all__ = [
    "CallLoweredAttrs",
    "call_lowered",
    "num_outputs",
    "relay_function_type",
    "wrap_prim_func",
]
