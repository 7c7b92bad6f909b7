"""Functions of external compilers: outlining into the module, marking as extern, inlining back.

%0 = fn(%y, Compiler="c", global_symbol="f") {..}; %0(%x)   ->   @f(%x)      Outline...
def @f(%y, Compiler="c", ..) {..}               ->   def @f(%y, Extern=1) {..}   Mark...
@f(%x)                                          ->   the body of @f, with %x     Inline...
fn(%y: Tensor[(?)], Compiler="c") {..}, (n)     ->   fn(%y: Tensor[(n)], ..)     specialize
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ekiden.ir.expr import BaseFunc, GlobalVar, RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.transform import Pass, PassContext
from ekiden.ir.type import Type
from ekiden.relay.expr import Call, Expr, Function, Let, Var
from ekiden.relay.transform.language.inline import inline, inline_application
from ekiden.relay.transform.language.scope_tree import rewrite_graph
from ekiden.relay.type_infer import infer_expr_type
from ekiden.relay.visitor import ExprMutator, bound_vars, free_vars, post_order


def _is_compiler_function(function: BaseFunc | RelayExpr, compiler: str) -> bool:
    """Return whether a function belongs to an external compiler: the named one, or any if the name
    is empty.
    """
    if not isinstance(function, Function):
        return False
    owner = function.attr("Compiler")
    return owner is not None and (not compiler or owner == compiler)


class _FunctionOutliner:
    """Rewriter that outlines the functions of a compiler from expressions."""

    def __init__(self, compiler: str) -> None:
        self.compiler = compiler
        self.outlined_functions: dict[GlobalVar, Function] = {}

    def run(self, root: Expr) -> Expr:
        """Rewrite `root` with a GlobalVar in place of each outlined function."""
        # A function may be bound to a name and called through it.
        lets = [e for e in post_order(root) if isinstance(e, Let) and self._is_outlined(e.value)]
        bound = {let.var: let.value for let in lets}

        def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
            """Replace outlined functions and their variables by global variables, and drop their
            lets.
            """
            if isinstance(old, Let) and old.var in bound:
                assert isinstance(new, Let)
                return new.body
            if isinstance(old, Var) and old in bound:
                return self._outlined_global(bound[old])
            if isinstance(old, Call) and self._is_outlined(old.op):  # a callee is no operand
                assert isinstance(new, Call)
                return new.with_fields(op=self._outlined_global(old.op))
            return self._outlined_global(old) if self._is_outlined(old) else new

        return rewrite_graph(root, rewrite)

    def _is_outlined(self, expr: RelayExpr) -> bool:
        if not isinstance(expr, Function) or expr.attr("global_symbol") is None:
            return False
        # A closure cannot become global: its captured variables exist only where it is defined.
        return _is_compiler_function(expr, self.compiler) and not free_vars(expr)

    def _outlined_global(self, function: RelayExpr) -> GlobalVar:
        assert isinstance(function, Function)
        name = str(function.attr("global_symbol"))
        # Functions of the same symbol are one function.
        var = next((v for v in self.outlined_functions if v.name_hint == name), None) or GlobalVar(
            name
        )
        self.outlined_functions.setdefault(var, function)
        return var


def OutlineCompilerFunctionsWithExistingGlobalSymbols(  # noqa: N802
    compiler_filter: str = "",
) -> Pass:
    """Return a pass that outlines functions with a global_symbol into global functions.

    They have the attributes Compiler (this one, if it is said) and global_symbol, their name. The
    pass raises ValueError for the name of a function that the module has already.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Outline the functions of a module. Raises ValueError for a name that the module has
        already.
        """
        outliner = _FunctionOutliner(compiler_filter)
        done: dict[GlobalVar, BaseFunc] = {}
        for var, function in module.functions.items():
            # The functions of the compiler itself are global already.
            stays = not isinstance(function, Function) or _is_compiler_function(
                function, compiler_filter
            )
            if not stays:
                assert isinstance(function, Function)
                function = function.with_fields(body=outliner.run(function.body))
            done[var] = function
        # Two global variables of one name would be ambiguous.
        used_names = {v.name_hint for v in done}
        for var in outliner.outlined_functions:
            if var.name_hint in used_names:
                raise ValueError(f"the module has a function @{var.name_hint} already")
        return module.with_functions({**done, **outliner.outlined_functions})

    return Pass("OutlineCompilerFunctionsWithExistingGlobalSymbols", transform, 0, ())


class _VarReplacer(ExprMutator):
    """Mutator that substitutes variables and drops declared result types."""

    def __init__(self, variables: Mapping[Var, Var]) -> None:
        super().__init__()
        # Entered as results, so that each occurrence of a variable is replaced.
        self.memo.update(variables.items())

    def rewrite(self, old: Expr, new: Expr) -> Expr:
        """Drop a function's result type: it follows from its parameters."""
        return new.with_fields(ret_type=None) if isinstance(new, Function) else new


def specialize(function: Function, kinds: Sequence[Type]) -> Function:
    """Specialise a function to argument types and re-infer all types inside: fn (%x: Tensor[(?,
    3)]) for Tensor[(n, 3)] returns n rows.
    """
    params = dict(zip(function.params, kinds, strict=True))
    # New variables carry no old types, so inference derives all of them from the parameters.
    variables = {v: Var(v.name_hint, params.get(v), v.span) for v in bound_vars(function)}
    specialized = _VarReplacer(variables).visit(function)
    assert isinstance(specialized, Function)
    infer_expr_type(specialized)
    return specialized


def MarkCompilerFunctionsAsExtern(compiler_filter: str = "") -> Pass:  # noqa: N802
    """Return a pass that marks compiled global functions as extern.

    Functions with the attribute Compiler (this one, if it is said) get Extern in place of all
    attributes: they are compiled elsewhere, and called by their names.
    """

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Replace the attributes of compiled functions by Extern."""
        return module.with_functions(
            {
                var: f.with_fields(attrs={"Extern": 1})
                if _is_compiler_function(f, compiler_filter)
                else f
                for var, f in module.functions.items()
            }
        )

    return Pass("MarkCompilerFunctionsAsExtern", transform, 0, ())


def _strip_compiler_attrs(function: Function) -> Function:
    """Return a function without its compiler attributes, with composite functions inlined."""

    def rewrite(old: RelayExpr, new: RelayExpr) -> RelayExpr:
        """Replace a call of a composite function by its body."""
        if isinstance(new, Call) and isinstance(new.op, Function):
            return inline_application(new.op, new) if new.op.attr("Composite") is not None else new
        return new

    return function.with_fields(body=rewrite_graph(function.body, rewrite), attrs=None)


def InlineCompilerFunctionsBoundTo(global_vars: Sequence[GlobalVar]) -> Pass:  # noqa: N802
    """Return a pass that inlines external functions, and the composite functions in them, for
    Ekiden to compile.
    """
    names = {var.name_hint for var in global_vars}

    def transform(module: IRModule, context: PassContext) -> IRModule:
        """Inline the named functions at all call sites, and remove them."""
        functions = {
            var: _strip_compiler_attrs(f)
            if isinstance(f, Function) and var.name_hint in names
            else f
            for var, f in module.functions.items()
        }
        if not functions:
            return module
        return inline(module.with_functions(functions), lambda var, f: var.name_hint in names)

    return Pass("InlineCompilerFunctionsBoundTo", transform, 0, ())
