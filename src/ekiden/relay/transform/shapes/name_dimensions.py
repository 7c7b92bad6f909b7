"""Name the unknown dimensions of main's parameters by symbols.

def @main(%x: Tensor[(?, 2), float32]) { nn.relu(%x) }
-> def @main(%x: Tensor[(x_0, 2), float32]) { nn.relu(%x) }

Nothing is named in a program that does not take every size: where two of the dimensions must be one
number, as in an addition of two unknown shapes, or one a multiple of 4, as in a reshape. Whether it
does is found by inferring the types for sizes that are different primes. Nor is anything in a
program with function values and data structures, where tensors of several shapes have one type.
What stays unknown, BindDimensions names inside of the function.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, TensorType, Type
from ekiden.relay.expr import Constructor, Expr, Function, Match, Var
from ekiden.relay.transform.language.scope_tree import evaluation_order, is_atom
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import fresh_copy, map_type, type_post_order
from ekiden.runtime.errors import TypeInferenceError

TRIAL_PRIME_SIZES = (1009, 2003, 3001, 4001, 5003, 6007, 7001, 8009)
"""Distinct primes tried as dimension sizes; programs with more unknown dimensions are unchanged."""

DimensionBuilder = Callable[[str, int], PrimExpr]
"""Function (parameter name, axis) -> dimension."""


def NameDimensions() -> Pass:  # noqa: N802
    """Return a pass that names the unknown dimensions of main's parameters."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Return the module with `main` over symbols, such as x_0 for axis 0 of parameter x.

        It stays as it was if `main` has no unknown dimensions, too many, or does not type with
        names. A prime is tried for each name first: a program that types for primes needs no equal
        sizes.
        """
        main = next((f for g, f in module.functions.items() if g.name_hint == "main"), None)
        if not isinstance(main, Function):
            return module
        unknown = sum(_num_unknown_dims(p.type_annotation) for p in main.params)
        if not 0 < unknown <= len(TRIAL_PRIME_SIZES) or _has_higher_order_values(main):
            return module
        # Distinct primes: if inference succeeds with unrelated sizes, no two dimensions need to be
        # equal.
        sizes = iter(TRIAL_PRIME_SIZES)
        try:
            # Distinct primes: any equation between unknown dimensions fails here, and then they
            # must stay unknown.
            infer_type(
                module.with_function(
                    "main", _fill_unknown_dims(main, lambda name, axis: IntImm(next(sizes)))
                )
            )
            named = _fill_unknown_dims(main, lambda name, axis: SizeVar(f"{name}_{axis}"))
            return infer_type(module.with_function("main", named))
        except TypeInferenceError:
            return module

    return Pass("NameDimensions", transform)


def _has_higher_order_values(main: Function) -> bool:
    # Tensors of several shapes share one type in function values and data structures.
    return any(
        isinstance(e, (Function, Constructor, Match)) or (isinstance(e, Var) and _is_function(e))
        for e in evaluation_order(main.body)
        if not (isinstance(e, Function) and is_atom(e))
    )


def _is_function(var: Var) -> bool:
    return isinstance(var.checked_type_or_none(), FuncType)


def _num_unknown_dims(kind: Type | None) -> int:
    """Return the number of unknown dimensions in a type."""
    subtypes = type_post_order(kind) if kind is not None else []
    shapes = [t.shape for t in subtypes if isinstance(t, TensorType)]
    return sum(isinstance(d, AnyDim) for shape in shapes for d in shape)


def _fill_unknown_dims(function: Function, make: DimensionBuilder) -> Function:
    """Return a copy of the function with the unknown dimensions of its parameters replaced."""
    params = tuple(Var(p.name_hint, _fill_param_type(p, make), p.span) for p in function.params)
    # A declared result of unknown dimensions would hide the names.
    ret = function.ret_type if not _num_unknown_dims(function.ret_type) else None
    new: dict[Var, Expr] = dict(zip(function.params, params, strict=True))
    body = fresh_copy(function.body, new)
    return Function(params, body, ret, function.type_params, function.attrs, function.span)


def _fill_param_type(param: Var, make: DimensionBuilder) -> Type | None:
    kind = param.type_annotation
    if kind is None:
        return None

    def fill_tensor_type(kind: Type) -> Type:
        """Replace each unknown dimension of a tensor type by the dimension for its axis.

        Nested types are walked by `map_type`.
        """
        if not isinstance(kind, TensorType):
            return kind
        dims = (
            make(param.name_hint, axis) if isinstance(d, AnyDim) else d
            for axis, d in enumerate(kind.shape)
        )
        return TensorType(tuple(dims), kind.dtype)

    return map_type(kind, fill_tensor_type)
