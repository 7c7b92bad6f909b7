"""Construction of an imported module's function `main`: its parameters and results."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.frontend.common.scope import Scope
from ekiden.frontend.common.value import UniqueNames, Value, constant_value, input_dim_name
from ekiden.ir.op import Array
from ekiden.ir.prim import PrimExpr, const
from ekiden.ir.span import Span
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Constant, Expr, Function, Tuple, Var


def build_initial_state(arrays: Sequence[Array]) -> Function:
    """Build the function that returns the constant initial state: one value, or a tuple."""
    fields = tuple(Constant(array) for array in arrays)
    body: Expr = fields[0] if len(fields) == 1 else Tuple(fields)
    kinds = tuple(constant_value(a).type for a in arrays)
    return Function((), body, kinds[0] if len(kinds) == 1 else TupleType(kinds))


class MainBuilder:
    """Builder of the function `main`. input_names: the model's input names, in order."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope
        self.input_names: list[str] = []
        self._names = UniqueNames()

    def add_tensor_input(self, name: str, kind: TensorType) -> Value:
        """Add a tensor input; return its value."""
        var = self._input_var(name, kind)
        self.scope.add_param(var, kind, name)
        return Value(kind, expr=var)

    def input_dim(self, name: str, axis: int, stated: int | str | None) -> PrimExpr:
        """Return a dimension of an input: a number, or a symbol where it is dynamic (None, -1)."""
        if isinstance(stated, int) and stated >= 0:
            return const(stated)
        return self.scope.dim_symbol(
            input_dim_name(name, axis, stated if isinstance(stated, str) else "")
        )

    def add_object_input(self, name: str, kind: Type) -> Var:
        """Add a non-tensor input, such as a list; return its variable."""
        var = self._input_var(name, kind)
        self.scope.params.append(var)
        self.scope.param_names[var] = name
        return var

    def _input_var(self, name: str, kind: Type) -> Var:
        """Return a parameter of unique name whose span names the input."""
        self.input_names.append(name)
        var = Var(self._names.unique_name(name, "input"), kind, span=Span(f"input '{name}'"))
        var.set_checked_type(kind)
        return var

    def build_main(self, outputs: Sequence[Value]) -> Function:
        """Build `main` with these outputs; several become a tuple."""
        fields = [self.scope.as_block_result(v) for v in outputs]
        types = tuple(self.scope.type_of(f) for f in fields)
        body = fields[0] if len(fields) == 1 else Tuple(tuple(fields), span=Span("outputs"))
        kind = types[0] if len(types) == 1 else TupleType(types)
        return Function(tuple(self.scope.params), self.scope.close_block(body), kind)
