"""General forms of size kernels: loop-free programs that store integers at constant positions and
fail where a condition does not hold (see lower.shape_function).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.backend.kernels.general import CHECK, MAP, GeneralFormBuilder, encode_text
from ekiden.backend.kernels.general_encoding import STAGE_LIMITS, CodeBuilder, NoGeneralFormError
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, Var
from ekiden.ir.prim_visitor import post_order, rewrite
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import AssertStmt, BufferStore, PrimFunc, SeqStmt, Stmt


def general_shape_form(func: PrimFunc, target: Target) -> bytes | str:
    """Return the general form of a size kernel, or the reason why it has none. Its arguments have
    the shapes that the kernel reads, whatever constants or repeated names they contain.
    """
    if target.bounds:
        return "bounds are checked"
    body = func.body.seq if isinstance(func.body, SeqStmt) else (func.body,)
    try:
        builder = _ShapeFormBuilder([p for p in func.params if isinstance(p, Buffer)])
        for statement in body:
            builder.add_statement(statement)
        builder.flush_stores()
        return builder.form.encode()
    except NoGeneralFormError as error:
        return str(error)


class _ShapeFormBuilder:
    """Builder of a general form that groups independent consecutive stores into one stage."""

    def __init__(self, params: Sequence[Buffer]) -> None:
        named_dims: set[Var] = set()
        self.tensors = {param: _buffer_tensor(param, named_dims) for param in params}
        *inputs, output = self.tensors.values()
        self.form = GeneralFormBuilder(inputs, [output])
        self.pending_stores: list[tuple[te.Tensor, int, PrimExpr]] = []
        """Pending stores: tensor, index and value."""
        self.tensor_exprs: dict[int, PrimExpr] = {}
        """Expressions over tensors by the identity of those over buffers, shared by all values."""

    def add_statement(self, statement: Stmt) -> None:
        """Add a store or a check. Raises NoGeneralFormError for any other statement."""
        match statement:
            case BufferStore(buffer=buffer, value=value, indices=(IntImm(value=index),)):
                written = {tensor for tensor, _, _ in self.pending_stores}
                read = {e.buffer for e in post_order(value) if isinstance(e, BufferLoad)}
                is_full = len(self.pending_stores) == STAGE_LIMITS["results"]
                if is_full or not written.isdisjoint(
                    self.tensors[buffer_read] for buffer_read in read
                ):
                    self.flush_stores()
                self.pending_stores.append(
                    (self.tensors[buffer], int(index), self._loads_to_tensors(value))
                )
            case AssertStmt():
                self.flush_stores()
                values = [statement.condition, *statement.values]
                code = self._encode_values(
                    [self._loads_to_tensors(shown_value) for shown_value in values]
                )
                texts = encode_text(statement.kind), encode_text(statement.format)
                stage = [CHECK, 0, 0, 0, len(values), *code, *texts[0], *texts[1]]
                self.form.stages.append(stage)
            case _:
                raise NoGeneralFormError(f"a kernel with {type(statement).__name__}")

    def flush_stores(self) -> None:
        """Emit a stage of the pending stores."""
        if not self.pending_stores:
            return
        sizes, buffers = self.form.sizes, self.form.buffers
        destination_words = [
            word
            for t, position, _ in self.pending_stores
            for word in (buffers[t], sizes.constant(position))
        ]
        code = self._encode_values([value for _, _, value in self.pending_stores])
        self.form.stages.append([MAP, 0, 0, 0, len(self.pending_stores), *destination_words, *code])
        self.pending_stores = []

    def _encode_values(self, values: Sequence[PrimExpr]) -> list[int]:
        return CodeBuilder([], self.form.sizes, self.form.buffers).encode(values)

    def _loads_to_tensors(self, value: PrimExpr) -> PrimExpr:
        """Return an expression with buffer loads replaced by tensor loads."""

        def replace_load(node: PrimExpr) -> PrimExpr:
            """Replace a buffer load."""
            if not isinstance(node, BufferLoad):
                return node
            return self.tensors[node.buffer][node.indices]

        return rewrite(value, replace_load, self.tensor_exprs)


def _buffer_tensor(buffer: Buffer, named_dims: set[Var]) -> te.Tensor:
    """Return the tensor of a buffer; a dimension that is not a new symbol gets a fresh one."""
    dims: list[Var] = []
    for dim in buffer.shape:
        is_named = isinstance(dim, Var) and dim not in named_dims
        dims.append(dim if isinstance(dim, Var) and is_named else SizeVar("any"))
        named_dims.add(dims[-1])
    return te.placeholder(dims, buffer.dtype, buffer.name)


__all__ = ["general_shape_form"]
