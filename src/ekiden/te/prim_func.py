"""Lower tensor expressions to a loop program; one block per computation, in order, nothing
fused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.prim import IntImm, PrimExpr, Var, const
from ekiden.ir.prim_visitor import rewrite
from ekiden.ir.prim_visitor import substitute as substitute_expr
from ekiden.te.inline import ProducerInliner, post_order_tensors
from ekiden.te.range_checks import RangeCheck, emit_violation_search, range_checks_of
from ekiden.te.reducer import Reduce
from ekiden.te.stmt_renaming import rename_blocks, replace_buffers
from ekiden.te.tensor import (
    BLOCK_ANNOTATIONS_ATTR,
    ComputeOp,
    ExternOp,
    PlaceholderOp,
    ProducerLoad,
    Tensor,
)
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.reduction import COMBINE_ANNOTATION
from ekiden.tir.stmt import (
    Allocate,
    Block,
    BlockRealize,
    BufferStore,
    For,
    ForKind,
    IfThenElse,
    IterKind,
    IterVar,
    LetStmt,
    PrimFunc,
    Stmt,
    seq,
)
from ekiden.tir.visitor import substitute


class TensorBufferMap:
    """A map from tensors to their buffers; outputs of a rebuilt operation may be set beforehand."""

    def __init__(self) -> None:
        self.buffers: dict[Tensor, Buffer] = {}
        self._names: dict[str, int] = {}
        self._block_names = NameUniquer()

    def declare(self, tensor: Tensor, scope: str = "global") -> Buffer:
        """Create a uniquely named buffer for a tensor."""
        count = self._names.get(tensor.name, 0)
        self._names[tensor.name] = count + 1
        name = f"{tensor.name}_{count}" if count else tensor.name
        buffer = self.buffers[tensor] = Buffer(name, tensor.whole_shape, tensor.dtype, scope)
        return buffer

    def block_name(self, hint: str) -> str:
        """Return a unique block name, by which schedules find blocks."""
        return self._block_names.fresh(hint)

    def replace_loads(self, expr: PrimExpr) -> PrimExpr:
        """Return the expression with tensor loads replaced by buffer loads."""
        return rewrite(expr, self._replace_load)

    def _replace_load(self, expr: PrimExpr) -> PrimExpr:
        if isinstance(expr, ProducerLoad):
            return BufferLoad(self.buffers[expr.producer], expr.indices, expr.dtype)
        if isinstance(expr, Reduce):
            raise ValueError(
                f"te.{expr.reducer.name}: a reduction is the whole of a computation; what is made"
                " of it is another te.compute"
            )
        return expr


def create_stage_nest(op: ComputeOp, outputs: Sequence[Tensor], buffers: TensorBufferMap) -> Stmt:
    """Return the loops and block of one computation (all its outputs)."""
    spatial = tuple(a.var for a in op.axis)
    targets = [buffers.buffers[t] for t in outputs]
    first = op.body[0]
    init: Stmt | None = None
    if isinstance(first, Reduce):
        old = [BufferLoad(t, spatial, t.dtype) for t in targets]
        terms = [buffers.replace_loads(s) for s in first.sources]
        # A reducer of the user's own is known by its terms alone, which are variables.
        names = [] if first.kind else [Var(f"{op.name}_term", s.dtype) for s in terms]
        new = first.reducer.combine(old, names or terms)
        starts = first.reducer.identity_element
        init = seq(*(BufferStore(t, e, spatial) for t, e in zip(targets, starts, strict=True)))
        update = emit_stores(targets, new, spatial)
        for name, term in reversed(list(zip(names, terms, strict=False))):
            update = LetStmt(name, term, update)
    else:
        update = seq(
            *(
                BufferStore(b, buffers.replace_loads(op.body[t.value_index]), spatial)
                for t, b in zip(outputs, targets, strict=True)
            )
        )
    reduced = [Var(r.name, r.dtype) for r in op.reduce_axis]
    domains = zip(reduced, op.reduce_axis, strict=True)
    iters = (*op.axis, *(IterVar(v, r.extent, IterKind.REDUCE) for v, r in domains))
    plain: dict[Var, PrimExpr] = dict(zip(op.reduce_axis, reduced, strict=True))
    # Schedules know the operators of the built-in reducers; of others the reducer gives its word.
    is_sum = isinstance(first, Reduce) and not first.kind
    declared = op.attrs.get(BLOCK_ANNOTATIONS_ATTR, {})
    assert isinstance(declared, Mapping)
    notes = {**declared, COMBINE_ANNOTATION: 1} if is_sum else dict(declared) or None
    block = Block(buffers.block_name(op.name), iters, substitute(update, plain), init, notes)
    loops = tuple(Var(i.var.name) for i in iters)
    nest: Stmt = BlockRealize(loops, const(True), block)
    # The extent of a reduction may depend on the element, as in triangular sums.
    around: dict[Var, PrimExpr] = {i.var: v for i, v in zip(iters, loops, strict=True)}
    # Innermost first: each loop wraps the nest built so far.
    for var, iter_var in zip(reversed(loops), reversed(iters), strict=True):
        extent = substitute_expr(iter_var.extent, around)
        nest = For(var, const(0), extent, ForKind.SERIAL, nest)
    return nest


def emit_stores(
    targets: Sequence[Buffer], values: Sequence[PrimExpr], indices: tuple[PrimExpr, ...]
) -> Stmt:
    """Emit a store of each value to its buffer; several values are all computed before the first
    store.
    """
    if len(targets) == 1:
        return BufferStore(targets[0], values[0], indices)
    names = [Var(f"{t.name}_next", t.dtype) for t in targets]
    body = seq(*(BufferStore(t, n, indices) for t, n in zip(targets, names, strict=True)))
    for name, value in reversed(list(zip(names, values, strict=True))):
        body = LetStmt(name, value, body)
    return body


def create_extern_stage(op: ExternOp, outputs: Sequence[Tensor], buffers: TensorBufferMap) -> Stmt:
    """Return the statements of an extern operation over the real buffers."""
    real: dict[Buffer, Buffer] = {
        declared: buffers.buffers[t]
        for declared, t in zip(op.input_buffers, op.inputs, strict=True)
    }
    for tensor in outputs:
        real[op.output_buffers[tensor.value_index]] = buffers.buffers[tensor]
    return rename_blocks(replace_buffers(op.body, real), buffers.block_name)


def wrap_in_allocations(body: Stmt, buffers: Sequence[Buffer]) -> Stmt:
    """Wrap the body in allocations."""
    for buffer in reversed(buffers):
        body = Allocate(buffer, body)
    return body


def group_by_operation(tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Group tensors by operation, each group at its first member, in the operation's
    output order.
    """
    groups: dict[object, list[Tensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.op, []).append(tensor)
    return [_add_unused_outputs(g) for g in groups.values()]


def _add_unused_outputs(group: list[Tensor]) -> list[Tensor]:
    """Add the outputs of externs and tuple reductions that nobody reads: they are written all the
    same.
    """
    op = group[0].op
    present = {t.value_index: t for t in group}
    if isinstance(op, ExternOp):
        return [
            present.get(n, Tensor(op, n, b.shape, b.dtype)) for n, b in enumerate(op.output_buffers)
        ]
    if isinstance(op, ComputeOp) and isinstance(op.body[0], Reduce):
        shape = group[0].shape
        return [present.get(n, Tensor(op, n, shape, e.dtype)) for n, e in enumerate(op.body)]
    return group


def create_prim_func_with_scalars(
    args: Sequence[Tensor | Var], build: Callable[[Sequence[Tensor]], PrimFunc]
) -> PrimFunc:
    """Create the program over arguments that include scalars, in order; `build` creates that of the
    tensors. A scalar that is also a dimension is checked against it at a call.
    """
    numbers = [a for a in args if isinstance(a, Var)]
    func = build([a for a in args if not isinstance(a, Var)])
    if not numbers:
        return func
    buffers = iter(func.params)
    params = tuple(a if isinstance(a, Var) else next(buffers) for a in args)
    return func.with_fields(params=params)


def create_prim_func(
    ops: Sequence[Tensor | Var] | Tensor, name: str = "main", extern_blocks: bool = False
) -> PrimFunc:
    """Return the program that computes the outputs among `ops` (inputs first, then outputs) from
    the inputs.

    Args:
        ops: tensors; variables among them become scalar parameters.
        name: the function's name.
        extern_blocks: make the statements of an extern operation a block, so that schedules know
            what they access.

    Returns:
        The program: one block per computation in dependency order; intermediates are allocated
        around all.

    Raises:
        ValueError: if an input is not among `ops`.
        TypeError: for another argument.
    """
    args = [ops] if isinstance(ops, Tensor) else list(ops)
    validate_arguments(args, f"create_prim_func {name!r}")
    return create_prim_func_with_scalars(
        args, lambda tensors: _prim_func_from_tensors(tensors, name, extern_blocks)
    )


def _prim_func_from_tensors(args: Sequence[Tensor], name: str, extern_blocks: bool) -> PrimFunc:
    """Create the program over tensor arguments: one block per computation, producers first."""
    outputs = [t for t in args if not isinstance(t.op, PlaceholderOp)]
    buffers = TensorBufferMap()
    params = tuple(buffers.declare(t) for t in args)
    stages: list[Stmt] = []
    intermediates: list[Buffer] = []
    for group in group_by_operation(post_order_tensors(outputs)):
        op = group[0].op
        if isinstance(op, PlaceholderOp):
            if group[0] not in buffers.buffers:
                raise ValueError(
                    f"create_prim_func {name!r}: input {op.name!r} is not among the arguments"
                )
            continue
        for tensor in group:
            if tensor not in buffers.buffers:
                intermediates.append(buffers.declare(tensor))
        # A check runs before the computation that reads by the checked index, so that an
        # out-of-range load never happens.
        stages.extend(
            _emit_range_check(check, buffers, group[0].shape) for check in range_checks_of(op)
        )
        if isinstance(op, ComputeOp):
            stages.append(create_stage_nest(op, group, buffers))
        elif isinstance(op, ExternOp):
            statements = create_extern_stage(op, group, buffers)
            extern_block = BlockRealize(
                (), const(True), Block(buffers.block_name(op.name), (), statements)
            )
            stages.append(extern_block if extern_blocks else statements)
    attrs = {"global_symbol": name, "num_outputs": len(outputs)}
    return PrimFunc(params, wrap_in_allocations(seq(*stages), intermediates), attrs)


def _emit_range_check(
    check: RangeCheck, buffers: TensorBufferMap, result: Sequence[PrimExpr]
) -> Stmt:
    """Emit the loops of a bounds check, skipped if the result is empty and nothing is read. The
    checked values are an input of the computation or an elementwise function of inputs.
    """
    computed = {t for t in post_order_tensors([check.values]) if t not in buffers.buffers}
    inliner = ProducerInliner(computed)

    def lower_value(value: PrimExpr) -> PrimExpr:
        return buffers.replace_loads(inliner.rewrite_expr(value))

    loops = emit_violation_search(
        check.map_bounds(lower_value), lambda at: lower_value(check.values[at])
    )
    for extent in result:
        if not (isinstance(extent, IntImm) and extent.value > 0):
            loops = IfThenElse(extent > 0, loops)
    return loops


def validate_arguments(args: Sequence[object], what: str) -> None:
    """Raise TypeError for an argument that is neither a tensor nor a variable, ValueError for a
    duplicate.
    """
    for argument in args:
        if not isinstance(argument, (Tensor, Var)):
            raise TypeError(
                f"{what}: expected tensors and variables, got {type(argument).__name__}"
            )
    if len(set(args)) != len(args):
        raise ValueError(f"{what}: a tensor or variable is among the arguments twice")
