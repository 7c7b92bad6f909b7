"""Partitioning of a quantized program into quantize, integer and dequantize functions.

    def @main(%x) { qnn.dequantize(core(qnn.quantize(%x, ..)), ..) }
->  def @quantize_inputs(%x) { (qnn.quantize(%x, ..),) }
    def @quantized_main(%x) { core(%x) }
    def @dequantize_outputs(%input) { qnn.dequantize(%input, ..) }
    def @main(%x) { @dequantize_outputs(@quantized_main(@quantize_inputs(%x).0)) }
"""

from __future__ import annotations

from collections.abc import Set

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Call, Function, Tuple, TupleGetItem, Var
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import evaluation_order, rewrite_graph
from ekiden.relay.visitor import free_vars
from ekiden.runtime.errors import CompileError

__all__ = ["partition_conversions"]


def partition_conversions(
    module: IRModule, quantized_dtypes: Set[str], ensure_fully_integral: bool
) -> IRModule:
    """Split the module into three functions and a `main` that calls them, as shown at the top of
    this file. Float computations in between stay in the middle. `ensure_fully_integral` is for
    machines without floats: raises CompileError, naming the operator, for a tensor in the middle
    that is not of `quantized_dtypes`. Raises CompileError for a module of several functions.
    """
    main = module["main"]
    if len(module.functions) != 1 or not isinstance(main, Function):
        raise CompileError("partition_conversions: a module of one function expected")
    before, inside, middle_params = _split_quantize_prefix(main)
    after, inside = _split_dequantize_suffix(inside)
    if ensure_fully_integral:
        _check_fully_integral(inside, quantized_dtypes)
    names = [GlobalVar(function_name) for function_name in _PARTITION_NAMES]
    middle = Function(tuple(middle_params), inside)
    first = Function(main.params, Tuple(tuple(before)))
    # Fresh variables: a Var belongs to one function, and `first` already binds the old ones.
    params = tuple(Var(param.name_hint, param.checked_type) for param in main.params)
    quantised = Call(names[0], params)
    fields = tuple(TupleGetItem(quantised, at) for at in range(len(middle_params)))
    body = Call(names[2], (Call(names[1], fields),))
    functions: dict[GlobalVar | str, BaseFunc] = dict(
        zip(names, (first, middle, after), strict=True)
    )
    return InferType()(IRModule(functions | {"main": Function(params, body)}))


_PARTITION_NAMES = ("quantize_inputs", "quantized_main", "dequantize_outputs")


def _split_quantize_prefix(main: Function) -> tuple[list[RelayExpr], RelayExpr, list[Var]]:
    """Return the arguments of the middle function, its body, and its parameters."""
    params = set(main.params)
    entering: dict[RelayExpr, Var] = {}

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Replace the quantization of a parameter by a parameter of the middle function."""
        enters = (
            op_name_of(old) == "qnn.quantize" and isinstance(old, Call) and old.args[0] in params
        )
        if not enters:
            return new
        assert isinstance(old, Call) and isinstance(old.args[0], Var)
        entering[old] = _make_typed_var(old.args[0].name_hint, old)
        return entering[old]

    body = rewrite_graph(main.body, rewrite)
    unquantised = [param for param in main.params if param in set(free_vars(body))]
    return [*entering, *unquantised], body, [*entering.values(), *unquantised]


def _split_dequantize_suffix(body: RelayExpr) -> tuple[Function, RelayExpr]:
    """Return the function that dequantizes the results, and the middle body without it."""
    several = isinstance(body, Tuple)
    fields = body.fields if isinstance(body, Tuple) else (body,)
    inner = [
        field_expr.args[0]
        if isinstance(field_expr, Call) and op_name_of(field_expr) == "qnn.dequantize"
        else field_expr
        for field_expr in fields
    ]
    middle = Tuple(tuple(inner)) if several else inner[0]
    names = [f"input_{at}" if several else "input" for at in range(len(inner))]
    holders = [
        _make_typed_var(name, inner_expr) for name, inner_expr in zip(names, inner, strict=True)
    ]
    middle_result = Var("input", None) if several else holders[0]
    results: list[RelayExpr] = []
    for at, (field, its) in enumerate(zip(fields, inner, strict=True)):
        middle_field: RelayExpr = TupleGetItem(middle_result, at) if several else middle_result
        if field is not its and isinstance(field, Call):
            middle_field = Call(field.op, (middle_field, *field.args[1:]), field.attrs)
        results.append(middle_field)
    return Function((middle_result,), Tuple(tuple(results)) if several else results[0]), middle


def _make_typed_var(name: str, like: RelayExpr) -> Var:
    """Return a new variable with the type of an expression."""
    var = Var(name, like.checked_type)
    var.set_checked_type(like.checked_type)
    return var


def _check_fully_integral(body: RelayExpr, dtypes: Set[str]) -> None:
    for expr in evaluation_order(body):
        kind = expr.checked_type_or_none()
        is_value = isinstance(expr, (Call, Var)) and isinstance(kind, TensorType)
        if is_value and kind.dtype not in dtypes:  # type: ignore[union-attr]
            name = op_name_of(expr) or f"%{getattr(expr, 'name_hint', 'value')}"
            raise CompileError(
                f"partition_conversions: '{name}' is of {kind.dtype} between the integers"  # type: ignore[union-attr]
            )
