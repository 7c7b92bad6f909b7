"""From a fused function to a loop program: operators become tensor expressions, a schedule rule
makes the loops.

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
from ekiden.ir.op import Op
from ekiden.ir.pass_context import show_product
from ekiden.ir.prim import BinaryExpr, PrimExpr, Select, const
from ekiden.ir.prim_visitor import divides_by_unknown, free_vars, rewrite
from ekiden.ir.text import prim_text
from ekiden.ir.type import TensorType
from ekiden.kernels.decision import Fixed
from ekiden.relay.expr import Call, Constant, Function, Tuple, TupleGetItem
from ekiden.relay.op.lowered import CallLoweredAttrs
from ekiden.relay.op.strategy import implementation_of
from ekiden.relay.transform.language.scopes import evaluation_order
from ekiden.relay.transform.memory.manifest_alloc import tensor_types
from ekiden.runtime.errors import CompileError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.te.range_check import check_site
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, PrimFunc, seq

if TYPE_CHECKING:
    from ekiden.tir.schedule import schedule
else:
    schedule = LazyModule("ekiden.tir.schedule.schedule")

Tensors = list[te.Tensor]


def _scalar(constant: Constant) -> te.Tensor:
    """A constant of one element as a computation, which inlines to an immediate."""
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
def _naming(operator: str) -> Iterator[None]:
    """Name the operator whose own computation is refused."""
    try:
        yield
    except CompileError as error:
        raise CompileError(f"{operator}: {error}") from error


def _lower_call(
    call: Call, known: dict[RelayExpr, Tensors], site: int | None, target: Target | None
) -> Tensors:
    assert isinstance(call.op, Op)
    inputs = [t for a in call.args for t in known[a]]
    own = implementation_of(call.op.name, call.attrs, inputs, call.checked_type, target)
    if own is not None:
        with check_site(site), _naming(call.op.name):
            return own.compute(call.attrs, inputs, call.checked_type)
    lowering = call.op.definition.lower
    if lowering is None:
        raise CompileError(f"{call.op.name}: the operator has no kernel")
    with check_site(site):
        made = list(lowering(call.attrs, inputs, call.checked_type))
    return [t for t in made if isinstance(t, te.Tensor)]


def check_names(function: Function) -> tuple[str, ...]:
    """What each operator of a primitive function is called that may refuse an index, in the order
    of their sites; empty for one that the program has no name for.
    """
    return tuple(c.span.naming(c.op.name) if c.span else "" for c in _refusing(function))  # type: ignore[attr-defined]


def _refusing(function: Function) -> list[Call]:
    exprs = evaluation_order(function.body)
    calls = [e for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]
    return [c for c in calls if isinstance(c.op, Op) and c.op.definition.refuses]


def te_graph(function: Function, target: Target | None = None) -> tuple[Tensors, Tensors]:
    """(inputs, outputs) of a primitive function as tensor expressions, for a target."""
    known: dict[RelayExpr, Tensors] = {}
    inputs: Tensors = []
    for param in function.params:
        kinds = tensor_types(param.checked_type)
        made = [
            te.placeholder(k.shape, k.dtype, f"p{len(inputs) + i}") for i, k in enumerate(kinds)
        ]
        known[param] = made
        inputs.extend(made)
    sites = {call: n for n, call in enumerate(_refusing(function))}
    for expr in evaluation_order(function.body):
        match expr:
            case Call():
                known[expr] = _lower_call(expr, known, sites.get(expr), target)
            case Constant():
                known[expr] = [_scalar(expr)]
            case Tuple(fields=fields):
                known[expr] = [t for f in fields for t in known[f]]
            case TupleGetItem(tuple_value=value, index=index):
                known[expr] = [known[value][index]]
    results = known[function.body]
    if function.ret_type is None:
        return inputs, results
    return inputs, list(map(_shaped, results, tensor_types(function.ret_type)))


def _shaped(result: te.Tensor, kind: TensorType) -> te.Tensor:
    """A result under the shape that its function says, where that is written in another way. A part
    of a larger tensor stays as it is: its operator says that tensor's shape, and a computation of
    all of it would write what other kernels have written beside the part."""
    if result.is_part:
        return result
    pairs = zip(result.shape, kind.shape, strict=True)
    if all(a is b or prove_equal(a, b) for a, b in pairs):
        return result
    return te.compute(kind.shape, lambda *at: result[at], name="result", tag="injective")


def described(function: Function, name: str) -> str:
    """The name of a kernel and the model node it comes from."""
    return f"the kernel {name} of {function.span}" if function.span else f"the kernel {name}"


Given = Mapping[str, Fixed]
"""What is fixed about kernels, by family, kernel or node."""
NOTHING: Given = {}
MAX_NAME = 80


def display_name(function: Function) -> str:
    """What a kernel is called after: its operators."""
    ops = [
        e.attrs.func.name if isinstance(e.attrs, CallLoweredAttrs) else e.op.name
        for e in evaluation_order(function.body)
        if isinstance(e, Call) and isinstance(e.op, Op)
    ]
    return "fused_" + "_".join(n.replace(".", "_") for n in ops)[:MAX_NAME]


def names_of(function: Function) -> tuple[str, ...]:
    """What a kernel goes by where decisions are given: its operators, the node it comes from."""
    return (display_name(function), *((str(function.span),) if function.span else ()))


def choose_primitive(function: Function, target: Target, given: Given = NOTHING) -> kernels.Chosen:
    """The family of a primitive function's kernel, and the decision. Raises CompileError for a
    decision that cannot be."""
    _, outputs = te_graph(function, target)
    return kernels.choose(outputs, target, given, names_of(function))


def _own_schedule(
    function: Function, inputs: Tensors, outputs: Tensors, name: str, target: Target
) -> kernels.Scheduled | None:
    """The program that a user's schedule of one of the operators gives; None if there is none."""
    for call in reversed(operator_calls(function)):
        kinds = [t for a in call.args for t in tensor_types(a.checked_type)]
        tensors = [te.placeholder(k.shape, k.dtype, f"x{i}") for i, k in enumerate(kinds)]
        assert isinstance(call.op, Op)
        own = implementation_of(call.op.name, call.attrs, tensors, call.checked_type, target)
        made = own.schedule(call.attrs, outputs, target) if own is not None else None
        if made is not None:
            func = _checked_program(made, call.op.name, len(inputs), len(outputs), name)
            trace = made.trace if isinstance(made, schedule.Schedule) else None
            why = f"{call.op.name} has a schedule of its own"
            return kernels.Scheduled(func, trace=trace, why=why)
    return None


def _checked_program(made: object, op_name: str, inputs: int, outputs: int, name: str) -> PrimFunc:
    """The program of a user's schedule, as a kernel. Raises CompileError for anything else."""
    func = made if isinstance(made, PrimFunc) else getattr(made, "func", None)
    if not isinstance(func, PrimFunc):
        raise CompileError(f"{op_name}: its schedule gave {made!r}, expected a tir.Schedule")
    if len(func.params) != inputs + outputs:
        raise CompileError(
            f"{op_name}: its schedule has {len(func.params)} parameters, expected {inputs} inputs"
            f" and {outputs} results of the kernel"
        )
    attrs = {**(func.attrs or {}), "global_symbol": name, "num_outputs": outputs}
    return func.with_fields(attrs=attrs)


def operator_calls(function: Function) -> list[Call]:
    """The calls of operators in a primitive function, in the order of evaluation."""
    exprs = evaluation_order(function.body)
    return [e for e in exprs if isinstance(e, Call) and isinstance(e.op, Op)]


def lower_primitive(
    function: Function, name: str, target: Target, given: Given = NOTHING
) -> PrimFunc:
    """The loop program of a primitive function: see `schedule_primitive`."""
    return schedule_primitive(function, name, target, given).func


def schedule_primitive(
    function: Function, name: str, target: Target, given: Given = NOTHING
) -> kernels.Scheduled:
    """The scheduled loop program of a primitive function (canonical form), outputs after inputs,
    and its trace. `given` holds what is fixed about it, by family or by one of its names.

    Raises CompileError naming the operators of the function and where they come from.
    """
    try:
        inputs, outputs = te_graph(function, target)
        what = f"{described(function, name)}, before any schedule"
        show_product("te.tir", what, lambda: str(kernels.program_of(inputs, outputs, name)))
        own = _own_schedule(function, inputs, outputs, name, target)
        if own is not None:
            show_product("schedule.txt", own.why, lambda: kernels.schedule_text(own))
            return own
        return kernels.scheduled(inputs, outputs, target, name, given, names_of(function))
    except Exception as error:
        error.add_note(f"while lowering {described(function, name)}")
        raise


SHOWN = 4
"""Most values that the message of a constraint shows."""
Constraint = tuple[PrimExpr, str]
"""A condition on symbols that every run must meet, and what needs it: a node of the model."""


@dataclass(frozen=True, slots=True)
class Check:
    """A condition that a run must meet, what it says otherwise, and integers that it then shows, by
    name."""

    condition: PrimExpr
    message: str
    shown: Mapping[str, PrimExpr] = field(default_factory=dict)

    @staticmethod
    def of(constraint: Constraint) -> Check:
        """That of a constraint; it shows the values of its symbols."""
        condition, where = constraint
        shown = {v.name: v for v in free_vars(condition)[:SHOWN]}
        return Check(condition, f"run: {where} needs {prim_text(condition)}", shown)

    def map(self, change: Callable[[PrimExpr], PrimExpr]) -> Check:
        """The same about other expressions."""
        shown = {name: change(value) for name, value in self.shown.items()}
        return Check(change(self.condition), self.message, shown)

    def stmt(self) -> AssertStmt:
        """What fails a kernel."""
        if not self.shown:
            return AssertStmt(self.condition, self.message, "InputError")
        shown = ", ".join(f"{_literal(name)} is {{}}" for name in self.shown)
        values = (*map(_total, self.shown.values()),)
        message = f"{_literal(self.message)}; {shown}"
        return AssertStmt(self.condition, message, "InputError", values)


def _literal(text: str) -> str:
    """Text as part of a format."""
    return text.replace("{", "{{").replace("}", "}}")


def shape_function(
    params: Sequence[Buffer],
    exprs: Sequence[PrimExpr],
    checks: Sequence[Check],
    name: str,
    result: Buffer | None = None,
    first: int = 0,
) -> PrimFunc:
    """A kernel that fails with the message of a check that does not hold, and writes the values of
    `exprs` (int64) to `result`.

    All may use the shapes and elements of params. The first `first` values are written before the
    checks, so that they and the rest may read them.
    """
    dims = result or Buffer("dims", (const(len(exprs)),), "int64")
    asserts = [check.stmt() for check in checks]
    made: dict[int, PrimExpr] = {}
    stores = [BufferStore(dims, _total(e, made), (const(i),)) for i, e in enumerate(exprs)]
    body = seq(*stores[:first], *asserts, *stores[first:])
    return PrimFunc((*params, dims), body, {"global_symbol": name, "num_outputs": 1})


def _total(expr: PrimExpr, made: dict[int, PrimExpr] | None = None) -> PrimExpr:
    """An expression that has a value even for sizes that do not fit, which a later check refuses:
    a division by zero would end the process. `made` keeps what expressions share, as in `rewrite`.
    """

    def guard(each: PrimExpr) -> PrimExpr:
        """A quotient or remainder whose divisor may be 0 has 1 in its place then."""
        if isinstance(each, BinaryExpr) and divides_by_unknown(each):
            return type(each)(
                each.a, Select(each.b.equal(0), const(1), each.b, each.dtype), each.dtype
            )
        return each

    return rewrite(expr, guard, made)


__all__ = [
    "Check",
    "choose_primitive",
    "described",
    "display_name",
    "lower_primitive",
    "names_of",
    "schedule_primitive",
    "shape_function",
    "te_graph",
]
