"""Cut a quantised program where floats become integers and where they are floats again.

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
from ekiden.relay.transform.graph.fold_scale_axis import op_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import evaluation_order, rewrite_graph
from ekiden.relay.visitor import free_vars
from ekiden.runtime.errors import CompileError

__all__ = ["partition_conversions"]


def partition_conversions(
    module: IRModule, quantized_dtypes: Set[str], ensure_fully_integral: bool
) -> IRModule:
    """The module as three functions and a `main` that calls them, as shown at the top of this
    file. What is computed in floats on the way stays in the middle.

    `ensure_fully_integral` is for machines that have no floats: CompileError, which names the
    operator, for a tensor in the middle that is not of `quantized_dtypes`, and for a module of
    several functions.
    """
    main = module["main"]
    if len(module.functions) != 1 or not isinstance(main, Function):
        raise CompileError("partition_conversions: a module of one function expected")
    before, inside, given = _inputs(main)
    after, inside = _outputs(inside)
    if ensure_fully_integral:
        _check(inside, quantized_dtypes)
    names = [GlobalVar(each) for each in _NAMES]
    middle = Function(tuple(given), inside)
    first = Function(main.params, Tuple(tuple(before)))
    params = tuple(Var(each.name_hint, each.checked_type) for each in main.params)
    quantised = Call(names[0], params)
    fields = tuple(TupleGetItem(quantised, at) for at in range(len(given)))
    body = Call(names[2], (Call(names[1], fields),))
    made: dict[GlobalVar | str, BaseFunc] = dict(zip(names, (first, middle, after), strict=True))
    return InferType()(IRModule(made | {"main": Function(params, body)}))


_NAMES = ("quantize_inputs", "quantized_main", "dequantize_outputs")


def _inputs(main: Function) -> tuple[list[RelayExpr], RelayExpr, list[Var]]:
    """What enters the middle, the middle on variables, and these."""
    params = set(main.params)
    entering: dict[RelayExpr, Var] = {}

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """A rounding of a parameter becomes a parameter of the middle."""
        enters = op_of(old) == "qnn.quantize" and isinstance(old, Call) and old.args[0] in params
        if not enters:
            return new
        assert isinstance(old, Call) and isinstance(old.args[0], Var)
        entering[old] = _variable(old.args[0].name_hint, old)
        return entering[old]

    body = rewrite_graph(main.body, rewrite)
    left = [each for each in main.params if each in set(free_vars(body))]
    return [*entering, *left], body, [*entering.values(), *left]


def _outputs(body: RelayExpr) -> tuple[Function, RelayExpr]:
    """What makes floats of the middle's results, and the middle without that."""
    several = isinstance(body, Tuple)
    fields = body.fields if isinstance(body, Tuple) else (body,)
    inner = [
        each.args[0] if isinstance(each, Call) and op_of(each) == "qnn.dequantize" else each
        for each in fields
    ]
    middle = Tuple(tuple(inner)) if several else inner[0]
    names = [f"input_{at}" if several else "input" for at in range(len(inner))]
    holders = [_variable(name, each) for name, each in zip(names, inner, strict=True)]
    whole = Var("input", None) if several else holders[0]
    found: list[RelayExpr] = []
    for at, (field, its) in enumerate(zip(fields, inner, strict=True)):
        given: RelayExpr = TupleGetItem(whole, at) if several else whole
        is_cut = field is not its and isinstance(field, Call)
        found.append(Call(field.op, (given, *field.args[1:]), field.attrs) if is_cut else given)  # type: ignore[attr-defined]
    return Function((whole,), Tuple(tuple(found)) if several else found[0]), middle


def _variable(name: str, like: RelayExpr) -> Var:
    made = Var(name, like.checked_type)
    made.set_checked_type(like.checked_type)
    return made


def _check(body: RelayExpr, dtypes: Set[str]) -> None:
    for expr in evaluation_order(body):
        kind = expr.checked_type_or_none()
        is_value = isinstance(expr, (Call, Var)) and isinstance(kind, TensorType)
        if is_value and kind.dtype not in dtypes:  # type: ignore[union-attr]
            name = op_of(expr) or f"%{getattr(expr, 'name_hint', 'value')}"
            raise CompileError(
                f"partition_conversions: '{name}' is of {kind.dtype} between the integers"  # type: ignore[union-attr]
            )
