"""From a fused function to a loop program: operators become tensor expressions, a schedule rule
makes the loops.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.op import Op
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.transform.manifest_alloc import tensor_types
from ekiden.relay.transform.scopes import evaluation_order
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, PrimFunc, seq
from ekiden.topi import rule

Tensors = list[te.Tensor]


def _scalar(constant: Constant) -> te.Tensor:
    """A constant of one element as a computation, which inlines to an immediate."""
    dtype = str(constant.data.dtype)
    value = constant.data.item()
    return te.compute(
        (),
        lambda: const(float(value) if is_float(dtype) else int(value), dtype),
        name="constant",
        tag="injective",
    )


def _lower_call(call: Call, known: dict[RelayExpr, Tensors]) -> Tensors:
    assert isinstance(call.op, Op)
    lowering = call.op.definition.lower
    if lowering is None:
        raise CompileError(f"{call.op.name}: the operator has no kernel")
    inputs = [t for a in call.args for t in known[a]]
    made = list(lowering(call.attrs, inputs, call.checked_type))
    return [t for t in made if isinstance(t, te.Tensor)]


def te_graph(function: Function) -> tuple[Tensors, Tensors]:
    """(inputs, outputs) of a primitive function as tensor expressions."""
    known: dict[RelayExpr, Tensors] = {}
    inputs: Tensors = []
    for param in function.params:
        kinds = tensor_types(param.checked_type)
        made = [
            te.placeholder(k.shape, k.dtype, f"p{len(inputs) + i}") for i, k in enumerate(kinds)
        ]
        known[param] = made
        inputs.extend(made)
    for expr in evaluation_order(function.body):
        match expr:
            case Call():
                known[expr] = _lower_call(expr, known)
            case Constant():
                known[expr] = [_scalar(expr)]
            case Tuple(fields=fields):
                known[expr] = [t for f in fields for t in known[f]]
            case TupleGetItem(tuple_value=value, index=index):
                known[expr] = [known[value][index]]
    return inputs, known[function.body]


def described(function: Function, name: str) -> str:
    """The name of a kernel and the model node it comes from."""
    return f"the kernel {name} of {function.span}" if function.span else f"the kernel {name}"


def lower_primitive(function: Function, name: str, target: Target) -> PrimFunc:
    """The scheduled loop program of a primitive function (canonical form), outputs after inputs.

    Raises CompileError naming the operators of the function and where they come from.
    """
    try:
        inputs, outputs = te_graph(function)
        return rule.schedule(inputs, outputs, target, name)
    except Exception as error:
        error.add_note(f"while lowering {described(function, name)}")
        raise


Constraint = tuple[PrimExpr, str]
"""A condition on symbols that every run must meet, and what needs it: a node of the model."""


def shape_function(
    kinds: Sequence[TensorType],
    exprs: Sequence[PrimExpr],
    constraints: Sequence[Constraint],
    name: str,
) -> PrimFunc:
    """A kernel that reads the shapes of its arguments, checks the constraints, and writes the
    values of `exprs` (int64).
    """
    params = tuple(Buffer(f"p{i}", k.shape, k.dtype) for i, k in enumerate(kinds))
    dims = Buffer("dims", (const(len(exprs)),), "int64")
    checks = (
        AssertStmt(c, f"run: {where} needs {prim_text(c)}", "InputError")
        for c, where in constraints
    )
    body = seq(*checks, *(BufferStore(dims, e, (const(i),)) for i, e in enumerate(exprs)))
    return PrimFunc((*params, dims), body, {"global_symbol": name, "num_outputs": 1})


__all__ = ["described", "lower_primitive", "shape_function", "te_graph"]
