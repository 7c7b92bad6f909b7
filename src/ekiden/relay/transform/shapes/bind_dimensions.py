"""Name the unknown dimensions of tensors, so that what operators make of them has a known shape.

def @f(%x: Tensor[(?, 2), float32]) { let %y = @g(%x); add(nn.relu(%x), %y) }
-> def @f(%x: Tensor[(?, 2), float32]) {
     let %x1: Tensor[(x_0, 2), float32] = vm.match_shape(%x, shape=(x_0, 2));
     let %y = @g(%x);
     let %y1: Tensor[(y_0, 2), float32] = vm.match_shape(%y, shape=(y_0, 2));
     vm.forget_shape(add(nn.relu(%x1), %y1), shape=(?, 2))
   }

Operators compute on tensors whose dimensions have names. What goes into calls of functions, data
structures and branches, and what comes out of them, keeps the type that it had: `?` there stays
`?`. An operator whose result depends on data is preceded by `vm.bind_dims`, which names what its
declaration says of the result:

   dyn.reshape(%x, %s)   ->   dyn.reshape(%x, vm.bind_dims(%s, (%x, %s), symbols=(a, b)),
                                          symbols=(a, b))
   argwhere(%x)          ->   %p = argwhere_padded(%x);
                              vm.prefix(vm.bind_dims(%p, (%p.1,), symbols=(a,)).0, shape=(a, 2))
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from ekiden.arith import prove_equal, simplify
from ekiden.ir.attrs import with_symbols
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.op import Array, Op, get
from ekiden.ir.prim import PrimExpr, SizeVar, const, is_const
from ekiden.ir.prim_visitor import post_order, rewrite
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.expr import Call, Clause, Constant, Function, Let, Match, Tuple, TupleGetItem, Var
from ekiden.relay.op.vm import MatchShapeAttrs, bind_dims, forget_shape, match_shape, prefix
from ekiden.relay.transform.external.compiler_functions import specialize
from ekiden.relay.transform.language.chains import Binding, build_lets
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.scopes import (
    bodies,
    evaluation_order,
    infer_here,
    is_atom,
    map_functions,
    operands,
    with_children,
)
from ekiden.relay.visitor import pattern_vars
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.topi.dimensions import as_ints, is_any


def has_unknown(kind: Type | None) -> bool:
    """Return whether a tensor, or one in a tuple, has an unknown dimension."""
    if isinstance(kind, TupleType):
        return any(map(has_unknown, kind.fields))
    return isinstance(kind, TensorType) and any(map(is_any, kind.shape))


def _same(a: Type, b: Type) -> bool:
    """Return whether two types of tensors and tuples are equal."""
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
        return all(map(_same, a.fields, b.fields))
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return True
    return len(a.shape) == len(b.shape) and all(map(_same_dim, a.shape, b.shape))


def _same_dim(a: PrimExpr, b: PrimExpr) -> bool:
    return a is b or (is_any(a) and is_any(b)) or prove_equal(a, b)


def _named(kind: TensorType, symbols: Iterator[PrimExpr]) -> TensorType:
    """Return the type with symbols for its unknown dimensions."""
    dims = tuple(next(symbols) if is_any(d) else d for d in kind.shape)
    return TensorType(dims, kind.dtype)


class _Symbols:
    """New names of dimensions, each once in a function: errors at run time show them."""

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def named(self, name: str) -> PrimExpr:
        """Return a symbol of that name, with a number after it if the name is in use."""
        while name in self._used:
            self._used[name] += 1
            name = f"{name}_{self._used[name]}"
        self._used[name] = 0
        return SizeVar(name)

    def of(self, call: Call) -> Iterator[PrimExpr]:
        """Symbols for the dimensions of an operator's result."""
        assert isinstance(call.op, Op)
        hint = call.op.name.rpartition(".")[2]
        return (self.named(f"{hint}_{n}") for n in count())


def _unknown_dims(kind: Type) -> int:
    if isinstance(kind, TupleType):
        return sum(map(_unknown_dims, kind.fields))
    return sum(map(is_any, kind.shape)) if isinstance(kind, TensorType) else 0


def _field(value: RelayExpr, index: int) -> RelayExpr:
    if isinstance(value, Tuple):
        return value.fields[index]
    return infer_here(TupleGetItem(value, index))


class _Binder:
    """Rewrites one function and those inside it.

    An expression has up to two forms: plain, of the type it had, and refined, whose dimensions
    have names.
    """

    def __init__(self, root: Function) -> None:
        self.root = root
        self._symbols = _Symbols()
        self._plain: dict[RelayExpr, RelayExpr] = {}
        self._refined: dict[RelayExpr, RelayExpr] = {}
        self._bindings: dict[Var, list[Binding]] = {}
        """What follows the binding of a variable: its names."""
        order = evaluation_order(root.body)
        self._order = order
        self._values = {e.var: e.value for e in order if isinstance(e, Let)}

    def run(self) -> Function:
        """Return the function with named dimensions."""
        for expr in self._order:
            if not is_atom(expr):
                self._visit(expr)
        return self.root.with_fields(body=self._wrap(self.root.params, self.root.body))

    def plain(self, expr: RelayExpr) -> RelayExpr:
        """Return the form of an expression that has its original type."""
        if is_atom(expr):
            return expr
        if expr not in self._plain:
            if isinstance(expr, Tuple):
                form = infer_here(Tuple(tuple(map(self.plain, expr.fields)), expr.span))
            elif isinstance(expr, TupleGetItem) and expr.tuple_value not in self._refined:
                form = with_children(expr, {expr.tuple_value: self.plain(expr.tuple_value)})
            else:
                form = _retyped(self.refined(expr), expr.checked_type)
            self._plain[expr] = form
        return self._plain[expr]

    def refined(self, expr: RelayExpr) -> RelayExpr:
        """Return the form of an expression that operators read."""
        # A name of a name has the dimensions of the first.
        while isinstance(expr, Var) and isinstance(self._values.get(expr), Var):
            expr = self._values[expr]
        if expr not in self._refined:
            self._refined[expr] = self._refine(expr)
        return self._refined[expr]

    def _refine(self, expr: RelayExpr) -> RelayExpr:
        kind = expr.checked_type_or_none()
        if isinstance(expr, Tuple):
            return infer_here(Tuple(tuple(map(self.refined, expr.fields)), expr.span))
        if isinstance(expr, TupleGetItem):
            return _field(self.refined(expr.tuple_value), expr.index)
        if not has_unknown(kind):
            return expr if isinstance(expr, Var) else self.plain(expr)
        assert kind is not None
        if isinstance(expr, Var):
            value = self._values.get(expr)
            if value is not None and _is_data(value) and expr.type_annotation is None:
                return self.refined(value)
            return self._variable(expr, expr, kind, expr)
        return _matched(self.plain(expr), kind, self._symbols)

    def _variable(self, of: Var, value: RelayExpr, kind: Type, origin: Var) -> RelayExpr:
        """Return the named form of a variable, bound right after it."""
        if isinstance(kind, TupleType):
            fields = [
                self._variable(of, infer_here(TupleGetItem(value, n)), k, origin)
                for n, k in enumerate(kind.fields)
            ]
            return infer_here(Tuple(tuple(fields)))
        matched = _matched(value, kind, self._symbols, origin.name_hint)
        if matched is value:
            return value
        # Everything after the binding reads the new name instead.
        name = Var(origin.name_hint, matched.checked_type)
        name.set_checked_type(matched.checked_type)
        self._bindings.setdefault(of, []).append((name, matched))
        return name

    def _wrap(self, variables: Sequence[Var], body: RelayExpr) -> RelayExpr:
        """Return a scope that begins with the names of variables."""
        named = [b for v in variables for b in self._bindings.pop(v, ())]
        return build_lets(named, self.plain(body))

    def _visit(self, expr: RelayExpr) -> None:
        match expr:
            case Call(op=Op()):
                self._refined[expr] = self._operator(expr)
            case Call(op=Function() as region) if is_region(region):
                self._refined[expr] = self._region(expr, region)
            case Tuple() | TupleGetItem():
                pass
            case Let():
                self._plain[expr] = self._let(expr)
            case Function(params=params, body=body):
                self._plain[expr] = with_children(expr, {body: self._wrap(params, body)})
            case Match():
                self._plain[expr] = self._match(expr)
            case _:
                subexpressions = [*operands(expr), *bodies(expr)]
                self._plain[expr] = with_children(expr, {c: self.plain(c) for c in subexpressions})

    def _let(self, let: Let) -> RelayExpr:
        value = self.plain(let.value)
        body = self._wrap((let.var,), let.body)
        if value is let.value and body is let.body:
            return let
        rebuilt = Let(let.var, value, body, let.span)
        rebuilt.set_checked_type(let.checked_type)
        return rebuilt

    def _match(self, expr: Match) -> RelayExpr:
        clauses = tuple(Clause(c.lhs, self._wrap(pattern_vars(c.lhs), c.rhs)) for c in expr.clauses)
        rebuilt = expr.with_fields(data=self.plain(expr.data), clauses=clauses)
        rebuilt.set_checked_type(expr.checked_type)
        return rebuilt

    def _region(self, call: Call, region: Function) -> RelayExpr:
        """Return the call of a region, for the named dimensions of its arguments."""
        args = tuple(map(self.refined, call.args))
        if not has_unknown(call.checked_type):
            return with_children(call, {arg: self.plain(arg) for arg in call.args})
        specialized = specialize(region, [arg.checked_type for arg in args])
        called = Call(specialized, args, None, (), call.span)
        called.set_checked_type(specialized.body.checked_type)
        return called

    def _operator(self, call: Call) -> RelayExpr:
        is_match = isinstance(call.attrs, MatchShapeAttrs)  # which names what it reads itself
        args = tuple(map(self.plain if is_match else self.refined, call.args))
        refined = call
        if any(a is not b for a, b in zip(args, call.args, strict=True)):
            refined = Call(call.op, args, call.attrs, call.type_args, call.span)
            infer_here(refined)
        assert isinstance(call.op, Op)
        definition = call.op.definition
        if not has_unknown(refined.checked_type):
            return refined
        # The declaration cannot say the size; the padded operator returns it beside the data.
        if definition.padded is not None:
            return _cut(refined, definition.padded, self._symbols)
        return _bound(refined, self._symbols) if definition.dims is not None else refined


def is_region(function: RelayExpr) -> bool:
    """Return whether a function in place is a region for an external compiler: as an operator's
    call, a call of it gives what follows from its arguments."""
    return isinstance(function, Function) and function.attr("Compiler") is not None


def _is_data(value: RelayExpr) -> bool:
    """Return whether a value is the result of an operator or region, or made of values in place."""
    if isinstance(value, Call):
        return isinstance(value.op, Op) or is_region(value.op)
    return isinstance(value, (Tuple, TupleGetItem))


def _retyped(value: RelayExpr, kind: Type) -> RelayExpr:
    """Return a value under a less specific type."""
    if _same(value.checked_type, kind):
        return value
    if isinstance(kind, TupleType):
        fields = tuple(_retyped(_field(value, n), k) for n, k in enumerate(kind.fields))
        return infer_here(Tuple(fields))
    assert isinstance(kind, TensorType)
    return infer_here(forget_shape(value, kind.shape))


def _matched(value: RelayExpr, kind: Type, symbols: _Symbols, hint: str = "d") -> RelayExpr:
    """Return a value with names for its unknown dimensions."""
    if not has_unknown(kind):
        return value
    if isinstance(kind, TupleType):
        fields = (_matched(_field(value, n), k, symbols, hint) for n, k in enumerate(kind.fields))
        return infer_here(Tuple(tuple(fields)))
    assert isinstance(kind, TensorType)
    shape = tuple(
        symbols.named(f"{hint}_{axis}") if is_any(d) else d for axis, d in enumerate(kind.shape)
    )
    return infer_here(match_shape(value, shape).with_fields(span=value.span))


def _bound(call: Call, fresh: _Symbols) -> RelayExpr:
    """Return a call of an operator whose declaration computes the unknown dimensions from
    arguments.
    """
    assert isinstance(call.op, Op)
    names = fresh.of(call)
    constants = _constant_dims(call)
    symbols = tuple(next(names) if d is None else d for d in constants)
    attrs = with_symbols(call.attrs, symbols)
    # All dimensions are constants: nothing is to be bound at run time.
    if None not in constants:
        return infer_here(Call(call.op, call.args, attrs, call.type_args, call.span))
    *first, last = call.args
    unknown = tuple(s if d is None else const(0) for s, d in zip(symbols, constants, strict=True))
    after = bind_dims(last, call.args, unknown, call.op.name, call.attrs)
    bound = Call(
        call.op,
        (*first, infer_here(after.with_fields(span=call.span))),
        attrs,
        call.type_args,
        call.span,
    )
    return infer_here(bound)


def _constant_dims(call: Call) -> list[PrimExpr | None]:
    """Return the unknown dimensions of an operator's result that follow from constant arguments.

    Others are None.
    """
    assert isinstance(call.op, Op) and call.op.definition.dims is not None
    buffers: dict[PrimExpr | Buffer, Array] = {}
    inputs = []
    for arg in call.args:
        kind = arg.checked_type
        assert isinstance(kind, TensorType)
        inputs.append(Buffer("x", kind.shape, kind.dtype))
        if isinstance(arg, Constant):
            buffers[inputs[-1]] = arg.data
    dims, conditions = call.op.definition.dims(call.attrs, inputs)

    def read(expr: PrimExpr) -> PrimExpr:
        """Return the element of a constant that a load reads."""
        if isinstance(expr, BufferLoad) and expr.buffer in buffers:
            data = buffers[expr.buffer]
            return const(data[as_ints(expr.indices)].item(), expr.dtype)
        return expr

    loaded = [simplify(rewrite(d, read)) for d in dims]
    checks = [simplify(rewrite(c, read)) for c, *_ in conditions]
    # A condition that is not known to hold has to be checked at run time.
    if not all(is_const(c, 1) for c in checks):
        return [None] * len(loaded)
    return [None if any(isinstance(e, BufferLoad) for e in post_order(d)) else d for d in loaded]


def _cut(call: Call, padded: str, fresh: _Symbols) -> RelayExpr:
    """Return a call of an operator through its padded form, cut to the actual size."""
    assert isinstance(call.op, Op)
    largest = infer_here(Call(get(padded), call.args, call.attrs, (), call.span))
    kinds = largest.checked_type
    assert isinstance(kinds, TupleType)
    last = len(kinds.fields) - 1
    (number,) = _counts(kinds.fields[last])
    names = fresh.of(call)
    symbols = tuple(next(names) for _ in range(number))
    true = bind_dims(largest, (_field(largest, last),), symbols)
    bound = infer_here(true.with_fields(span=call.span))
    # One count names every unknown dimension of the result.
    remaining = iter(symbols * _unknown_dims(call.checked_type) if number == 1 else symbols)
    result = call.checked_type
    if isinstance(result, TupleType):
        fields = [_taken(_field(bound, n), k, remaining) for n, k in enumerate(result.fields)]
        return infer_here(Tuple(tuple(fields)))
    return _taken(_field(bound, 0), result, remaining)


def _counts(kind: Type) -> tuple[int, ...]:
    assert isinstance(kind, TensorType)
    return as_ints(kind.shape)


def _taken(value: RelayExpr, kind: Type, symbols: Iterator[PrimExpr]) -> RelayExpr:
    if not has_unknown(kind):
        return value
    assert isinstance(kind, TensorType)
    return infer_here(prefix(value, _named(kind, symbols).shape))


def _bind(function: Function) -> Function:
    kinds = (e.checked_type_or_none() for e in evaluation_order(function.body))
    if not any(map(has_unknown, kinds)):
        return function
    return _Binder(function).run()


@module_pass(name="BindDimensions", required=(MatchDeclaredShapes(),))
def _bind_dimensions(module: IRModule, context: PassContext) -> IRModule:
    bound = map_functions(module, _bind)
    return InferType()(bound) if bound.functions != module.functions else module


def BindDimensions() -> Pass:  # noqa: N802
    """The pass described at the top of this file."""
    return _bind_dimensions
