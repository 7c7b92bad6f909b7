"""General forms of the kernels that compute sizes: loop programs without loops, which store
integers at known places and fail where a condition does not hold (see lower.shape_function).
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import te
from ekiden.backend.kernels.general import CHECK, MAP, Form, text_words
from ekiden.backend.kernels.general_code import MOST, CodeBuilder, NoGeneralFormError
from ekiden.ir.prim import IntImm, PrimExpr, SizeVar, Var
from ekiden.ir.prim_visitor import post_order, rewrite
from ekiden.target import Target
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.tir.stmt import AssertStmt, BufferStore, PrimFunc, SeqStmt, Stmt


def general_shapes(func: PrimFunc, target: Target) -> bytes | str:
    """The general form of a kernel that computes sizes, or why it has none. Its arguments have the
    shapes that the kernel reads, whatever numbers or repeated names stand there.
    """
    if target.bounds:
        return "bounds are checked"
    body = func.body.seq if isinstance(func.body, SeqStmt) else (func.body,)
    try:
        made = _Shapes([p for p in func.params if isinstance(p, Buffer)])
        for statement in body:
            made.add(statement)
        made.flush()
        return made.form.words()
    except NoGeneralFormError as error:
        return str(error)


class _Shapes:
    """The form of statements, as it grows: stores that follow each other and read nothing that one
    of them writes are one stage.
    """

    def __init__(self, params: Sequence[Buffer]) -> None:
        known: set[Var] = set()
        self.tensors = {each: _tensor(each, known) for each in params}
        *inputs, output = self.tensors.values()
        self.form = Form(inputs, [output])
        self.waiting: list[tuple[te.Tensor, int, PrimExpr]] = []
        """Tensor, place and value of stores."""
        self.changed: dict[int, PrimExpr] = {}
        """What values share, over tensors; by identity, as the program keeps the values."""

    def add(self, statement: Stmt) -> None:
        """Add a statement. Raises NoGeneralFormError for what is neither a store nor a check."""
        match statement:
            case BufferStore(buffer=buffer, value=value, indices=(IntImm(value=place),)):
                written = {tensor for tensor, _, _ in self.waiting}
                read = {e.buffer for e in post_order(value) if isinstance(e, BufferLoad)}
                is_full = len(self.waiting) == MOST["results"]
                if is_full or not written.isdisjoint(self.tensors[each] for each in read):
                    self.flush()
                self.waiting.append((self.tensors[buffer], int(place), self._over_tensors(value)))
            case AssertStmt():
                self.flush()
                values = [statement.condition, *statement.values]
                code = self._code([self._over_tensors(each) for each in values])
                texts = text_words(statement.kind), text_words(statement.format)
                stage = [CHECK, 0, 0, 0, len(values), *code, *texts[0], *texts[1]]
                self.form.stages.append(stage)
            case _:
                raise NoGeneralFormError(f"a kernel with {type(statement).__name__}")

    def flush(self) -> None:
        """Make a stage of the stores that wait."""
        if not self.waiting:
            return
        sizes, buffers = self.form.sizes, self.form.buffers
        places = [word for t, at, _ in self.waiting for word in (buffers[t], sizes.number(at))]
        code = self._code([value for _, _, value in self.waiting])
        self.form.stages.append([MAP, 0, 0, 0, len(self.waiting), *places, *code])
        self.waiting = []

    def _code(self, values: Sequence[PrimExpr]) -> list[int]:
        return CodeBuilder([], self.form.sizes, self.form.buffers).words(values)

    def _over_tensors(self, value: PrimExpr) -> PrimExpr:
        """An expression that reads the tensors in the places of buffers."""

        def change(each: PrimExpr) -> PrimExpr:
            """An element of the tensor, for a load."""
            if not isinstance(each, BufferLoad):
                return each
            return self.tensors[each.buffer][each.indices]

        return rewrite(value, change, self.changed)


def _tensor(buffer: Buffer, known: set[Var]) -> te.Tensor:
    """The tensor of a buffer, whose dimensions are the buffer's where these are new names: nothing
    is said of the others.
    """
    dims: list[Var] = []
    for dim in buffer.shape:
        is_named = isinstance(dim, Var) and dim not in known
        dims.append(dim if isinstance(dim, Var) and is_named else SizeVar("any"))
        known.add(dims[-1])
    return te.placeholder(dims, buffer.dtype, buffer.name)


__all__ = ["general_shapes"]
