"""Convert fake quantisation (dequantize, float operators, quantize) to integer arithmetic.

    qnn.quantize(nn.relu(qnn.dequantize(%x, 2f, 0)), 2f, 0)   ->   maximum(%x, 0i8)

A region lies between dequantize and quantize and has a rule for each of its operators. A rule,
`relay.op.register_fake_quantization_to_integer`, gets a call whose arguments are integers already
and what each stands for (`TensorAffineType`), and gives the call on integers and what that stands
for.

Some results follow from their inputs (a sum of products has the product of the scales). Others need
a scale to be chosen: they take that of the quantize below, which a rule finds under its own call,
if all between only moves or picks values (`keeps`). Where that is not so, or a rule fails, the
region is left as it was.

With `use_qat`, operators of regions that were left, and of those without a quantize below, become
one by one integer operators followed by a dequantize, where their result needs no choice (`alone`):

    exp(nn.dense(qnn.dequantize(%x, ..), qnn.dequantize(%w, ..)))
->  exp(qnn.dequantize(qnn.dense(%x, %w, ..), ..))
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import Any

from ekiden.ir.affine_type import AffineType, TensorAffineType, TupleAffineType
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OP_ATTRS, get
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.analysis.fake_quantized import fake_quantized_region, region_operands
from ekiden.relay.expr import Call, Constant, Tuple, TupleGetItem
from ekiden.relay.op.op import (
    CONVERTS_ALONE_ATTR,
    FAKE_QUANTIZATION_ATTR,
    KEEPS_SCALE_ATTR,
    OPTIONAL_FAKE_QUANTIZATION_ATTR,
)
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.div_to_mul import DivToMul
from ekiden.relay.transform.graph.fold_scale_axis import op_name_of
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.relay.visitor import children, rebuild
from ekiden.runtime.errors import CompileError

LOGGER = logging.getLogger(__name__)


def load_rules() -> None:
    """Load the modules that register conversion rules, which are imported lazily."""
    import_module("ekiden.relay.qnn.affine_rules")


class _ConversionRules:
    """Fake-quantisation rules available to one run of the pass."""

    def __init__(self, optional: Iterable[str]) -> None:
        load_rules()
        more = OP_ATTRS.get(OPTIONAL_FAKE_QUANTIZATION_ATTR, {})
        self.rule_by_op = {name: more[name] for name in optional if name in more}
        # Rules that always apply win over optional ones of the same operator.
        self.rule_by_op |= OP_ATTRS.get(FAKE_QUANTIZATION_ATTR, {})

    def has_rule(self, expr: RelayExpr) -> bool:
        return op_name_of(expr) in self.rule_by_op

    def apply(self, call: Call, types: dict[RelayExpr, AffineType]) -> RelayExpr:
        """Convert a call to integers by its rule, and record its affine type in `types`."""
        rule = self.rule_by_op[op_name_of(call)]
        assert callable(rule)
        quantized, kind = rule(call, types)
        # of the call itself the table has what is wanted of it
        recorded = None if quantized is call else types.get(quantized)
        if recorded is not None and not structural_equal(recorded, kind):
            quantized = op.copy(quantized)  # the same integers, which stand for other numbers here
        types[infer_new_types(quantized)] = kind
        return quantized  # type: ignore[no-any-return]


def _affine_type_of(call: Call, quantised: RelayExpr) -> TensorAffineType:
    """Return the affine type of a quantize's result or a dequantize's input."""
    kind = quantised.checked_type
    assert isinstance(kind, TensorType)
    return TensorAffineType(call.args[1], call.args[2], kind.dtype, getattr(call.attrs, "axis", -1))


def _inherit_output_scale(root: Call, order: Sequence[RelayExpr]) -> set[RelayExpr]:
    """Return the expressions whose values reach the quantize unchanged, only moved or selected."""
    keeps = OP_ATTRS.get(KEEPS_SCALE_ATTR, {})
    excluded: set[RelayExpr] = set()
    # From the quantize up: an input is excluded as soon as one user computes with its values.
    for expr in reversed(order):
        passes = isinstance(expr, TupleGetItem) or bool(keeps.get(op_name_of(expr)))
        if expr is not root and (expr in excluded or not passes):
            excluded.update(region_operands(expr) or ())
    return {expr for expr in order if expr not in excluded}


def _rebuild_untyped(expr: RelayExpr, new: Mapping[RelayExpr, RelayExpr]) -> RelayExpr:
    """Rebuild an expression over new children, untyped if it has any."""
    return rebuild(expr, [new.get(c, c) for c in children(expr)])


def _convert_region(root: Call, order: Sequence[RelayExpr], rules: _ConversionRules) -> RelayExpr:
    """Convert the region between dequantizes and a quantize to integer arithmetic."""
    in_scale = _inherit_output_scale(root, order)
    result = _affine_type_of(root, root)
    types: dict[RelayExpr, AffineType] = {}
    new: dict[RelayExpr, RelayExpr] = {}
    for expr in order:
        rebuilt = expr if op_name_of(expr) == "qnn.dequantize" else _rebuild_untyped(expr, new)
        new[expr] = rebuilt
        match rebuilt:
            case Call():
                if op_name_of(expr) == "qnn.dequantize":
                    types[rebuilt] = _affine_type_of(rebuilt, rebuilt.args[0])
                elif expr in in_scale:
                    types[rebuilt] = result
                new[expr] = rules.apply(rebuilt, types)
            case Tuple(fields=fields):
                types[rebuilt] = TupleAffineType(tuple(types[f] for f in fields))  # type: ignore[misc]
            case TupleGetItem(tuple_value=value, index=index):
                pair = types[value]
                assert isinstance(pair, TupleAffineType)
                types[rebuilt] = pair.types[index]
    return new[root]


def _try_conversion(make: Callable[[], RelayExpr], old: RelayExpr, hard_fail: bool) -> RelayExpr:
    """Return the result of `make`, or `old` if it fails.

    Raises:
        CompileError: `make` failed and `hard_fail` is set.
    """
    try:
        return make()
    except Exception as error:  # rules may be a user's
        if hard_fail:
            raise CompileError(
                f"fake quantization of {op_name_of(old)} to integers: {error}"
            ) from error
        LOGGER.debug("left a region of %s: %s", op_name_of(old), error)
        return old


def _first_op_without_rule(order: Sequence[RelayExpr], rules: _ConversionRules) -> str:
    """Return the name of the first operator without a rule, or ""."""
    calls = (e for e in order if isinstance(e, Call))
    return next((op_name_of(e) or "a function" for e in calls if not rules.has_rule(e)), "")


def _convert_quantize(new: RelayExpr, rules: _ConversionRules, hard_fail: bool) -> RelayExpr:
    if op_name_of(new) != "qnn.quantize":
        return new
    assert isinstance(new, Call)
    order = fake_quantized_region(new)
    # The region reaches something that is not dequantized.
    if order is None:
        return new
    missing = _first_op_without_rule(order, rules)
    if not missing:
        return _try_conversion(lambda: _convert_region(new, order, rules), new, hard_fail)
    if hard_fail:
        raise CompileError(f"fake quantization to integers: no rule for {missing}")
    LOGGER.debug("left a region: no rule for %s", missing)
    return new


def _is_dequantized(expr: RelayExpr) -> bool:
    return op_name_of(expr) == "qnn.dequantize"


def _convert_dequantized_call(new: RelayExpr, rules: _ConversionRules) -> RelayExpr:
    """Convert one call of dequantised operands: f(dequantize(x)) -> dequantize(f'(x))."""
    if not rules.has_rule(new) or not OP_ATTRS.get(CONVERTS_ALONE_ATTR, {}).get(op_name_of(new)):
        return new
    assert isinstance(new, Call)
    operands = [e for a in new.args for e in (a.fields if isinstance(a, Tuple) else (a,))]
    if not any(map(_is_dequantized, operands)):
        return new
    # A constant among the operands is quantised by the rule itself.
    if not all(_is_dequantized(e) or isinstance(e, Constant) for e in operands):
        return new

    def convert_call() -> RelayExpr:
        """Return the integer call, typed like the float call."""
        dequantized = _convert_single_call(new, rules)
        # Users of the call read its type before the module is inferred again.
        dequantized.set_checked_type(new.checked_type)
        return dequantized

    return _try_conversion(convert_call, new, hard_fail=False)


def _convert_single_call(call: Call, rules: _ConversionRules) -> Call:
    types: dict[RelayExpr, AffineType] = {}
    new: dict[RelayExpr, RelayExpr] = {}
    for arg in call.args:
        for operand in arg.fields if isinstance(arg, Tuple) else (arg,):
            if isinstance(operand, Call):
                types[operand] = _affine_type_of(operand, operand.args[0])
                new[operand] = rules.apply(operand, types)
        if isinstance(arg, Tuple):
            new[arg] = _rebuild_untyped(arg, new)
            types[new[arg]] = TupleAffineType(tuple(types[f] for f in new[arg].fields))  # type: ignore[attr-defined, misc]
    quantized = rules.apply(_rebuild_untyped(call, new), types)  # type: ignore[arg-type]
    kind = types[quantized]
    assert isinstance(kind, TensorAffineType)
    dequantize = get("qnn.dequantize")
    attrs: Any = dequantize.definition.attrs
    return Call(dequantize, (quantized, kind.scale, kind.zero_point), attrs(axis=kind.axis))


def FakeQuantizationToInteger(  # noqa: N802
    hard_fail: bool = False, use_qat: bool = False, optional_qnn_ops: Sequence[str] = ()
) -> Pass:
    """Return a pass that converts fake quantisation to integer arithmetic (TVM's
    FakeQuantizationToInteger).

    Args:
        hard_fail: Raise a CompileError for a region that cannot be computed in integers.
        use_qat: Rewrite single operators without a quantize below them too.
        optional_qnn_ops: Operators whose optional rules are used.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Convert the functions of a module.

        With `use_qat` single operators behind a rounding are looked at again afterwards.
        """
        rules = _ConversionRules(optional_qnn_ops)

        def rewrite(body: RelayExpr) -> RelayExpr:
            """Convert a body's regions, and by quantisation-aware rules single calls."""
            # Whole regions first: calls outside any region remain for the second walk.
            regions = rewrite_graph(body, lambda old, new: _convert_quantize(new, rules, hard_fail))
            return (
                rewrite_graph(regions, lambda old, new: _convert_dequantized_call(new, rules))
                if use_qat
                else regions
            )

        return map_functions(module, lift_body_rewrite(rewrite))

    return Pass("FakeQuantizationToInteger", transform, 0, (InferType(), DivToMul()))
