"""Lazy initialisation of gradients: represent all-zero and all-one tensors by GradCell constructors
until needed.

    fn (%x) { add(multiply(%x, ones_like(%x)), zeros_like(%x)) }        computes nothing but %x

A tensor becomes a `GradCell` (library/gradient.rly): `Raw` of it, or `One` or `Zero` with how to
make it. Sums and products of two cells of one type look at which they are; other operators take the
tensors out. Parameters and results of global functions keep their types.

References, matches and constructors are refused: gradients have none.

    Zero + x = x,  Zero * x = Zero,  One * x = x          by matches at run time (gradient.rly)

It is TVM's pass, for programs whose gradients are evaluated as they stand; the compiler's pipeline
has rules for ones and zeros (SimplifyExpr) that need no run time, and does not run it.
"""

from __future__ import annotations

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import OPS, LinearForm, Op
from ekiden.ir.structural import structural_equal
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import FuncType, GlobalTypeVar, TensorType, TupleType, Type, TypeCall
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Function,
    If,
    Let,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.type_infer import infer_type
from ekiden.relay.visitor import post_order
from ekiden.runtime.errors import CompileError

GRAD_CELL_FUNCTIONS = {LinearForm.SHIFTS: "AddGradCell", LinearForm.SCALES: "MultiplyGradCell"}
"""Functions on GradCells by operator."""
CONSTANT_CELL_CONSTRUCTORS = {0: "Zero", 1: "One"}
"""GradCell constructors by the operator that fills with a constant."""


class _GradCellRewriter:
    """Rewriter of one function to GradCell values, defined in gradient.rly."""

    def __init__(self, module: IRModule) -> None:
        self.header, *constructors = module.get_type("GradCell")
        self.constructors = {c.name_hint: c for c in constructors}  # type: ignore[attr-defined]
        self.module = module
        self.rewritten: dict[RelayExpr, RelayExpr] = {}

    def lifted_type(self, kind: Type) -> Type:
        """Map Tensor to GradCell[Tensor], also within tuples and functions."""
        match kind:
            case TensorType():
                assert isinstance(self.header, GlobalTypeVar)
                return TypeCall(self.header, (kind,))
            case TupleType(fields=fields):
                return TupleType(tuple(map(self.lifted_type, fields)))
            case FuncType(arg_types=arguments, ret_type=ret):
                return FuncType(tuple(map(self.lifted_type, arguments)), self.lifted_type(ret))
            case _:
                self.raise_unsupported(f"a value of type {kind}")
                return kind

    @staticmethod
    def raise_unsupported(what: str) -> None:
        raise CompileError(f"LazyGradientInit: {what} cannot become a cell")

    def construct_cell(self, name: str, *args: RelayExpr) -> Call:
        """Return a call of a GradCell constructor (Zero, One or Raw)."""
        constructor = self.constructors[name]
        assert isinstance(constructor, Constructor)
        return Call(constructor, args)

    def wrap_in_cells(self, value: RelayExpr, kind: Type) -> RelayExpr:
        """Wrap the tensors of a value in Raw cells."""
        if isinstance(kind, TupleType):
            fields_ = (TupleGetItem(value, i) for i in range(len(kind.fields)))
            return Tuple(
                tuple(self.wrap_in_cells(p, k) for p, k in zip(fields_, kind.fields, strict=True))
            )
        if not isinstance(kind, TensorType):
            self.raise_unsupported(f"a value of type {kind}")
        return self.construct_cell("Raw", value)

    def unwrap_cells(self, value: RelayExpr, kind: Type) -> RelayExpr:
        """Unwrap the tensors of a value from cells; `kind` is its type without them."""
        if isinstance(kind, TupleType):
            fields_ = (TupleGetItem(value, i) for i in range(len(kind.fields)))
            return Tuple(
                tuple(self.unwrap_cells(p, k) for p, k in zip(fields_, kind.fields, strict=True))
            )
        if not isinstance(kind, TensorType):
            self.raise_unsupported(f"a value of type {kind}")
        return Call(self.module.get_global_var("FromGradCell"), (value,))

    def rewrite_operator(self, call: Call) -> RelayExpr:
        """Rewrite an operator call to work on cells."""
        assert isinstance(call.op, Op)
        row, kinds = OPS[call.op.name], [a.checked_type for a in call.args]
        # Broadcasts are excluded: Zero + x = x holds for equal shapes only.
        if (
            row.commutes
            and row.linear in GRAD_CELL_FUNCTIONS
            and structural_equal(kinds[0], kinds[1])
        ):
            params = Var("lhs", kinds[0]), Var("rhs", kinds[1])
            plain = Function(params, Call(call.op, params, call.attrs), kinds[0])
            cell_function = self.module.get_global_var(GRAD_CELL_FUNCTIONS[row.linear])
            return Call(cell_function, (plain, *(self.rewritten[a] for a in call.args)))
        arg_pairs = zip(call.args, kinds, strict=True)
        args = tuple(self.unwrap_cells(self.rewritten[a], k) for a, k in arg_pairs)
        result = Call(call.op, args, call.attrs, span=call.span)
        if row.fills is not None:
            return self.construct_cell(
                CONSTANT_CELL_CONSTRUCTORS[row.fills], Function((), result, call.checked_type)
            )
        return self.wrap_in_cells(result, call.checked_type)

    def rewrite_expr(self, expr: RelayExpr) -> RelayExpr:
        """Rewrite an expression whose children are rewritten."""
        new = self.rewritten
        match expr:
            case Var(name_hint=name):
                return Var(name, self.lifted_type(expr.checked_type))
            case Constant():
                return self.construct_cell("Raw", expr)
            case Op() | GlobalVar():
                return expr
            case Call(op=Op()):
                return self.rewrite_operator(expr)
            case Call(op=GlobalVar(), args=args):
                kinds = [a.checked_type for a in args]
                arg_pairs = zip(args, kinds, strict=True)
                plain = tuple(self.unwrap_cells(new[a], k) for a, k in arg_pairs)
                return self.wrap_in_cells(Call(expr.op, plain), expr.checked_type)
            case Call(op=op, args=args):
                return Call(new[op], tuple(new[a] for a in args))
            case Tuple(fields=fields):
                return Tuple(tuple(new[f] for f in fields))
            case TupleGetItem(tuple_value=value, index=index):
                return TupleGetItem(new[value], index)
            case Let(var=var, value=value, body=body):
                return Let(self.rewrite_var(var), new[value], new[body])
            case If(cond=cond, true_branch=yes, false_branch=no):
                return If(self.unwrap_cells(new[cond], cond.checked_type), new[yes], new[no])
            case Function(params=params, body=body):
                return Function(tuple(self.rewrite_var(p) for p in params), new[body])
        self.raise_unsupported(f"a {type(expr).__name__}")
        return expr

    def rewrite_var(self, old: Var) -> Var:
        """Return the rewritten variable of an old one."""
        new_var = self.rewritten[old]
        assert isinstance(new_var, Var)
        return new_var

    def rewrite_function(self, function: Function) -> Function:
        """Rewrite a global function whose signature is unchanged."""
        for param in function.params:
            self.rewritten[param] = self.wrap_in_cells(param, param.checked_type)
        for expr in post_order(function.body, into_functions=True):
            if expr not in self.rewritten:
                self.rewritten[expr] = self.rewrite_expr(expr)
        result = function.body.checked_type
        return function.with_fields(
            body=self.unwrap_cells(self.rewritten[function.body], result), ret_type=result
        )


def LazyGradientInit() -> Pass:  # noqa: N802
    """Return a pass that initialises gradients lazily (TVM's LazyGradientInit)."""

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Import gradient.rly, rewrite the functions of a module over cells, and infer types."""
        relay_functions = {n: f for n, f in module.functions.items() if isinstance(f, Function)}
        # Functions of external compilers keep tensors.
        relay_functions = {n: f for n, f in relay_functions.items() if f.attr("Compiler") is None}
        result = module.with_functions(dict(module.functions))
        if "FromGradCell" not in result:
            result.import_from_std("gradient.rly")
        for name, function in relay_functions.items():
            result[name] = _GradCellRewriter(result).rewrite_function(function)
        return infer_type(result)

    return Pass("LazyGradientInit", transform, 2, (InferType(),))
