"""Reference interpreter of Relay in NumPy, the oracle for compiled programs.

The machine keeps its own stack of steps, so neither a long program nor a deep recursion of the
program reaches Python's limit. Each activation of a function has a frame that remembers the value
of every expression, so a shared one is evaluated once. A call whose value is that of the function
around it takes the place of that function's activation: a loop written as recursion runs in
constant space.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

import numpy as np

from ekiden.arith import evaluate as evaluate_prim
from ekiden.ir.attrs import Attrs, prim_expr_fields
from ekiden.ir.dtype import to_numpy
from ekiden.ir.expr import GlobalVar
from ekiden.ir.expr_text import format_prim_expr, format_shape, format_type
from ekiden.ir.module import IRModule
from ekiden.ir.node import node_fields
from ekiden.ir.op import Array, Op
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar
from ekiden.ir.prim import Var as PrimVar
from ekiden.ir.prim_visitor import free_vars
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.evaluate_call import evaluate_call
from ekiden.relay.expr import (
    Call,
    Constant,
    Constructor,
    Expr,
    Function,
    If,
    Let,
    Match,
    Pattern,
    PatternConstructor,
    PatternTuple,
    PatternVar,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.interpreter_values import (
    ActivationFrame,
    Closure,
    ConstructorValue,
    RefValue,
    Symbols,
    Value,
)
from ekiden.relay.op.annotation import DeviceCopyAttrs, OnDeviceAttrs
from ekiden.relay.op.prim_func_call import wrap_prim_func
from ekiden.relay.op.vm import MatchShapeAttrs
from ekiden.runtime.errors import IndexRangeError, InputError, LinAlgError, RunError
from ekiden.tir.stmt import PrimFunc


def _evaluate_sequence_op(
    op: Op, attrs: Attrs | None, args: Sequence[Value]
) -> ConstructorValue | None:
    """Evaluate an operator that returns a sequence; None for any other operator."""
    definition = op.definition
    if not definition.host or definition.reference is None:
        return None
    # Operators on sequences take and return values that are no arrays.
    result: object = definition.reference(attrs, *args)
    return result if isinstance(result, ConstructorValue) else None


def bind_attrs(attrs: Attrs, symbols: Mapping[PrimVar, int]) -> Attrs:
    """Evaluate the scalar expressions in attributes.

    They are the attributes themselves if there are no expressions. 0 stays an IntImm: the number 0
    means "copy" in a reshape.
    """
    # Fields that hold only expressions must get one: IntImm and not int.
    exact = prim_expr_fields(attrs.type_key)
    old = {f.name: getattr(attrs, f.name) for f in node_fields(attrs)}
    return attrs.with_fields(
        **{name: _evaluate_attr(value, symbols, name in exact) for name, value in old.items()}
    )


def _evaluate_attr(value: object, symbols: Mapping[PrimVar, int], is_exact: bool) -> object:
    if isinstance(value, PrimExpr) and not isinstance(value, IntImm):
        number = evaluate_prim(value, dict(symbols))
        # Python's integers have no end, those of compiled programs have.
        if value.dtype == "int64" and not -(2**63) <= number < 2**63:
            raise InputError(f"run: a size leaves int64: {format_prim_expr(value)} is {number}")
        return IntImm(number, value.dtype) if is_exact or number == 0 else number
    if isinstance(value, tuple):
        bound = tuple(_evaluate_attr(v, symbols, is_exact) for v in value)
        return value if all(a is b for a, b in zip(bound, value, strict=True)) else bound
    return value


def bind_symbols(kind: Type, value: Value, symbols: Symbols, what: str) -> None:
    """Check a value against a type, and bind its symbolic dimensions.

    Raises:
        InputError: The value does not fit the type.
    """
    if isinstance(kind, TensorType) and isinstance(value, np.ndarray):
        _check_tensor_value(kind, value, what)
        for dim, extent in zip(kind.shape, value.shape, strict=True):
            _bind_dim(dim, extent, symbols, kind, value, what)
    elif isinstance(kind, TupleType) and isinstance(value, tuple):
        for number, (inner, element) in enumerate(zip(kind.fields, value, strict=True)):
            bind_symbols(inner, element, symbols, f"{what}.{number}")


def _match_shape(call: Call, value: Value, frame: ActivationFrame) -> None:
    """Check a tensor against a shape, and bind fresh symbols in the frame.

    Raises:
        InputError: The tensor does not fit the shape.
    """
    attrs = call.attrs
    assert isinstance(attrs, MatchShapeAttrs) and isinstance(value, np.ndarray)
    before = set(frame.symbols)
    where = f" ({call.span})" if call.span else ""
    kind = TensorType(attrs.shape, str(value.dtype))
    bind_symbols(kind, value, frame.symbols, f"{attrs.place or 'a tensor'}{where}")
    frame.bound_symbols |= frame.symbols.keys() - before


def _check_tensor_value(kind: TensorType, value: Array, what: str) -> None:
    if len(kind.shape) != value.ndim or to_numpy(kind.dtype) != value.dtype:
        actual = f"{value.dtype} of shape {value.shape}"
        raise InputError(
            f"{what}: expected {kind.dtype} of shape {format_shape(kind.shape)}, got {actual}"
        )


def _bind_dim(
    dim: PrimExpr, extent: int, symbols: Symbols, kind: TensorType, value: Array, what: str
) -> None:
    expected = dim.value if isinstance(dim, IntImm) else extent
    if isinstance(dim, SizeVar):
        expected = symbols.setdefault(dim, extent)
    elif not isinstance(dim, (IntImm, AnyDim)) and all(v in symbols for v in free_vars(dim)):
        expected = evaluate_prim(dim, dict(symbols))
    if expected != extent:
        shape = format_shape(kind.shape)
        reason = "" if isinstance(dim, IntImm) else f", where {format_prim_expr(dim)} is {expected}"
        raise InputError(f"{what}: expected shape {shape}{reason}, got {value.shape}")


MAX_CALL_DEPTH = 1_000_000
"""Maximum depth of pending calls, at about 1.5 KB each."""


class Interpreter:
    """Evaluator of expressions over a module's functions."""

    def __init__(self, module: IRModule | None = None, depth_limit: int = MAX_CALL_DEPTH) -> None:
        """Set up an interpreter.

        Args:
            module: The functions that expressions may use.
            depth_limit: How many calls may wait for each other; tail calls do not wait.
        """
        self.module = module or IRModule()
        self.depth_limit = depth_limit
        self._closures: dict[Expr, Closure] = {}
        self._call_operands: dict[Expr, tuple[Expr, ...]] = {}
        """Subexpressions that a call evaluates, last first, by call."""
        self._has_symbolic_attrs: dict[Attrs, bool] = {}
        """Whether a call's attributes contain symbols, by call."""

    def evaluate(self, target: Expr | str = "main", *args: object) -> Value:
        """Evaluate an expression, or apply a function to `args`.

        Args:
            target: An expression, or a function by name, GlobalVar or Function.
            args: Arrays (or values that NumPy makes arrays of), tuples of them, or values that
                evaluation
                returned.

        Raises:
            RunError: A recursion is deeper than the limit.
            InputError: An argument does not fit.
        """
        expr = self.module.get_global_var(target) if isinstance(target, str) else target
        value = self._run_stack(expr, ActivationFrame())
        # A function without parameters is called, as compiled programs call their main function.
        if isinstance(value, Closure) and (args or not value.function.params):
            return self.apply(value, *args)
        if args:
            raise InputError(
                f"evaluate: got {len(args)} arguments for an expression that is not a function"
            )
        return value

    def apply(self, function: Value, *args: object) -> Value:
        """Apply a function value."""
        params = [Var(f"arg{i}", None) for i in range(len(args))]
        callee = Var("function", None)
        frame = ActivationFrame(
            {p: _to_interpreter_value(a) for p, a in zip(params, args, strict=True)}
        )
        frame.values[callee] = function
        return self._run_stack(Call(callee, tuple(params), None), frame)

    def _run_stack(self, root: Expr, frame: ActivationFrame) -> Value:
        stack: Steps = [(Interpreter._open_expr, root, frame, False)]
        expr = root
        try:
            while stack:
                step, expr, position, is_tail = stack.pop()
                step(self, expr, position, is_tail, stack)
        except Exception as error:
            _add_location_note(error, expr)
            raise
        return self._value_of(root, frame)

    def _open_expr(self, expr: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps) -> None:
        """Begin the evaluation of an expression; `is_tail` marks tail position."""
        # Explicit stack: Relay programs recurse deeper than Python allows.
        if type(expr) in _ATOM_CLASSES or frame.lookup(expr) is not None:
            if is_tail:
                self._finish_expr(expr, frame, True, self._value_of(expr, frame))
            return
        rule = _EVAL_RULES.get(type(expr))
        if rule is None:
            raise RunError(f"{type(expr).__name__}: not an expression that can be interpreted")
        rule(self, expr, frame, is_tail, stack)

    def _finish_expr(self, expr: Expr, frame: ActivationFrame, is_tail: bool, value: Value) -> None:
        """Store an expression's value, or return it to the activation's caller."""
        if not is_tail:
            frame.values[expr] = value
            return
        # In tail position the value is that of the call which made the activation.
        assert frame.caller is not None and frame.result is not None
        frame.caller.values[frame.result] = value

    def _value_of(self, expr: Expr, frame: ActivationFrame) -> Value:
        value = frame.values.get(expr)
        if value is not None:
            return value
        match expr:
            case Constant(data=data):
                return data
            case Op() | Constructor():
                return expr
            case GlobalVar():
                return self._closures.get(expr) or self._global_closure(expr)
        value = frame.lookup(expr)
        if value is None:
            raise RunError(
                f"variable %{expr.name_hint} is not bound"
                if isinstance(expr, Var)
                else f"no value: {expr!r}"
            )
        return value

    def _global_closure(self, var: GlobalVar) -> Closure:
        name = var.name_hint
        function = self.module[var] if var in self.module.functions else self.module[name]
        if isinstance(function, PrimFunc):
            # A loop program is called through a Relay function of its type.
            function = wrap_prim_func(function.with_attr("global_symbol", name))
        if not isinstance(function, Function):
            raise RunError(f"@{name}: a {type(function).__name__} cannot be interpreted")
        closure = self._closures[var] = Closure(function)
        return closure

    def _eval_call(self, call: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps) -> None:
        assert isinstance(call, Call)
        pending = self._call_operands.get(call)
        if pending is None:
            pending = tuple(
                p for p in (*reversed(call.args), call.op) if type(p) not in _ATOM_CLASSES
            )
            self._call_operands[call] = pending
        if not pending:
            self._enter_callee(call, frame, is_tail, stack)
            return
        # Below its parts on the stack: it runs when they have values.
        stack.append((Interpreter._enter_callee, call, frame, is_tail))
        for operand in pending:
            stack.append((Interpreter._open_expr, operand, frame, False))

    def _enter_callee(
        self, call: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        assert isinstance(call, Call)
        callee = self._value_of(call.op, frame)
        args = tuple([self._value_of(a, frame) for a in call.args])
        if isinstance(callee, Closure):
            inner = self._new_frame(callee, args, frame)
            # A tail call answers directly to the caller, so its activation replaces this one.
            if is_tail:
                inner.caller, inner.result, inner.depth = frame.caller, frame.result, frame.depth
            else:
                inner.caller, inner.result, inner.depth = frame, call, frame.depth + 1
                # Checked here, as the memory of the machine would otherwise be the limit.
                if inner.depth > self.depth_limit:
                    self._raise_recursion_error(call)
            stack.append((Interpreter._open_expr, callee.function.body, inner, True))
        elif isinstance(callee, Constructor):
            self._finish_expr(call, frame, is_tail, ConstructorValue(callee, args))
        elif isinstance(callee, Op):
            self._finish_expr(call, frame, is_tail, self._eval_operator(callee, call, args, frame))
        else:
            raise RunError(f"call: expected a function, got {type(callee).__name__}")

    def _eval_operator(
        self, op: Op, call: Call, args: tuple[Value, ...], frame: ActivationFrame
    ) -> Value:
        """Evaluate an operator on argument values."""
        if isinstance(call.attrs, MatchShapeAttrs):
            if op.definition.stateful:
                _match_shape(call, args[0], frame)
            return args[0]
        attrs = self._bind_attrs(call.attrs, frame.symbols) if call.attrs is not None else None
        if isinstance(attrs, (OnDeviceAttrs, DeviceCopyAttrs)):
            return args[0]  # any value; here all are in one place
        return _evaluate_sequence_op(op, attrs, args) or evaluate_call(op, attrs, args)

    def _raise_recursion_error(self, call: Call) -> NoReturn:
        name = getattr(call.op, "name_hint", "a function")
        raise RunError(
            f"call of {name}: more than {self.depth_limit} calls wait for each other;"
            " make it a tail call, or give the interpreter a greater depth_limit"
        )

    def _bind_attrs(self, attrs: Attrs, symbols: Symbols) -> Attrs:
        has_symbols = self._has_symbolic_attrs.get(attrs)
        if has_symbols is False:
            return attrs
        bound = bind_attrs(attrs, symbols)
        # Attributes without symbols are remembered, since checking them again costs time.
        if has_symbols is None:
            self._has_symbolic_attrs[attrs] = bound is not attrs
        return bound

    def _new_frame(
        self, closure: Closure, args: tuple[Value, ...], caller: ActivationFrame
    ) -> ActivationFrame:
        params = closure.function.params
        if len(params) != len(args):
            raise InputError(f"call: expected {len(params)} arguments, got {len(args)}")
        outer = closure.frame
        frame = ActivationFrame(dict(zip(params, args, strict=True)), outer)
        symbols: Symbols = {}
        for p, a in zip(params, args, strict=True):
            # Named dimensions are bound anew in each call: recursive functions see other sizes in
            # each.
            if p.type_annotation is not None:
                bind_symbols(p.type_annotation, a, symbols, f"%{p.name_hint}")
        if symbols or caller.symbols or (outer is not None and outer.symbols):
            around = outer.symbols if outer is not None else {}
            # Sizes that the caller bound within its own body are not visible to the callee.
            passed = {s: n for s, n in caller.symbols.items() if s not in caller.bound_symbols}
            frame.symbols = {**passed, **around, **symbols}
        return frame

    def _eval_let(self, let: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps) -> None:
        assert isinstance(let, Let)
        stack.append((Interpreter._eval_let_body, let, frame, is_tail))
        _push_exprs(stack, (let.value,), frame)

    def _eval_let_body(
        self, let: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        assert isinstance(let, Let)
        value = self._value_of(let.value, frame)
        frame.values[let.var] = value
        if let.var.type_annotation is not None:
            before = set(frame.symbols)
            bind_symbols(let.var.type_annotation, value, frame.symbols, f"%{let.var.name_hint}")
            # What a binding names belongs to this activation, and is not passed to callees.
            frame.bound_symbols |= frame.symbols.keys() - before
        _delegate_to(let, let.body, frame, is_tail, stack)

    def _eval_if(self, choice: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps) -> None:
        assert isinstance(choice, If)
        stack.append((Interpreter._eval_branch, choice, frame, is_tail))
        _push_exprs(stack, (choice.cond,), frame)

    def _eval_branch(
        self, choice: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        assert isinstance(choice, If)
        is_true = bool(self._value_of(choice.cond, frame))
        branch = choice.true_branch if is_true else choice.false_branch
        _delegate_to(choice, branch, frame, is_tail, stack)

    def _eval_match(self, match: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps) -> None:
        assert isinstance(match, Match)
        stack.append((Interpreter._eval_clause, match, frame, is_tail))
        _push_exprs(stack, (match.data,), frame)

    def _eval_clause(
        self, match: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        assert isinstance(match, Match)
        chosen = _select_clause(match, self._value_of(match.data, frame), frame)
        _delegate_to(match, chosen, frame, is_tail, stack)

    def _eval_function(
        self, function: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        assert isinstance(function, Function)
        self._finish_expr(function, frame, is_tail, Closure(function, frame))

    def _eval_children(
        self, expr: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        """Evaluate an expression whose value depends only on its children's values."""
        stack.append((Interpreter._finish_children, expr, frame, is_tail))
        _push_exprs(stack, _CHILD_GETTERS[type(expr)](expr), frame)

    def _finish_children(
        self, expr: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
    ) -> None:
        values = tuple([self._value_of(p, frame) for p in _CHILD_GETTERS[type(expr)](expr)])
        self._finish_expr(expr, frame, is_tail, _combine_children(expr, values))


Step = Callable[["Interpreter", Expr, ActivationFrame, bool, "Steps"], None]
Steps = list[tuple[Step, Expr, ActivationFrame, bool]]
"""Stack of pending work: (rule, expression, frame, is_tail), the next one last."""


def _push_exprs(stack: Steps, exprs: Sequence[Expr], frame: ActivationFrame) -> None:
    """Push the evaluation of non-atomic expressions, first to last."""
    for expr in reversed(exprs):
        if type(expr) not in _ATOM_CLASSES:
            stack.append((Interpreter._open_expr, expr, frame, False))


def _delegate_to(
    expr: Expr, inner: Expr, frame: ActivationFrame, is_tail: bool, stack: Steps
) -> None:
    """Evaluate another expression in place of `expr`, with its result."""
    if not is_tail:

        def forward_value(
            self: Interpreter, at: Expr, where: ActivationFrame, tail: bool, steps: Steps
        ) -> None:
            """Forward the value of the inner expression to the outer one."""
            # When the inner expression has its value: this step lies below it.
            where.values[at] = self._value_of(inner, where)

        stack.append((forward_value, expr, frame, False))
    stack.append((Interpreter._open_expr, inner, frame, is_tail))


def _combine_children(expr: Expr, values: tuple[Value, ...]) -> Value:
    match expr:
        case Tuple():
            return values
        case TupleGetItem(index=index):
            assert isinstance(values[0], tuple)
            return values[0][index]
        case RefCreate():
            return RefValue(values[0])
    assert isinstance(values[0], RefValue)
    if isinstance(expr, RefRead):
        return values[0].value
    values[0].value = values[1]
    return ()


def _select_clause(match: Match, value: Value, frame: ActivationFrame) -> Expr:
    """Return the right-hand side of the first matching clause, and bind its variables in the frame.

    Raises:
        RunError: No clause fits.
    """
    for clause in match.clauses:
        bound = _match_pattern(clause.lhs, value)
        if bound is not None:
            frame.values.update(bound)
            return clause.rhs
    raise RunError(f"match: no clause fits {_format_constructor(value)}")


def _format_constructor(value: Value) -> str:
    """Format the constructor of an unmatched value."""
    if not isinstance(value, ConstructorValue):
        return type(value).__name__
    constructor = value.constructor
    return f"tag {value.tag}" if constructor is None else str(constructor.name_hint)


def _match_pattern(pattern: Pattern, value: Value) -> dict[Expr, Value] | None:
    """Return the variables that a pattern binds, or None if it does not match."""
    bound: dict[Expr, Value] = {}
    stack = [(pattern, value)]
    while stack:
        position, component = stack.pop()
        match position:
            case PatternVar(var=var):
                bound[var] = component
            case PatternTuple(patterns=inner):
                assert isinstance(component, tuple)
                stack.extend(zip(inner, component, strict=True))
            case PatternConstructor(constructor=constructor, patterns=inner):
                assert isinstance(component, tuple)  # of a machine, a plain one for tag 0
                # Compared by the tag: constructors of a module that was parsed twice are different
                # objects.
                if getattr(component, "tag", 0) != constructor.tag:
                    return None
                stack.extend(zip(inner, component, strict=True))
    return bound


def _to_interpreter_value(value: object) -> Value:
    if isinstance(value, (tuple, list)) and not isinstance(value, ConstructorValue):
        return tuple(map(_to_interpreter_value, value))
    if isinstance(value, (ConstructorValue, RefValue, Closure, Constructor, Op)):
        return value
    return value if isinstance(value, np.ndarray) else np.asarray(value)


def _add_location_note(error: Exception, expr: Expr) -> None:
    """Add one exception note that names the failing operator or model node."""
    is_operator = isinstance(expr, Call) and isinstance(expr.op, Op)
    of_data = isinstance(error, (IndexRangeError, LinAlgError))
    if of_data and is_operator and expr.span is not None:
        _, colon, detail = str(error).partition(":")
        error.args = (expr.span.naming(expr.op.name) + colon + detail,)  # type: ignore[attr-defined]
    # Once only: the innermost place is the most exact.
    if getattr(error, "__notes__", None) or (not is_operator and expr.span is None):
        return
    name = (
        expr.op.name if isinstance(expr, Call) and isinstance(expr.op, Op) else type(expr).__name__
    )
    checked = expr.checked_type_or_none()
    kind = f": {format_type(checked)}" if checked is not None else ""
    error.add_note(
        f"while interpreting {name}{kind}" + (f", at {expr.span}" if expr.span is not None else "")
    )


_ATOM_CLASSES = frozenset((Var, GlobalVar, Constant, Op, Constructor))
# fmt: off
_CHILD_GETTERS: dict[type, Callable[..., tuple[Expr, ...]]] = {
    Tuple:        lambda e: e.fields,
    TupleGetItem: lambda e: (e.tuple_value,),
    RefCreate:    lambda e: (e.value,),
    RefRead:      lambda e: (e.ref,),
    RefWrite:     lambda e: (e.ref, e.value),
}
_EVAL_RULES: Mapping[type, Step] = {
    Call:     Interpreter._eval_call,
    Let:      Interpreter._eval_let,
    If:       Interpreter._eval_if,
    Match:    Interpreter._eval_match,
    Function: Interpreter._eval_function,
    **dict.fromkeys(_CHILD_GETTERS, Interpreter._eval_children),
}
# fmt: on
