"""Fuse scaled dot-product attention (two batch matmuls around a softmax) into one operator, with
surrounding transposes.

    %q = reshape(transpose(%x, axes=[0, 2, 1, 3]), newshape=[b * h, s, d]); %k, %v likewise
    %0 = reshape(nn.batch_matmul(%q, %k), newshape=[b, h, s, t]);
    %1 = reshape(nn.softmax(add(divide(%0, 8f), %mask)), newshape=[b * h, s, t]);
    transpose(reshape(nn.batch_matmul(%1, %v, transpose_b=False), newshape=[b, h, s, d]),
              axes=[0, 2, 1, 3])
    ->  nn.attention((%x, %y, %z, %mask), scale=0.125f, query_layout="bshd", ..., out_layout="bshd")

Between the product and the softmax there may be factors, then additions, then choices (where(%seen,
%x, -1e9f)); factors may stand before the product too, and after the softmax where(%empty, 0f, %p)
with a condition on rows, or where(isnan(%p), 0f, %p). Scores and probabilities that something else
uses stay as they are.

    softmax((q s1) (k s2)^T s3 + b1 + b2) v  =  attention(q, k, v, b1 + b2, scale = s1 s2 s3)
    where(seen, x, c)  =  x + where(seen, 0, c)        for c <= -1e9: what is added to c is lost in
                                                       its rounding, and its probability is 0

The gain is memory: the kernel has the scores of one tile of rows at a time, in the first cache
(kernels/attention). It sums in another order, so that results differ in their last bits. Factors
must be before additions, or they would scale the bias too. The pass runs before layouts are
converted, which would move the transpositions away from the products.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from typing import TYPE_CHECKING

import numpy as np

from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal, simplify
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Op
from ekiden.ir.prim import IntImm, PrimExpr, const, is_const
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType
from ekiden.relay import op
from ekiden.relay.dataflow_pattern.matcher import build_user_map
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.transform import TransposeAttrs, normalize_transpose_axes
from ekiden.relay.transform.graph.call_rewrites import infer_new_types
from ekiden.relay.transform.graph.float_rewrites import is_rewrite_allowed
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import (
    lift_body_rewrite,
    map_functions,
    rewrite_graph,
)
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import ekiden.relay.op.nn.dot_product_attention as attention_op
else:
    attention_op = LazyModule("ekiden.relay.op.nn.dot_product_attention")

MAX_MASKED_SCORE = -1e9
"""Largest score of a masked key: additions to it round away."""
MAX_MATCHED_OPERATORS = 12
"""Maximum operators between the two products."""

TensorShape = tuple[PrimExpr, ...]


def _op_name(expr: RelayExpr) -> str:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def _match_call(expr: RelayExpr, *names: str) -> Call | None:
    return expr if isinstance(expr, Call) and _op_name(expr) in names else None


def _tensor_type(expr: RelayExpr) -> TensorType:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind


def _shape(expr: RelayExpr) -> TensorShape:
    return _tensor_type(expr).shape


def _is_same_shape(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    return len(a) == len(b) and all(map(prove_equal, a, b))


def _scalar_value(expr: RelayExpr) -> float | None:
    """Return the value of a scalar constant, or None."""
    if isinstance(expr, Constant) and expr.data.size == 1 and expr.data.dtype.kind == "f":
        return float(expr.data.reshape(()))
    return None


def _match_scale(call: Call) -> tuple[RelayExpr, float] | None:
    """Match x * c, c * x or x / c; return (x, factor), or None."""
    lhs, rhs = call.args
    by = _scalar_value(rhs)
    if _op_name(call) == "divide":
        return None if not by else (lhs, 1 / by)
    if by is not None:
        return lhs, by
    by = _scalar_value(lhs)
    return None if by is None else (rhs, by)


@dataclass(slots=True)
class _AttentionOperand:
    """Operand of the attention with one letter per axis (b, h, s, d; n for batch and heads
    merged).
    """

    expr: RelayExpr
    layout: str
    factor: float = 1.0

    @property
    def dims(self) -> dict[str, PrimExpr]:
        """Return the dimensions by axis letter."""
        return dict(zip(self.layout, _shape(self.expr), strict=True))

    def absorb_transforms(self) -> None:
        """Absorb scales, transposes and head-merging reshapes of the operand into its layout and
        factor.
        """
        while call := _match_call(self.expr, "transpose", "reshape", "multiply", "divide"):
            name, source = _op_name(call), call.args[0]
            if name == "transpose":
                assert isinstance(call.attrs, TransposeAttrs)
                axes = normalize_transpose_axes(call.attrs, len(self.layout))
                self.layout = "".join(self.layout[axes.index(i)] for i in range(len(axes)))
            elif name == "reshape":
                shape = _shape(source)
                # Only a reshape that joins batch and heads keeps the letters.
                if self.layout[0] != "n" or not _is_head_merge(shape, _shape(call)):
                    return
                self.layout = "bh" + self.layout[1:]
            elif (factored := _match_scale(call)) is not None and _is_same_shape(
                _shape(factored[0]), _shape(call)
            ):
                source = factored[0]
                self.factor *= factored[1]
            else:
                return
            self.expr = source

    def split_heads(self, batch: PrimExpr, heads: PrimExpr) -> bool:
        """Split a merged axis into batch and heads; return whether these are the given extents."""
        if "n" in self.layout:
            shape = list(_shape(self.expr))
            position = self.layout.index("n")
            self.expr = infer_new_types(
                op.reshape(
                    self.expr,
                    [*shape[:position], batch, heads, *shape[position + 1 :]],
                    allowzero=True,
                )
            )
            self.layout = self.layout.replace("n", "bh")
        return _is_same_shape([self.dims["b"], self.dims["h"]], [batch, heads])


def _is_per_row(condition: RelayExpr, scores: RelayExpr) -> bool:
    """Return whether a condition has one value per row and broadcasts to the scores."""
    shape = _shape(condition)
    rows = _shape(scores)[-len(shape) : -1]
    fits = all(is_const(c, 1) or prove_equal(c, r) for c, r in zip(shape, rows, strict=False))
    return 0 < len(shape) <= 4 and is_const(shape[-1], 1) and fits


def _is_head_merge(four: TensorShape, three: TensorShape) -> bool:
    """Return whether [b, h, x, y] was reshaped to [b * h, x, y]."""
    return len(four) == 4 and len(three) == 3 and _is_same_shape(four[2:], three[1:])


@dataclass(slots=True)
class _ScoreChain:
    """Operators between the first product and the softmax: scale, biases, masks."""

    scale: float = 1.0
    biases: list[RelayExpr] = field(default_factory=list)
    shape: TensorShape = ()
    """Four-axis shape of the scores, if one was seen."""
    empty_rows: RelayExpr | None = None
    """Condition of rows whose result is zero."""
    nan_as_zero: bool = False
    """Whether NaN probabilities count as 0."""


@dataclass(frozen=True, slots=True)
class _Probabilities:
    """Attention probabilities: the softmax, and the rows that are replaced by zeros."""

    softmax: Call
    empty_rows: RelayExpr | None = None
    nan_as_zero: bool = False


class _AttentionFuser:
    """Matcher and rewriter of attention patterns in one function."""

    def __init__(self, root: RelayExpr) -> None:
        self.users = build_user_map(root)
        self.uses: dict[RelayExpr, int] = {}

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Rewrite an expression whose operands are already rewritten."""
        fused: RelayExpr | None = None
        if product := _match_call(new, "nn.batch_matmul"):
            fused = self.match_attention(product)
        elif transpose := _match_call(new, "transpose"):
            fused = self.fold_transpose(transpose)
        result = new if fused is None else infer_new_types(fused)
        # Counts are of old expressions, and looked up by new ones.
        self.uses[result] = len(self.users.get(old, ()))
        return result

    def has_single_use(self, expr: RelayExpr) -> bool:
        """Return whether an expression has a single use."""
        return self.uses.get(expr) == 1

    # The chain from the second product to the first.

    def match_probabilities(self, product: Call) -> _Probabilities | None:
        """Match the softmax over the last axis that is the left operand of a product.

        A choice may put zeros in its place: in some rows, or for NaN.
        """
        lhs = product.args[0]
        rank = len(_shape(lhs))
        if (flat := _match_call(lhs, "reshape")) and _is_head_merge(
            _shape(flat.args[0]), _shape(flat)
        ):
            if not self.has_single_use(flat):
                return None
            lhs, rank = flat.args[0], 4
        empty: RelayExpr | None = None
        uses, is_nan = 1, False
        if (choice := _match_call(lhs, "where")) and self.has_single_use(choice):
            empty, instead, lhs = choice.args
            test = _match_call(empty, "isnan")
            # The softmax is used twice then: by the test and by the choice.
            if is_nan := test is not None and test.args[0] is lhs and self.has_single_use(test):
                empty, uses = None, 2
            elif rank != 4 or not _is_per_row(empty, lhs):
                return None
            if _scalar_value(instead) != 0.0:
                return None
        softmax = _match_call(lhs, "nn.softmax")
        # The fused kernel never stores the probabilities, so nothing else may read them.
        if softmax is None or self.uses.get(softmax) != uses:
            return None
        if getattr(softmax.attrs, "axis", -1) not in (-1, rank - 1):
            return None
        return _Probabilities(softmax, empty, is_nan)

    def match_scores(self, expr: RelayExpr) -> tuple[Call, _ScoreChain] | None:
        """Match the query-key product and the operators applied to it; None if it does not
        match.
        """
        chain = _ScoreChain()
        for _ in range(MAX_MATCHED_OPERATORS):
            # Scores with another user must be stored anyway, so fusing would compute them twice.
            if not self.has_single_use(expr) or not isinstance(expr, Call):
                return None
            if len(_shape(expr)) == 4:
                chain.shape = _shape(expr)
            if _op_name(expr) == "nn.batch_matmul":
                return expr, chain
            inner = self.match_score_operator(expr, chain)
            if inner is None:
                return None
            expr = inner
        return None

    def match_score_operator(self, call: Call, chain: _ScoreChain) -> RelayExpr | None:
        """Record one operator of the score chain, and return its scores operand; None for an
        unsupported operator.
        """
        match _op_name(call):
            case "reshape":
                shapes = _shape(call), _shape(call.args[0])
                fits = _is_head_merge(*shapes) or _is_head_merge(*shapes[::-1])
                return call.args[0] if fits else None
            case "multiply" | "divide":
                factored = _match_scale(call)
                if factored is None:
                    return None
                # The walk goes backwards: factors that come after a bias would scale it too.
                chain.scale *= factored[1]
                return factored[0]
            # The chain is matched from the softmax backward: a scale seen before a bias would scale
            # the bias, too.
            case "add" if chain.scale == 1.0:
                for inner, bias in (call.args, call.args[::-1]):
                    # Either operand may be the scores; only one of them comes from a product.
                    if _is_same_shape(_shape(inner), _shape(call)) and self.derives_from_product(
                        inner
                    ):
                        chain.biases.append(bias)
                        return inner
            case "where" if chain.scale == 1.0:
                return self.match_mask(call, chain)
        return None

    def match_mask(self, call: Call, chain: _ScoreChain) -> RelayExpr | None:
        """Record the mask where(seen, x, c) as the bias where(seen, 0, c), for c so low that added
        scores vanish.
        """
        condition, true_value, false_value = call.args
        dtype = _tensor_type(call).dtype
        zero = Constant(np.zeros((), dtype))
        for inner, constant, sides in (
            (true_value, false_value, (zero, false_value)),
            (false_value, true_value, (true_value, zero)),
        ):
            value = _scalar_value(constant)
            if (
                value is not None
                and value <= MAX_MASKED_SCORE
                and _is_same_shape(_shape(inner), _shape(call))
            ):
                chain.biases.append(op.where(condition, *sides))
                return inner
        return None

    def derives_from_product(self, expr: RelayExpr) -> bool:
        """Return whether an expression derives from a batch_matmul through matchable operators."""
        stack = [expr]
        for _ in range(MAX_MATCHED_OPERATORS):
            if not stack:
                return False
            expr_below = stack.pop()
            if _op_name(expr_below) == "nn.batch_matmul":
                return True
            if call := _match_call(expr_below, "reshape", "multiply", "divide", "add", "where"):
                stack.extend(call.args)
        return False

    # The operator.

    def match_attention(self, product: Call) -> RelayExpr | None:
        """Match the attention that ends in a product, and return the fused operator; None if there
        is none.
        """
        if getattr(product.attrs, "transpose_a", False) or _tensor_type(product).dtype != "float32":
            return None
        shares = self.match_probabilities(product)
        matched = None if shares is None else self.match_scores(shares.softmax.args[0])
        if shares is None or matched is None:
            return None
        first, chain = matched
        chain.empty_rows, chain.nan_as_zero = shares.empty_rows, shares.nan_as_zero
        query = _AttentionOperand(first.args[0], _operand_layout(first, "transpose_a"))
        key = _AttentionOperand(first.args[1], _operand_layout(first, "transpose_b", True))
        value = _AttentionOperand(product.args[1], _operand_layout(product, "transpose_b"))
        if not _is_same_shape(
            *([o.dims["n"] for o in pair] for pair in ((query, key), (key, value)))
        ):
            return None
        return self.build_attention(product, chain, query, key, value)

    def build_attention(self, product: Call, scores: _ScoreChain, query: _AttentionOperand,
                        key: _AttentionOperand,
                        value: _AttentionOperand) -> RelayExpr | None:  # fmt: skip
        """Build the attention operator, reshaped like the product."""
        operands = (query, key, value)
        total = query.dims["n"]
        for operand in operands:
            operand.absorb_transforms()
        batch, heads = scores.shape[:2] if scores.shape else self._batch_and_heads(operands, total)
        if not all(joined_operand.split_heads(batch, heads) for joined_operand in operands):
            return None
        # The kernel needs a static width, and has no factor for the values.
        if not isinstance(value.dims["d"], IntImm) or value.factor != 1.0:
            return None
        dims = (batch, heads, query.dims["s"], key.dims["s"])
        bias = _sum_biases(scores.biases, dims)
        if scores.biases and bias is None:
            return None
        layouts = (query.layout, key.layout, value.layout, "bhsd")
        scale = scores.scale * query.factor * key.factor
        # Factors of the operands and of the scores are one scale.
        call = op.nn.attention(
            query.expr, key.expr, value.expr, bias, scale,
            layouts=layouts, nan_as_zero=scores.nan_as_zero,
        )  # fmt: skip
        call = call.with_fields(span=product.span)
        self.uses[call] = 1
        result: RelayExpr = infer_new_types(call)
        if scores.empty_rows is not None:
            zero = Constant(np.zeros((), _tensor_type(product).dtype))
            result = infer_new_types(op.where(scores.empty_rows, zero, result))
        return op.reshape(result, _shape(product), allowzero=True)

    def _batch_and_heads(
        self, operands: Sequence[_AttentionOperand], total: PrimExpr
    ) -> tuple[PrimExpr, PrimExpr]:
        for operand in operands:
            if "n" not in operand.layout:
                return operand.dims["b"], operand.dims["h"]
        return total, const(1)

    def fold_transpose(self, call: Call) -> RelayExpr | None:
        """Fold a transpose of an attention's result into its output layout."""
        assert isinstance(call.attrs, TransposeAttrs)
        inner = call.args[0]
        while (shaped := _match_call(inner, "reshape")) and self.has_single_use(shaped):
            inner = shaped.args[0]
        if not (attention := _match_call(inner, "nn.attention")) or not self.has_single_use(
            attention
        ):
            return None
        assert isinstance(attention.attrs, attention_op.AttentionAttrs)
        layout, shape = attention.attrs.out_layout, _shape(attention)
        input_shape = _shape(call.args[0])
        letters = list(layout)
        if layout == "bhsd" and _is_head_merge(shape, input_shape):
            letters = ["bh", "s", "d"]
        elif not _is_same_shape(shape, input_shape):
            return None
        order = [letters[i] for i in normalize_transpose_axes(call.attrs, len(letters))]
        attrs = attention.attrs.with_fields(out_layout="".join(order))
        relaid = infer_new_types(attention.with_fields(attrs=attrs))
        return relaid if len(order) == 4 else op.reshape(relaid, _shape(call), allowzero=True)


def _operand_layout(product: Call, flag: str, flipped: bool = False) -> str:
    """Return the axis letters of a product's operand, by whether it is stored transposed."""
    is_transposed = bool(getattr(product.attrs, flag, flipped))
    return "nsd" if is_transposed == flipped else "nds"


def _sum_biases(biases: Sequence[RelayExpr], dims: TensorShape) -> RelayExpr | None:
    """Return the sum of all biases with four axes, or None if one does not broadcast to
    the scores.
    """
    total: RelayExpr | None = None
    for bias in biases:
        shape = list(_shape(infer_new_types(bias)))
        batch, heads = dims[:2]
        # A first axis of batch * heads is split; one of 1 broadcasts as it is.
        if len(shape) == 3 and not is_const(simplify(batch * heads), 1):
            is_joined = _is_same_shape(shape[:1], [simplify(batch * heads)])
            shape[:1] = [batch, heads] if is_joined else shape[:1]
        # Missing leading axes broadcast.
        shape = [const(1)] * (4 - len(shape)) + shape
        if not all(is_const(s, 1) or prove_equal(s, d) for s, d in zip(shape, dims, strict=True)):
            return None
        reshaped = op.reshape(bias, shape, allowzero=True) if len(_shape(bias)) < 4 else bias
        total = reshaped if total is None else op.add(total, reshaped)
    return None if total is None else infer_new_types(total)


def fuse_attention(root: RelayExpr) -> RelayExpr:
    """Return `root` with every attention pattern fused. Needs checked types."""
    return rewrite_graph(root, _AttentionFuser(root).rewrite)


@module_pass(name="FuseAttention", opt_level=2, required=(InferType(),))
def _fuse_attention(module: IRModule, context: PassContext) -> IRModule:
    if not is_rewrite_allowed("fuse attention", context):
        return module
    return map_functions(module, lift_body_rewrite(fuse_attention))


def FuseAttention() -> Pass:  # noqa: N802
    """Return a pass that fuses attention patterns into nn.attention."""
    return _fuse_attention
