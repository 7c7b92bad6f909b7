"""Fusion of scores, softmax and the product with the values into one operator, with the
transpositions of all four tensors.

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
from ekiden.relay.dataflow_pattern.matcher import users_below
from ekiden.relay.expr import Call, Constant
from ekiden.relay.op.transform import TransposeAttrs, transposed_axes
from ekiden.relay.transform.graph.calls import typed
from ekiden.relay.transform.graph.float_rewrites import allows
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scopes import map_functions, on_body, rewrite_graph
from ekiden.runtime.lazy_dataclass import dataclass

if TYPE_CHECKING:
    import ekiden.relay.op.nn.dot_product_attention as attention_op
else:
    attention_op = LazyModule("ekiden.relay.op.nn.dot_product_attention")

MAX_MASKED_SCORE = -1e9
"""A score up to this is as good as none: what is added to it is rounded away, or it is -inf."""
MAX_STEPS = 12
"""Operators between the two products."""

Shape = tuple[PrimExpr, ...]


def _name(expr: RelayExpr) -> str:
    return expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else ""


def _call(expr: RelayExpr, *names: str) -> Call | None:
    return expr if isinstance(expr, Call) and _name(expr) in names else None


def _kind(expr: RelayExpr) -> TensorType:
    kind = expr.checked_type
    assert isinstance(kind, TensorType)
    return kind


def _shape(expr: RelayExpr) -> Shape:
    return _kind(expr).shape


def _same(a: Sequence[PrimExpr], b: Sequence[PrimExpr]) -> bool:
    return len(a) == len(b) and all(map(prove_equal, a, b))


def _number(expr: RelayExpr) -> float | None:
    """Return the one element of a constant."""
    if isinstance(expr, Constant) and expr.data.size == 1 and expr.data.dtype.kind == "f":
        return float(expr.data.reshape(()))
    return None


def _factor(call: Call) -> tuple[RelayExpr, float] | None:
    """(x, c) of x * c, c * x and x / c."""
    lhs, rhs = call.args
    by = _number(rhs)
    if _name(call) == "divide":
        return None if not by else (lhs, 1 / by)
    if by is not None:
        return lhs, by
    by = _number(lhs)
    return None if by is None else (rhs, by)


@dataclass(slots=True)
class _Operand:
    """A tensor of the attention, with a letter for each axis: n for batch and head together."""

    expr: RelayExpr
    layout: str
    factor: float = 1.0

    @property
    def dims(self) -> dict[str, PrimExpr]:
        """Return the dimensions by letter."""
        return dict(zip(self.layout, _shape(self.expr), strict=True))

    def peel(self) -> None:
        """Look through factors, transpositions, and the reshape that joins batch and head."""
        while call := _call(self.expr, "transpose", "reshape", "multiply", "divide"):
            name, source = _name(call), call.args[0]
            if name == "transpose":
                assert isinstance(call.attrs, TransposeAttrs)
                axes = transposed_axes(call.attrs, len(self.layout))
                self.layout = "".join(self.layout[axes.index(i)] for i in range(len(axes)))
            elif name == "reshape":
                shape = _shape(source)
                if self.layout[0] != "n" or not _joins_heads(shape, _shape(call)):
                    return
                self.layout = "bh" + self.layout[1:]
            elif (factored := _factor(call)) is not None and _same(
                _shape(factored[0]), _shape(call)
            ):
                source = factored[0]
                self.factor *= factored[1]
            else:
                return
            self.expr = source

    def split(self, batch: PrimExpr, heads: PrimExpr) -> bool:
        """Make it one of four axes; whether batch and heads are those."""
        if "n" in self.layout:
            shape = list(_shape(self.expr))
            at = self.layout.index("n")
            self.expr = typed(op.reshape(self.expr, [*shape[:at], batch, heads, *shape[at + 1 :]],
                                         allowzero=True))  # fmt: skip
            self.layout = self.layout.replace("n", "bh")
        return _same([self.dims["b"], self.dims["h"]], [batch, heads])


def _is_per_row(condition: RelayExpr, scores: RelayExpr) -> bool:
    """Return whether a condition is one of rows, and broadcasts to scores of any width."""
    shape = _shape(condition)
    rows = _shape(scores)[-len(shape) : -1]
    fits = all(is_const(c, 1) or prove_equal(c, r) for c, r in zip(shape, rows, strict=False))
    return 0 < len(shape) <= 4 and is_const(shape[-1], 1) and fits


def _joins_heads(four: Shape, three: Shape) -> bool:
    """Return whether [b, h, x, y] became [b * h, x, y]."""
    return len(four) == 4 and len(three) == 3 and _same(four[2:], three[1:])


@dataclass(slots=True)
class _Scores:
    """Chain of operators between the first product and the softmax."""

    scale: float = 1.0
    biases: list[RelayExpr] = field(default_factory=list)
    shape: Shape = ()
    """Of four axes, if there was such a one."""
    empty: RelayExpr | None = None
    """Rows whose result is zero."""
    nan_as_zero: bool = False
    """Whether shares that are NaN count as 0."""


@dataclass(frozen=True, slots=True)
class _Probabilities:
    """Left side of the second product: a softmax, and where zeros replace it."""

    softmax: Call
    empty: RelayExpr | None = None
    nan_as_zero: bool = False


class _Fuser:
    """Fuser of one function."""

    def __init__(self, root: RelayExpr) -> None:
        self.users = users_below(root)
        self.uses: dict[RelayExpr, int] = {}

    def rewrite(self, old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Rewrite an expression whose operands are rewritten."""
        fused: RelayExpr | None = None
        if product := _call(new, "nn.batch_matmul"):
            fused = self.attention(product)
        elif transpose := _call(new, "transpose"):
            fused = self.turned(transpose)
        result = new if fused is None else typed(fused)
        self.uses[result] = len(self.users.get(old, ()))
        return result

    def is_own(self, expr: RelayExpr) -> bool:
        """Return whether one expression alone uses it."""
        return self.uses.get(expr) == 1

    # The chain from the second product to the first.

    def shares(self, product: Call) -> _Probabilities | None:
        """Match the softmax over the last axis that is a product's left side.

        A choice may put zeros in its place: in some rows, or for NaN.
        """
        lhs = product.args[0]
        rank = len(_shape(lhs))
        if (flat := _call(lhs, "reshape")) and _joins_heads(_shape(flat.args[0]), _shape(flat)):
            if not self.is_own(flat):
                return None
            lhs, rank = flat.args[0], 4
        empty: RelayExpr | None = None
        uses, is_nan = 1, False
        if (choice := _call(lhs, "where")) and self.is_own(choice):
            empty, instead, lhs = choice.args
            test = _call(empty, "isnan")
            # The softmax is used twice then: by the test and by the choice.
            if is_nan := test is not None and test.args[0] is lhs and self.is_own(test):
                empty, uses = None, 2
            elif rank != 4 or not _is_per_row(empty, lhs):
                return None
            if _number(instead) != 0.0:
                return None
        softmax = _call(lhs, "nn.softmax")
        if softmax is None or self.uses.get(softmax) != uses:
            return None
        if getattr(softmax.attrs, "axis", -1) not in (-1, rank - 1):
            return None
        return _Probabilities(softmax, empty, is_nan)

    def scores(self, expr: RelayExpr) -> tuple[Call, _Scores] | None:
        """Match the first product and what is applied to it."""
        chain = _Scores()
        for _ in range(MAX_STEPS):
            # Scores with another user must be stored anyway, so fusing would compute them twice.
            if not self.is_own(expr) or not isinstance(expr, Call):
                return None
            if len(_shape(expr)) == 4:
                chain.shape = _shape(expr)
            if _name(expr) == "nn.batch_matmul":
                return expr, chain
            inner = self.step(expr, chain)
            if inner is None:
                return None
            expr = inner
        return None

    def step(self, call: Call, chain: _Scores) -> RelayExpr | None:
        """Record one operator, and return the scores before it; None if it is none of
        those known.
        """
        match _name(call):
            case "reshape":
                shapes = _shape(call), _shape(call.args[0])
                fits = _joins_heads(*shapes) or _joins_heads(*shapes[::-1])
                return call.args[0] if fits else None
            case "multiply" | "divide":
                factored = _factor(call)
                if factored is None:
                    return None
                chain.scale *= factored[1]
                return factored[0]
            case "add" if chain.scale == 1.0:
                for inner, bias in (call.args, call.args[::-1]):
                    # Either operand may be the scores; only one of them comes from a product.
                    if _same(_shape(inner), _shape(call)) and self.leads_to_product(inner):
                        chain.biases.append(bias)
                        return inner
            case "where" if chain.scale == 1.0:
                return self.choice(call, chain)
        return None

    def choice(self, call: Call, chain: _Scores) -> RelayExpr | None:
        """Record where(seen, x, c) as x + where(seen, 0, c), if c hides whatever is added to it."""
        condition, yes, no = call.args
        dtype = _kind(call).dtype
        zero = Constant(np.zeros((), dtype))
        for inner, constant, sides in ((yes, no, (zero, no)), (no, yes, (yes, zero))):
            value = _number(constant)
            if (
                value is not None
                and value <= MAX_MASKED_SCORE
                and _same(_shape(inner), _shape(call))
            ):
                chain.biases.append(op.where(condition, *sides))
                return inner
        return None

    def leads_to_product(self, expr: RelayExpr) -> bool:
        """Return whether there is a product behind operators that can be matched."""
        stack = [expr]
        for _ in range(MAX_STEPS):
            if not stack:
                return False
            expr_below = stack.pop()
            if _name(expr_below) == "nn.batch_matmul":
                return True
            if call := _call(expr_below, "reshape", "multiply", "divide", "add", "where"):
                stack.extend(call.args)
        return False

    # The operator.

    def attention(self, product: Call) -> RelayExpr | None:
        """Return the attention that ends in a product."""
        if getattr(product.attrs, "transpose_a", False) or _kind(product).dtype != "float32":
            return None
        shares = self.shares(product)
        matched = None if shares is None else self.scores(shares.softmax.args[0])
        if shares is None or matched is None:
            return None
        first, chain = matched
        chain.empty, chain.nan_as_zero = shares.empty, shares.nan_as_zero
        query = _Operand(first.args[0], _layout(first, "transpose_a"))
        key = _Operand(first.args[1], _layout(first, "transpose_b", True))
        value = _Operand(product.args[1], _layout(product, "transpose_b"))
        if not _same(*([o.dims["n"] for o in pair] for pair in ((query, key), (key, value)))):
            return None
        return self.made(product, chain, query, key, value)

    def made(self, product: Call, scores: _Scores, query: _Operand, key: _Operand,
             value: _Operand) -> RelayExpr | None:  # fmt: skip
        """Return the attention operator in the shape of the product."""
        operands = (query, key, value)
        total = query.dims["n"]
        for operand in operands:
            operand.peel()
        batch, heads = scores.shape[:2] if scores.shape else self._heads(operands, total)
        if not all(joined_operand.split(batch, heads) for joined_operand in operands):
            return None
        # The kernel needs a static width, and has no factor for the values.
        if not isinstance(value.dims["d"], IntImm) or value.factor != 1.0:
            return None
        dims = (batch, heads, query.dims["s"], key.dims["s"])
        bias = _bias(scores.biases, dims)
        if scores.biases and bias is None:
            return None
        layouts = (query.layout, key.layout, value.layout, "bhsd")
        scale = scores.scale * query.factor * key.factor
        call = op.nn.attention(
            query.expr, key.expr, value.expr, bias, scale,
            layouts=layouts, nan_as_zero=scores.nan_as_zero,
        )  # fmt: skip
        call = call.with_fields(span=product.span)
        self.uses[call] = 1
        result: RelayExpr = typed(call)
        if scores.empty is not None:
            zero = Constant(np.zeros((), _kind(product).dtype))
            result = typed(op.where(scores.empty, zero, result))
        return op.reshape(result, _shape(product), allowzero=True)

    def _heads(self, operands: Sequence[_Operand], total: PrimExpr) -> tuple[PrimExpr, PrimExpr]:
        for operand in operands:
            if "n" not in operand.layout:
                return operand.dims["b"], operand.dims["h"]
        return total, const(1)

    def turned(self, call: Call) -> RelayExpr | None:
        """Return transpose(attention) as an attention that writes in that order."""
        assert isinstance(call.attrs, TransposeAttrs)
        inner = call.args[0]
        while (shaped := _call(inner, "reshape")) and self.is_own(shaped):
            inner = shaped.args[0]
        if not (attention := _call(inner, "nn.attention")) or not self.is_own(attention):
            return None
        assert isinstance(attention.attrs, attention_op.AttentionAttrs)
        layout, shape = attention.attrs.out_layout, _shape(attention)
        input_shape = _shape(call.args[0])
        letters = list(layout)
        if layout == "bhsd" and _joins_heads(shape, input_shape):
            letters = ["bh", "s", "d"]
        elif not _same(shape, input_shape):
            return None
        order = [letters[i] for i in transposed_axes(call.attrs, len(letters))]
        attrs = attention.attrs.with_fields(out_layout="".join(order))
        relaid = typed(attention.with_fields(attrs=attrs))
        return relaid if len(order) == 4 else op.reshape(relaid, _shape(call), allowzero=True)


def _layout(product: Call, flag: str, flipped: bool = False) -> str:
    """Return the letters of an operand: its rows are queries or keys unless it is stored
    transposed.
    """
    is_transposed = bool(getattr(product.attrs, flag, flipped))
    return "nsd" if is_transposed == flipped else "nds"


def _bias(biases: Sequence[RelayExpr], dims: Shape) -> RelayExpr | None:
    """Return the sum of all biases, of four axes; None if one does not broadcast to the scores."""
    total: RelayExpr | None = None
    for bias in biases:
        shape = list(_shape(typed(bias)))
        batch, heads = dims[:2]
        # A first axis of batch * heads is split; one of 1 broadcasts as it is.
        if len(shape) == 3 and not is_const(simplify(batch * heads), 1):
            is_joined = _same(shape[:1], [simplify(batch * heads)])
            shape[:1] = [batch, heads] if is_joined else shape[:1]
        shape = [const(1)] * (4 - len(shape)) + shape
        if not all(is_const(s, 1) or prove_equal(s, d) for s, d in zip(shape, dims, strict=True)):
            return None
        reshaped = op.reshape(bias, shape, allowzero=True) if len(_shape(bias)) < 4 else bias
        total = reshaped if total is None else op.add(total, reshaped)
    return None if total is None else typed(total)


def fuse_attention(root: RelayExpr) -> RelayExpr:
    """Return `root` with every attention as one operator. Needs checked types."""
    return rewrite_graph(root, _Fuser(root).rewrite)


@module_pass(name="FuseAttention", opt_level=2, required=(InferType(),))
def _fuse_attention(module: IRModule, context: PassContext) -> IRModule:
    if not allows("fuse attention", context):
        return module
    return map_functions(module, on_body(fuse_attention))


def FuseAttention() -> Pass:  # noqa: N802
    """Return the pass described at the top of this file."""
    return _fuse_attention
