"""Lowering of fused functions to loop programs: operators become tensor expressions, which a kernel
family schedules.

    fn (%p0, %p1, Primitive=1) { nn.relu(add(%p0, %p1)) }
->  t0[i, j] = p0[i, j] + p1[j];  t1[i, j] = max(t0[i, j], 0)         te_graph
->  for i in parallel: for j by vectors: t1[i, j] = max(p0[i, j] + p1[j], 0)        kernels

Before: a primitive function with checked types, in canonical names of symbols. After: a PrimFunc
whose parameters are the inputs, then the outputs, and whose first statements check what a run must
hold to: indices in range, sizes that fit. The same function and target always give the same
program, which the cache of kernels counts on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import field
from typing import TYPE_CHECKING

from ekiden import kernels, te
from ekiden._lazy import LazyModule
from ekiden.arith import prove_equal
from ekiden.ir.dtype import is_float
from ekiden.ir.expr import RelayExpr
from ekiden.ir.expr_text import format_prim_expr
from ekiden.ir.op import Op
from ekiden.ir.pass_context import notify_product
from ekiden.ir.prim import BinaryExpr, PrimExpr, Select, const
from ekiden.ir.prim_visitor import free_vars, has_nonconstant_divisor, rewrite
from ekiden.ir.type import TensorType
from ekiden.kernels.decision import Overrides as FamilyOverrides
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.op.prim_func_call import CallLoweredAttrs
from ekiden.relay.op.strategy import implementation_of
from ekiden.relay.transform.language.scope_tree import evaluation_order
from ekiden.relay.transform.memory.manifest_alloc import flatten_tensor_types
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.range_checks import check_site
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, PrimFunc, seq

if TYPE_CHECKING:
    from ekiden.tir.schedule import schedule
else:
    schedule = LazyModule("ekiden.tir.schedule.schedule")

Tensors = list[te.Tensor]


def _scalar_constant(constant: Constant) -> te.Tensor:
    """Return a one-element constant as a computation that inlines to an immediate."""
    dtype = str(constant.data.dtype)
    if constant.data.size != 1:
        raise CompileError(
            f"lower: a constant of a kernel has one element, got one of {constant.data.shape}: make"
            " it a parameter"
        )
    value = constant.data.item()
    return te.compute(
        (),
        lambda: const(float(value) if is_float(dtype) else int(value), dtype),
        name="constant",
        tag="injective",
    )


@contextmanager
def _naming_operator(operator: str) -> Iterator[None]:
    """Prefix errors with the operator whose user computation is invalid."""
    try:
        yield
    except CompileError as error:
        raise CompileError(f"{operator}: {error}") from error


def _lower_call(
    call: Call, tensors_of: dict[RelayExpr, Tensors], site: int | None, target: Target | None
) -> Tensors:
    assert isinstance(call.op, Op)
    inputs = [t for a in call.args for t in tensors_of[a]]
    implementation = implementation_of(call.op.name, call.attrs, inputs, call.checked_type, target)
    if implementation is not None:
        with check_site(site), _naming_operator(call.op.name):
            return implementation.compute(call.attrs, inputs, call.checked_type)
    lowering = call.op.definition.lower
    if lowering is None:
        raise CompileError(f"{call.op.name}: the operator has no kernel")
    with check_site(site):
        results = list(lowering(call.attrs, inputs, call.checked_type))
    return [t for t in results if isinstance(t, te.Tensor)]


def index_check_names(function: Function) -> tuple[str, ...]:
    """Return the display name of each operator that may reject an index, in the order of their call
    sites; "" for one without a source node.
    """
    return tuple(
        call.span.naming(call.op.name) if call.span else ""  # type: ignore[attr-defined]
        for call in _calls_with_index_checks(function)
    )


def _calls_with_index_checks(function: Function) -> list[Call]:
    exprs = evaluation_order(function.body)
    calls = [e for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]
    return [c for c in calls if isinstance(c.op, Op) and c.op.definition.may_fail]


def te_graph(function: Function, target: Target | None = None) -> tuple[Tensors, Tensors]:
    """Return the inputs and outputs of a primitive function as tensor expressions for a target."""
    tensors_of: dict[RelayExpr, Tensors] = {}
    inputs: Tensors = []
    for param in function.params:
        kinds = flatten_tensor_types(param.checked_type)
        placeholders = [
            te.placeholder(k.shape, k.dtype, f"p{len(inputs) + i}") for i, k in enumerate(kinds)
        ]
        tensors_of[param] = placeholders
        inputs.extend(placeholders)
    sites = {call: n for n, call in enumerate(_calls_with_index_checks(function))}
    for expr in evaluation_order(function.body):
        match expr:
            case Call():
                tensors_of[expr] = _lower_call(expr, tensors_of, sites.get(expr), target)
            case Constant():
                tensors_of[expr] = [_scalar_constant(expr)]
            case Tuple(fields=fields):
                tensors_of[expr] = [t for f in fields for t in tensors_of[f]]
            case TupleGetItem(tuple_value=value, index=index):
                tensors_of[expr] = [tensors_of[value][index]]
    results = tensors_of[function.body]
    if function.ret_type is None:
        return inputs, results
    return inputs, list(map(_reshape_to_type, results, flatten_tensor_types(function.ret_type)))


def _reshape_to_type(result: te.Tensor, kind: TensorType) -> te.Tensor:
    """Reshape a result to the shape that its function declares. A part of a larger tensor is not
    reshaped: a computation of the whole would overwrite what other kernels have written next to the
    part.
    """
    if result.is_part:
        return result
    pairs = zip(result.shape, kind.shape, strict=True)
    if all(a is b or prove_equal(a, b) for a, b in pairs):
        return result
    return te.compute(kind.shape, lambda *indices: result[indices], name="result", tag="injective")


def describe_kernel_name(function: Function, name: str) -> str:
    """Return a kernel's display name and its model node."""
    return f"the kernel {name} of {function.span}" if function.span else f"the kernel {name}"


Overrides = Mapping[str, FamilyOverrides]
"""Fixed decisions of kernels, by family, kernel or node."""
NO_KERNEL_OVERRIDES: Overrides = {}
MAX_DISPLAY_NAME_CHARS = 80


def display_name(function: Function) -> str:
    """Return the kernel's display name, which lists its operators."""
    ops = [
        e.attrs.func.name if isinstance(e.attrs, CallLoweredAttrs) else e.op.name
        for e in evaluation_order(function.body)
        if isinstance(e, Call) and isinstance(e.op, Op)
    ]
    return "fused_" + "_".join(n.replace(".", "_") for n in ops)[:MAX_DISPLAY_NAME_CHARS]


def decision_names(function: Function) -> tuple[str, ...]:
    """Return the names by which decisions refer to a kernel: its operators and its model node."""
    return (display_name(function), *((str(function.span),) if function.span else ()))


def choose_primitive(
    function: Function, target: Target, overrides: Overrides = NO_KERNEL_OVERRIDES
) -> kernels.KernelSelection:
    """Select the kernel family of a primitive function and its decision. Raises CompileError for an
    invalid override.
    """
    _, outputs = te_graph(function, target)
    return kernels.select_kernel(outputs, target, overrides, decision_names(function))


def _user_schedule(
    function: Function, inputs: Tensors, outputs: Tensors, name: str, target: Target
) -> kernels.ScheduledKernel | None:
    """Return the loop program scheduled by a user's schedule of one of the operators, or None."""
    for call in reversed(operator_calls(function)):
        kinds = [t for a in call.args for t in flatten_tensor_types(a.checked_type)]
        tensors = [te.placeholder(k.shape, k.dtype, f"x{i}") for i, k in enumerate(kinds)]
        assert isinstance(call.op, Op)
        implementation = implementation_of(
            call.op.name, call.attrs, tensors, call.checked_type, target
        )
        user_program = (
            implementation.schedule(call.attrs, outputs, target)
            if implementation is not None
            else None
        )
        if user_program is not None:
            func = _check_user_program(user_program, call.op.name, len(inputs), len(outputs), name)
            trace = user_program.trace if isinstance(user_program, schedule.Schedule) else None
            why = f"{call.op.name} has a schedule of its own"
            return kernels.ScheduledKernel(func, trace=trace, unscheduled_reason=why)
    return None


def _check_user_program(
    user_program: object, op_name: str, inputs: int, outputs: int, name: str
) -> PrimFunc:
    """Convert the program of a user's schedule to a kernel. Raises CompileError for an
    invalid one.
    """
    func = (
        user_program if isinstance(user_program, PrimFunc) else getattr(user_program, "func", None)
    )
    if not isinstance(func, PrimFunc):
        raise CompileError(
            f"{op_name}: its schedule gave {user_program!r}, expected a tir.Schedule"
        )
    if len(func.params) != inputs + outputs:
        raise CompileError(
            f"{op_name}: its schedule has {len(func.params)} parameters, expected {inputs} inputs"
            f" and {outputs} results of the kernel"
        )
    attrs = {**(func.attrs or {}), "global_symbol": name, "num_outputs": outputs}
    return func.with_fields(attrs=attrs)


def operator_calls(function: Function) -> list[Call]:
    """Return the operator calls of a primitive function in evaluation order."""
    exprs = evaluation_order(function.body)
    return [e for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]


def lower_primitive(
    function: Function, name: str, target: Target, overrides: Overrides = NO_KERNEL_OVERRIDES
) -> PrimFunc:
    """Return the loop program of a primitive function; see `schedule_primitive`."""
    return schedule_primitive(function, name, target, overrides).func


def schedule_primitive(
    function: Function, name: str, target: Target, overrides: Overrides = NO_KERNEL_OVERRIDES
) -> kernels.ScheduledKernel:
    """Return the scheduled loop program of a canonical primitive function, outputs after inputs,
    and its trace.

    Args:
        function: the function.
        name: the kernel's name.
        target: the target.
        overrides: schedule overrides, by family or by one of the kernel's names.

    Returns:
        The program and its trace.

    Raises:
        CompileError: naming the operators of the function and their source.
    """
    try:
        inputs, outputs = te_graph(function, target)
        what = f"{describe_kernel_name(function, name)}, before any schedule"
        notify_product(
            "te.tir", what, lambda: str(kernels.create_inlined_program(inputs, outputs, name))
        )
        user_kernel = _user_schedule(function, inputs, outputs, name, target)
        if user_kernel is not None:
            notify_product(
                "schedule.txt",
                user_kernel.unscheduled_reason,
                lambda: kernels.schedule_text(user_kernel),
            )
            return user_kernel
        return kernels.schedule_kernel(
            inputs, outputs, target, name, overrides, decision_names(function)
        )
    except Exception as error:
        error.add_note(f"while lowering {describe_kernel_name(function, name)}")
        raise


MAX_SHOWN_SYMBOLS = 4
"""Maximum number of values in a constraint's message."""
Constraint = tuple[PrimExpr, str]
"""Condition on symbols that every run must meet, and the model node that requires it."""


@dataclass(frozen=True, slots=True)
class RunCheck:
    """Condition that a run must meet, the error message otherwise, and the named integers that the
    message shows.
    """

    condition: PrimExpr
    message: str
    shown: Mapping[str, PrimExpr] = field(default_factory=dict)

    @staticmethod
    def from_constraint(constraint: Constraint) -> RunCheck:
        """Return the check of a constraint; its message shows the values of its symbols."""
        condition, where = constraint
        shown = {v.name: v for v in free_vars(condition)[:MAX_SHOWN_SYMBOLS]}
        return RunCheck(condition, f"run: {where} needs {format_prim_expr(condition)}", shown)

    def with_mapped_exprs(self, change: Callable[[PrimExpr], PrimExpr]) -> RunCheck:
        """Return the check with its expressions mapped."""
        shown = {name: change(value) for name, value in self.shown.items()}
        return RunCheck(change(self.condition), self.message, shown)

    def to_assert_stmt(self) -> AssertStmt:
        """Return the statement that fails a kernel."""
        if not self.shown:
            return AssertStmt(self.condition, self.message, "InputError")
        shown = ", ".join(f"{_escape_format(name)} is {{}}" for name in self.shown)
        values = (*map(_guard_divisors, self.shown.values()),)
        message = f"{_escape_format(self.message)}; {shown}"
        return AssertStmt(self.condition, message, "InputError", values)


def _escape_format(text: str) -> str:
    """Escape text for a format string."""
    return text.replace("{", "{{").replace("}", "}}")


def shape_function(
    params: Sequence[Buffer],
    exprs: Sequence[PrimExpr],
    checks: Sequence[RunCheck],
    name: str,
    result: Buffer | None = None,
    first: int = 0,
) -> PrimFunc:
    """Return a kernel that verifies checks and writes the values of `exprs` (int64) to `result`.

    Args:
        params: buffers whose shapes and elements the expressions may use.
        exprs: the values.
        checks: conditions; the first that fails ends the run with its message.
        name: the kernel's name.
        result: the output buffer; a new one by default.
        first: number of values written before the checks, so that checks and later values may read
            them.

    Returns:
        The kernel.
    """
    dims = result or Buffer("dims", (const(len(exprs)),), "int64")
    asserts = [check.to_assert_stmt() for check in checks]
    rewritten: dict[int, PrimExpr] = {}
    stores = [
        BufferStore(dims, _guard_divisors(e, rewritten), (const(i),)) for i, e in enumerate(exprs)
    ]
    body = seq(*stores[:first], *asserts, *stores[first:])
    return PrimFunc((*params, dims), body, {"global_symbol": name, "num_outputs": 1})


def _guard_divisors(expr: PrimExpr, rewritten: dict[int, PrimExpr] | None = None) -> PrimExpr:
    """Replace divisors that may be 0 by 1. A later check rejects such sizes, but the division
    itself would raise SIGFPE first. `rewritten` memoises shared expressions, as in `rewrite`.
    """

    def guard_divisor(node: PrimExpr) -> PrimExpr:
        """Replace a divisor that may be 0."""
        if isinstance(node, BinaryExpr) and has_nonconstant_divisor(node):
            return type(node)(
                node.a, Select(node.b.equal(0), const(1), node.b, node.dtype), node.dtype
            )
        return node

    return rewrite(expr, guard_divisor, rewritten)


__all__ = [
    "RunCheck",
    "choose_primitive",
    "decision_names",
    "describe_kernel_name",
    "display_name",
    "lower_primitive",
    "schedule_primitive",
    "shape_function",
    "te_graph",
]
