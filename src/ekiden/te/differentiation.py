"""Gradients of tensor expressions by reverse-mode differentiation. TVM's `te.gradient`.

    Y[i] = sum(A[i, k] * X[k], k)   ->   dX[p] = sum(A[n, p] * dY[n], n)

A read of X at f(i, k) in the expression of Y gives dX[p] the sum of its adjoint over all (i, k)
with f(i, k) == p. That is solved for (i, k), so that the sum runs over what is free; where it
cannot be, it runs over all with the equation as a condition.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from ekiden.arith import Analyzer, solve_linear_equations
from ekiden.ir import dtype as dt
from ekiden.ir.intrinsic import call_intrin, if_then_else
from ekiden.ir.prim import (
    EQ,
    GE,
    GT,
    Add,
    Cast,
    Div,
    IntImm,
    Intrinsic,
    Max,
    Min,
    Mul,
    PrimExpr,
    Select,
    Sub,
    Var,
    cast,
    const,
    is_const,
    logical_and,
)
from ekiden.ir.prim_visitor import children, post_order, substitute
from ekiden.ir.range import Range
from ekiden.runtime.errors import DifferentiationError
from ekiden.te import reducer
from ekiden.te.inline import post_order_tensors
from ekiden.te.reducer import CommReducer, Reduce, ReduceAxis
from ekiden.te.tensor import ComputeOp, ProducerLoad, Tensor, compute
from ekiden.tir.stmt import IterVar

# Reverse mode: with g = dL/dy the adjoint of y = f(x1, x2, ...), that of xk gets g * df/dxk, and
# what is read in several places gets the sum. A rule may use y where that is cheaper (tanh, exp).
AdjointRule = Callable[[Sequence[PrimExpr], PrimExpr, PrimExpr], Sequence[PrimExpr | None]]
"""Function (arguments, value, adjoint of the value) -> adjoints of the arguments, None for zero."""


def _unary_adjoint(slope: Callable[[PrimExpr, PrimExpr], PrimExpr]) -> AdjointRule:
    """Return the rule of a unary function from its derivative at x, where its value is y."""
    return lambda args, y, g: [g * slope(args[0], y)]


def _zero_adjoint(args: Sequence[PrimExpr], y: PrimExpr, g: PrimExpr) -> Sequence[PrimExpr | None]:
    """Return no adjoints: the function is piecewise constant."""
    return [None] * len(args)


def _intrinsic_call(name: str, *args: PrimExpr) -> PrimExpr:
    return call_intrin(name, *args)


def _sign_of(x: PrimExpr) -> PrimExpr:
    return Select(GE(x, _zero_like(x)), const(1.0, x.dtype), const(-1.0, x.dtype))


def _pow_adjoint(args: Sequence[PrimExpr], y: PrimExpr, g: PrimExpr) -> Sequence[PrimExpr | None]:
    x, n = args
    return [g * n * _intrinsic_call("pow", x, n - 1.0), g * y * _intrinsic_call("log", x)]


# fmt: off
_INTRINSIC_ADJOINT_RULES: dict[str, AdjointRule] = {
    "exp":     _unary_adjoint(lambda x, y: y),
    "log":     _unary_adjoint(lambda x, y: 1.0 / x),
    "log1p":   _unary_adjoint(lambda x, y: 1.0 / (x + 1.0)),
    "log2":    _unary_adjoint(lambda x, y: 1.0 / (x * math.log(2))),
    "log10":   _unary_adjoint(lambda x, y: 1.0 / (x * math.log(10))),
    "exp2":    _unary_adjoint(lambda x, y: y * math.log(2)),
    "exp10":   _unary_adjoint(lambda x, y: y * math.log(10)),
    "sqrt":    _unary_adjoint(lambda x, y: 0.5 / y),
    "rsqrt":   _unary_adjoint(lambda x, y: y / x * -0.5),
    "tanh":    _unary_adjoint(lambda x, y: 1.0 - y * y),
    "sigmoid": _unary_adjoint(lambda x, y: y * (1.0 - y)),
    "erf":     _unary_adjoint(
                   lambda x, y: _intrinsic_call("exp", x * x * -1.0) * (2 / math.sqrt(math.pi))),
    "sin":     _unary_adjoint(lambda x, y: _intrinsic_call("cos", x)),
    "cos":     _unary_adjoint(lambda x, y: _intrinsic_call("sin", x) * -1.0),
    "tan":     _unary_adjoint(lambda x, y: 1.0 + y * y),
    "sinh":    _unary_adjoint(lambda x, y: _intrinsic_call("cosh", x)),
    "cosh":    _unary_adjoint(lambda x, y: _intrinsic_call("sinh", x)),
    "asin":    _unary_adjoint(lambda x, y: _intrinsic_call("rsqrt", 1.0 - x * x)),
    "acos":    _unary_adjoint(lambda x, y: _intrinsic_call("rsqrt", 1.0 - x * x) * -1.0),
    "atan":    _unary_adjoint(lambda x, y: 1.0 / (1.0 + x * x)),
    "asinh":   _unary_adjoint(lambda x, y: _intrinsic_call("rsqrt", x * x + 1.0)),
    "acosh":   _unary_adjoint(lambda x, y: _intrinsic_call("rsqrt", x * x - 1.0)),
    "atanh":   _unary_adjoint(lambda x, y: 1.0 / (1.0 - x * x)),
    "abs":     _unary_adjoint(lambda x, y: _sign_of(x)),
    "pow":     _pow_adjoint,
    "fma":     lambda a, y, g: [g * a[1], g * a[0], g],
    "if_then_else": lambda a, y, g: [None, if_then_else(a[0], g, _zero_like(g)),
                                     if_then_else(a[0], _zero_like(g), g)],
    **dict.fromkeys(("floor", "ceil", "round", "trunc", "nearbyint", "isnan", "isinf",
                     "isfinite"), _zero_adjoint),
}
_NODE_ADJOINT_RULES: dict[type[PrimExpr], AdjointRule] = {
    Add:    lambda a, y, g: [g, g],
    Sub:    lambda a, y, g: [g, g * -1.0],
    Mul:    lambda a, y, g: [g * a[1], g * a[0]],
    Div:    lambda a, y, g: [g / a[1], g * a[0] / (a[1] * a[1]) * -1.0],
    Max:    lambda a, y, g: [Select(GE(a[0], a[1]), g, _zero_like(g)),
                             Select(GE(a[0], a[1]), _zero_like(g), g)],
    Min:    lambda a, y, g: [Select(GT(a[0], a[1]), _zero_like(g), g),
                             Select(GT(a[0], a[1]), g, _zero_like(g))],
    Select: lambda a, y, g: [None, Select(a[0], g, _zero_like(g)), Select(a[0], _zero_like(g), g)],
    Cast:   lambda a, y, g: [cast(g, a[0].dtype)],
}
# fmt: on
"""Adjoint rules by node type; on a tie, min and max propagate to the first operand. Of abs at 0 the
slope is 1.
"""


def _zero_like(like: PrimExpr) -> PrimExpr:
    return const(0.0, like.dtype)


def compute_adjoints(body: PrimExpr, seed: PrimExpr) -> dict[ProducerLoad, PrimExpr]:
    """Return the adjoint of every tensor element that an expression reads, from the expression's.
    Raises DifferentiationError for an operation without a rule.
    """
    order = post_order(body)
    adjoint_of: dict[int, PrimExpr] = {id(body): seed}
    loads: dict[ProducerLoad, PrimExpr] = {}
    # Reverse post-order: all users of a node come before it, so its adjoint is complete when it is
    # propagated.
    for e in reversed(order):
        g = adjoint_of.get(id(e))
        if g is None:
            continue
        if isinstance(e, ProducerLoad):
            loads[e] = g
            continue
        inside = children(e)
        # Integers and booleans carry no derivative.
        if not inside or not dt.is_float(e.dtype):
            continue
        for operand, operand_adjoint in zip(inside, _adjoint_rule(e)(inside, e, g), strict=True):
            if operand_adjoint is not None and dt.is_float(operand.dtype):
                accumulated = adjoint_of.get(id(operand))
                adjoint_of[id(operand)] = (
                    operand_adjoint if accumulated is None else accumulated + operand_adjoint
                )
    return loads


def _adjoint_rule(e: PrimExpr) -> AdjointRule:
    """Return the adjoint rule of a node; raise for a node without a derivative."""
    rule = (
        _INTRINSIC_ADJOINT_RULES.get(e.op)
        if isinstance(e, Intrinsic)
        else _NODE_ADJOINT_RULES.get(type(e))
    )
    if rule is None:
        name = e.op if isinstance(e, Intrinsic) else type(e).__name__
        raise DifferentiationError(f"te.gradient: {name!r} has no rule")
    return rule


def gradient(
    output: Tensor, inputs: Tensor | Sequence[Tensor], head: Tensor | None = None
) -> list[Tensor]:
    """Return the gradients of a tensor with respect to tensors that it is computed from.

    Args:
        output: the tensor.
        inputs: one tensor, or several.
        head: adjoint of the output, of shape (..., *output.shape); a gradient then has the shape
            (..., *input.shape). Without it the results are Jacobians, of shape (*output.shape,
            *input.shape).

    Returns:
        A gradient for each input; 0 where the output does not depend on it.

    Raises:
        DifferentiationError: for inputs that are not floating point, a head of another shape, and
            operations without a rule.
    """
    input_list = [inputs] if isinstance(inputs, Tensor) else list(inputs)
    for input_tensor in input_list:
        if not dt.is_float(input_tensor.dtype):
            raise DifferentiationError(
                f"te.gradient by {input_tensor.name!r}: it is of {input_tensor.dtype}"
            )
    seed = _identity_tensor(output) if head is None else head
    lead = len(seed.shape) - len(output.shape)
    if lead < 0 or not all(map(_have_equal_extents, seed.shape[lead:], output.shape)):
        raise DifferentiationError(
            f"te.gradient of {output.name!r}: the shape of head must end in that of the output"
        )
    return _Adjoints(output, input_list, seed, seed.shape[:lead]).propagate()


def _have_equal_extents(a: PrimExpr, b: PrimExpr) -> bool:
    return Analyzer().can_prove_equal(a, b)


def _identity_tensor(output: Tensor) -> Tensor:
    # The adjoint of each element of the output by itself: dY[i]/dY[j] = 1 where i = j.
    """Return the identity of the output's shape squared: the Jacobian of the output with respect to
    itself.
    """
    rank = len(output.shape)

    def kronecker_delta(*indices: Var) -> PrimExpr:
        """Return 1 where the first half of the indices equals the second, else 0."""
        equal: PrimExpr = const(True)
        for a, b in zip(indices[:rank], indices[rank:], strict=True):
            equal = logical_and(equal, EQ(a, b))
        return Select(equal, const(1.0, output.dtype), const(0.0, output.dtype))

    return compute((*output.shape, *output.shape), kronecker_delta, name="identity")


class _Adjoints:
    """Adjoints of tensors, from the output backwards."""

    def __init__(
        self,
        output: Tensor,
        inputs: Sequence[Tensor],
        seed: Tensor,
        lead: tuple[PrimExpr, ...],
    ) -> None:
        self.output, self.inputs, self.lead = output, inputs, lead
        self.contributions: dict[Tensor, list[Tensor]] = {output: [seed]}
        self.topological_order = post_order_tensors([output])
        self.wanted = self._tensors_on_path()

    def _tensors_on_path(self) -> set[Tensor]:
        """Return the inputs, and what is computed from them."""
        dependent = set(self.inputs)
        for tensor in self.topological_order:
            if any(t in dependent for t in tensor.op.input_tensors):
                dependent.add(tensor)
        return dependent

    def propagate(self) -> list[Tensor]:
        """Return the adjoints of the inputs."""
        adjoint_of: dict[Tensor, Tensor] = {}
        # Readers before producers: all contributions to a tensor are there when it is reached.
        for tensor in reversed(self.topological_order):
            contributions = self.contributions.get(tensor)
            if tensor not in self.wanted or not contributions:
                continue
            adjoint_of[tensor] = self._sum_contributions(tensor, contributions)
            if tensor.op.input_tensors:
                self._pull_back(tensor, adjoint_of[tensor])
        return [adjoint_of.get(t) or self._zero_adjoint_tensor(t) for t in self.inputs]

    def _sum_contributions(self, tensor: Tensor, contributions: Sequence[Tensor]) -> Tensor:
        """Return a tensor's adjoint: the sum of the contributions of all its readers."""
        if len(contributions) == 1:
            return contributions[0]

        def sum_at(*indices: Var) -> PrimExpr:
            """Return the sum of all readers' contributions to the element."""
            total: PrimExpr = contributions[0][indices]
            for contribution in contributions[1:]:
                total = total + contribution[indices]
            return total

        return compute((*self.lead, *tensor.shape), sum_at, name=f"{tensor.name}.grad")

    def _zero_adjoint_tensor(self, tensor: Tensor) -> Tensor:
        """Return the adjoint of a tensor that the output does not depend on: zeros."""
        return compute(
            (*self.lead, *tensor.shape),
            lambda *_: const(0.0, tensor.dtype),
            name=f"{tensor.name}.grad",
        )

    def _pull_back(self, tensor: Tensor, adjoint: Tensor) -> None:
        """Add a tensor's contributions to the tensors that its expression reads."""
        op = tensor.op
        if not isinstance(op, ComputeOp):
            raise DifferentiationError(
                f"te.gradient through {tensor.name!r}: it is written as statements"
            )
        body = op.body[tensor.value_index]
        lead = tuple(Var(f"h{n}") for n in range(len(self.lead)))
        seed: PrimExpr = ProducerLoad(adjoint, (*lead, *(a.var for a in op.axis)), adjoint.dtype)
        seed = cast(seed, body.dtype)
        sums: tuple[ReduceAxis, ...] = ()
        if isinstance(body, Reduce):
            sums = body.axis
            seed, body = seed * _reduction_derivative(tensor, body), body.source
        for load, value in compute_adjoints(body, seed).items():
            if load.producer in self.wanted:
                contribution = self._contribution(op, sums, load, value, lead)
                self.contributions.setdefault(load.producer, []).append(contribution)

    # dX[p] = sum over all steps s with f(s) = p of g(s). `_inverse` solves f(s) = p for s in whole
    # numbers: s = V n + c, with n free; its relations say for which p there is a solution at all
    # (strides leave gaps). Where the system is not linear, or a free range is no constant, the sum
    # runs over all steps with f(s) = p as its condition: right, and slow.
    def _contribution(
        self,
        op: ComputeOp,
        sums: Sequence[ReduceAxis],
        load: ProducerLoad,
        value: PrimExpr,
        lead: Sequence[Var],
    ) -> Tensor:
        """Return, for each element, the sum of a read's adjoint over the iterations that
        read it.
        """
        target = load.producer
        points = tuple(Var(f"p{n}") for n in range(len(target.shape)))
        axes: list[IterVar | ReduceAxis] = [*op.axis, *sums]
        steps: dict[Var, PrimExpr] = {a.var: a.extent for a in axes}
        # Gather form: instead of scattering each read's adjoint, every element solves for the
        # iterations that read it, and no two threads write one element.
        conditions, values, free = _solve_reading_iterations(
            load.indices, points, target.shape, steps
        )
        where: PrimExpr = const(True)
        for condition in conditions:
            where = logical_and(where, condition)

        def sum_over_readers(*indices: Var) -> PrimExpr:
            """Return the sum over all iterations (h, p fixed, free variables running) that read
            element p; zero where a condition says that none does.
            """
            substitution: dict[Var, PrimExpr] = dict(zip((*lead, *points), indices, strict=True))
            sums_over = {
                n: _reduce_axis_from_zero(n.name, substitute(e, substitution))
                for n, (_, e) in free.items()
            }
            for n, (low, _) in free.items():
                substitution[n] = sums_over[n] + substitute(low, substitution)
            placed = {v: substitute(e, substitution) for v, e in values.items()}
            term = substitute(value, {**substitution, **placed})
            condition = substitute(substitute(where, placed), substitution)
            if sums_over:
                guard = None if is_const(condition, 1) else condition
                return reducer.sum(term, tuple(sums_over.values()), guard)
            return (
                term if is_const(condition, 1) else if_then_else(condition, term, _zero_like(term))
            )

        return compute((*self.lead, *target.shape), sum_over_readers, name=f"{target.name}.grad")


def _reduce_axis_from_zero(name: str, extent: PrimExpr) -> ReduceAxis:
    """Return a reduction axis from 0."""
    return ReduceAxis(name, "int64", extent)


FreeRanges = Mapping[Var, tuple[PrimExpr, PrimExpr]]


def _solve_reading_iterations(
    indices: Sequence[PrimExpr],
    points: Sequence[Var],
    shape: Sequence[PrimExpr],
    steps: Mapping[Var, PrimExpr],
) -> tuple[list[PrimExpr], dict[Var, PrimExpr], FreeRanges]:
    """Solve for the iterations that read a point; return conditions, iteration variables, and the
    free variables with first value and extent.
    """
    equations = [EQ(i, cast(p, i.dtype)) for i, p in zip(indices, points, strict=True)]
    ranges = {v: Range(e) for v, e in steps.items()}
    around = {p: Range(d) for p, d in zip(points, shape, strict=True)}
    solution = solve_linear_equations(equations, list(steps), {**ranges, **around})
    free: dict[Var, tuple[PrimExpr, PrimExpr]] = {}
    for n in solution.dst.variables:
        free_range = solution.dst.ranges.get(n)
        if free_range is None or not isinstance(free_range.extent, IntImm):
            plain = {Var(v.name): v for v in steps}
            values: dict[Var, PrimExpr] = {v: n for n, v in plain.items()}
            everywhere = [substitute(e, values) for e in equations]
            # No bounded solution: fall back to all iterations, with the equations as conditions.
            return everywhere, values, {n: (const(0), steps[v]) for n, v in plain.items()}
        free[n] = (free_range.min, free_range.extent)
    return list(solution.dst.relations), dict(solution.src_to_dst), free


# Every source equal to the maximum receives the whole adjoint, so ties accumulate
# to more than there is.
def _reduction_derivative(tensor: Tensor, body: Reduce) -> PrimExpr:
    """Return the derivative of a reduction with respect to one of its sources."""
    indices = tuple(a.var for a in tensor.op.axis)  # type: ignore[attr-defined]
    kind = body.kind or _builtin_reduction_kind(body.reducer)
    if kind == "sum":
        return const(1.0, body.dtype)
    if kind in ("max", "min"):
        # Every element that equals the extreme receives the gradient; ties are not split.
        equal = EQ(body.source, ProducerLoad(tensor, indices, tensor.dtype))
        return Select(equal, const(1.0, body.dtype), const(0.0, body.dtype))
    if kind == "prod":
        return _product_of_others(tensor, body, indices)
    raise DifferentiationError(
        f"te.gradient through {tensor.name!r}: its reduction is no sum, product, minimum or maximum"
    )


def _builtin_reduction_kind(custom_reducer: CommReducer) -> str:
    """Return the built-in reduction that a custom reducer is equivalent to, or ""."""
    if len(custom_reducer.lhs) != 1:
        return ""
    kinds: dict[type[PrimExpr], str] = {Add: "sum", Mul: "prod", Max: "max", Min: "min"}
    result = custom_reducer.result[0]
    kind = kinds.get(type(result), "")
    operands = children(result) if kind else ()
    return kind if set(operands) == {custom_reducer.lhs[0], custom_reducer.rhs[0]} else ""


def _product_of_others(tensor: Tensor, body: Reduce, at: Sequence[Var]) -> PrimExpr:
    """Return for each source the product of all others: a quotient would fail where one is 0."""
    spatial = [a.extent for a in tensor.op.axis]  # type: ignore[attr-defined]

    def product_without(*where: Var) -> PrimExpr:
        """Return the product over the reduction axes with 1 in place of the source at `where`."""
        fixed: dict[Var, PrimExpr] = dict(zip(at, where[: len(at)], strict=True))
        # Axes of its own: this product runs inside the reduction over the original ones.
        again = {k: _reduce_axis_from_zero(k.name, k.extent) for k in body.axis}
        is_own: PrimExpr = const(True)
        for k, own in zip(again.values(), where[len(at) :], strict=True):
            is_own = logical_and(is_own, EQ(k, own))
        for k, one_more in again.items():
            fixed[k] = one_more
        source = substitute(body.source, fixed)
        one = const(1.0, source.dtype)
        return reducer.prod(Select(is_own, one, source), tuple(again.values()))

    other_products = compute(
        (*spatial, *(k.extent for k in body.axis)), product_without, name="others"
    )
    return ProducerLoad(other_products, (*at, *body.axis), other_products.dtype)


__all__ = ["gradient"]
