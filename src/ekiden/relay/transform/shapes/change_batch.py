"""Change the batch size of a network's inputs.

ChangeBatch({x: 0}, 8)
def @main(%x: Tensor[(1, 3), float32]) -> Tensor[(1, 3), float32] { nn.relu(%x) }
->  def @main(%x: Tensor[(8, 3), float32]) -> Tensor[(8, 3), float32] { nn.relu(%x) }

Types are inferred anew; what says the batch besides, as the shape of a reshape does, stays, and is
then an error of types. A dimension with a name is any batch at run time.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.module import IRModule
from ekiden.ir.prim import const
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function, Var
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.scope_tree import map_functions
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import CompileError


def ChangeBatch(data: Mapping[Var, int], batch_size: int = 16) -> Pass:  # noqa: N802
    """Return a pass that changes the batch size of inputs (TVM's ChangeBatch).

    Args:
        data: The parameters, with the axis of each that is the batch.
        batch_size: The new batch.

    Raises:
        CompileError: No function has a parameter, or it has no such axis.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Return the module with the new batch size.

        Raises:
            CompileError: No function has one of the parameters.
        """
        # A copy for each run: a pass may run more than once.
        pending = dict(data)

        def change_params(function: Function) -> Function:
            """Replace the parameters by ones of the new batch size; the result type is
            re-inferred.
            """
            moved = {
                v: _with_batch_size(v, pending.pop(v), batch_size)
                for v in function.params
                if v in pending
            }
            if not moved:
                return function
            params = tuple(moved.get(v, v) for v in function.params)
            return function.with_fields(
                params=params, body=bind(function.body, moved), ret_type=None
            )

        changed = map_functions(module, change_params)
        # Parameters were removed as functions with them were met.
        if pending:
            raise CompileError(f"ChangeBatch: no function has the parameter {next(iter(pending))}")
        return InferType()(changed)

    return Pass("ChangeBatch", transform, 0, (InferType(),))


def _with_batch_size(var: Var, axis: int, batch: int) -> Var:
    kind = var.type_annotation
    # Only declared shapes change; without an annotation inference decides.
    if not isinstance(kind, TensorType) or not 0 <= axis < len(kind.shape):
        actual = "no annotation" if kind is None else str(kind)
        raise CompileError(
            f"ChangeBatch: %{var.name_hint}: a tensor with axis {axis}, got {actual}"
        )
    shape = (*kind.shape[:axis], const(batch, "int64"), *kind.shape[axis + 1 :])
    return Var(var.name_hint, TensorType(shape, kind.dtype), var.span)
