"""Bind unknown dimensions of tensors to symbols, so that shapes computed from them are known.

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

Kernels that a user fused before, over unknown dimensions, become operators again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count

from ekiden.arith import prove_equal, simplify
from ekiden.ir.attrs import with_dim_symbols
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
from ekiden.relay.transform.fusion.defuse_ops import defuse
from ekiden.relay.transform.language.infer_type import InferType
from ekiden.relay.transform.language.let_chains import LetBinding, build_lets
from ekiden.relay.transform.language.match_declared_shapes import MatchDeclaredShapes
from ekiden.relay.transform.language.scope_tree import (
    bodies,
    evaluation_order,
    infer_local_type,
    is_atom,
    lift_body_rewrite,
    map_functions,
    operands,
    replace_children,
)
from ekiden.relay.visitor import pattern_vars
from ekiden.tir.expr import Buffer, BufferLoad
from ekiden.topi.dimensions import as_ints, is_unknown_dim


def has_unknown_dim(kind: Type | None) -> bool:
    """Return whether a tensor type, or one in a tuple, has an unknown dimension."""
    if isinstance(kind, TupleType):
        return any(map(has_unknown_dim, kind.fields))
    return isinstance(kind, TensorType) and any(map(is_unknown_dim, kind.shape))


def _is_same_type(a: Type, b: Type) -> bool:
    """Return whether two types of tensors or tuples are equal."""
    if isinstance(a, TupleType) and isinstance(b, TupleType) and len(a.fields) == len(b.fields):
        return all(map(_is_same_type, a.fields, b.fields))
    if not isinstance(a, TensorType) or not isinstance(b, TensorType):
        return True
    return len(a.shape) == len(b.shape) and all(map(_is_same_dim, a.shape, b.shape))


def _is_same_dim(a: PrimExpr, b: PrimExpr) -> bool:
    return a is b or (is_unknown_dim(a) and is_unknown_dim(b)) or prove_equal(a, b)


def _substitute_unknown(kind: TensorType, symbols: Iterator[PrimExpr]) -> TensorType:
    """Substitute symbols for the unknown dimensions of a type."""
    dims = tuple(next(symbols) if is_unknown_dim(d) else d for d in kind.shape)
    return TensorType(dims, kind.dtype)


class _SymbolFactory:
    """Factory of dimension symbols whose names are unique in a function, since run-time errors show
    them.
    """

    def __init__(self) -> None:
        self._used: dict[str, int] = {}

    def fresh_symbol(self, name: str) -> PrimExpr:
        """Return a fresh symbol of that name, numbered if the name is in use."""
        while name in self._used:
            self._used[name] += 1
            name = f"{name}_{self._used[name]}"
        # The numbered name may be asked for later as well.
        self._used[name] = 0
        return SizeVar(name)

    def result_symbols(self, call: Call) -> Iterator[PrimExpr]:
        """Yield fresh symbols for the dimensions of an operator's result."""
        assert isinstance(call.op, Op)
        hint = call.op.name.rpartition(".")[2]
        return (self.fresh_symbol(f"{hint}_{n}") for n in count())


def _num_unknown_dims(kind: Type) -> int:
    if isinstance(kind, TupleType):
        return sum(map(_num_unknown_dims, kind.fields))
    return sum(map(is_unknown_dim, kind.shape)) if isinstance(kind, TensorType) else 0


def _tuple_field(value: RelayExpr, index: int) -> RelayExpr:
    if isinstance(value, Tuple):
        return value.fields[index]
    return infer_local_type(TupleGetItem(value, index))


class _DimensionBinder:
    """Rewriter that binds the dimensions of one function and its nested functions.

    An expression has up to two forms: plain, of the type it had, and refined, whose dimensions have
    names.
    """

    def __init__(self, root: Function) -> None:
        self.root = root
        self._symbols = _SymbolFactory()
        self._original_forms: dict[RelayExpr, RelayExpr] = {}
        self._refined_forms: dict[RelayExpr, RelayExpr] = {}
        self._bindings: dict[Var, list[LetBinding]] = {}
        """Dimension bindings that follow each variable's binding."""
        order = evaluation_order(root.body)
        self._order = order
        self._values = {e.var: e.value for e in order if isinstance(e, Let)}

    def run(self) -> Function:
        """Return the function with bound dimensions."""
        for expr in self._order:
            if not is_atom(expr):
                self._visit_expr(expr)
        return self.root.with_fields(body=self._wrap_bindings(self.root.params, self.root.body))

    def original_form(self, expr: RelayExpr) -> RelayExpr:
        """Return the form of an expression with its original type."""
        if is_atom(expr):
            return expr
        if expr not in self._original_forms:
            # Tuples are rebuilt from plain fields, so no field needs a conversion.
            if isinstance(expr, Tuple):
                form = infer_local_type(
                    Tuple(tuple(map(self.original_form, expr.fields)), expr.span)
                )
            elif isinstance(expr, TupleGetItem) and expr.tuple_value not in self._refined_forms:
                form = replace_children(
                    expr, {expr.tuple_value: self.original_form(expr.tuple_value)}
                )
            else:
                form = _forget_symbols(self.refined_form(expr), expr.checked_type)
            self._original_forms[expr] = form
        return self._original_forms[expr]

    def refined_form(self, expr: RelayExpr) -> RelayExpr:
        """Return the form of an expression with bound dimensions, which operators read."""
        # A name of a name has the dimensions of the first.
        while isinstance(expr, Var) and isinstance(self._values.get(expr), Var):
            expr = self._values[expr]
        if expr not in self._refined_forms:
            self._refined_forms[expr] = self._refine(expr)
        return self._refined_forms[expr]

    def _refine(self, expr: RelayExpr) -> RelayExpr:
        kind = expr.checked_type_or_none()
        if isinstance(expr, Tuple):
            return infer_local_type(Tuple(tuple(map(self.refined_form, expr.fields)), expr.span))
        if isinstance(expr, TupleGetItem):
            return _tuple_field(self.refined_form(expr.tuple_value), expr.index)
        if not has_unknown_dim(kind):
            return expr if isinstance(expr, Var) else self.original_form(expr)
        assert kind is not None
        if isinstance(expr, Var):
            value = self._values.get(expr)
            # An annotation declares the type that readers see, so it hides that of the value.
            if value is not None and _is_refinable(value) and expr.type_annotation is None:
                return self.refined_form(value)
            return self._bind_variable(expr, expr, kind, expr)
        return _match_symbols(self.original_form(expr), kind, self._symbols)

    def _bind_variable(self, of: Var, value: RelayExpr, kind: Type, origin: Var) -> RelayExpr:
        """Bind the dimensions of a variable right after its own binding."""
        if isinstance(kind, TupleType):
            fields = [
                self._bind_variable(of, infer_local_type(TupleGetItem(value, n)), k, origin)
                for n, k in enumerate(kind.fields)
            ]
            return infer_local_type(Tuple(tuple(fields)))
        matched = _match_symbols(value, kind, self._symbols, origin.name_hint)
        if matched is value:
            return value
        # Everything after the binding reads the new name instead.
        name = Var(origin.name_hint, matched.checked_type)
        name.set_checked_type(matched.checked_type)
        self._bindings.setdefault(of, []).append((name, matched))
        return name

    def _wrap_bindings(self, variables: Sequence[Var], body: RelayExpr) -> RelayExpr:
        """Prepend the dimension bindings of variables to a scope."""
        named = [b for v in variables for b in self._bindings.pop(v, ())]
        return build_lets(named, self.original_form(body))

    def _visit_expr(self, expr: RelayExpr) -> None:
        match expr:
            case Call(op=Op()):
                self._refined_forms[expr] = self._rewrite_operator(expr)
            case Call(op=Function() as region) if is_compiler_region(region):
                self._refined_forms[expr] = self._rewrite_region(expr, region)
            case Tuple() | TupleGetItem():
                pass
            case Let():
                self._original_forms[expr] = self._rewrite_let(expr)
            case Function(params=params, body=body):
                self._original_forms[expr] = replace_children(
                    expr, {body: self._wrap_bindings(params, body)}
                )
            case Match():
                self._original_forms[expr] = self._rewrite_match(expr)
            case _:
                subexpressions = [*operands(expr), *bodies(expr)]
                self._original_forms[expr] = replace_children(
                    expr, {c: self.original_form(c) for c in subexpressions}
                )

    def _rewrite_let(self, let: Let) -> RelayExpr:
        value = self.original_form(let.value)
        body = self._wrap_bindings((let.var,), let.body)
        if value is let.value and body is let.body:
            return let
        rebuilt = Let(let.var, value, body, let.span)
        rebuilt.set_checked_type(let.checked_type)
        return rebuilt

    def _rewrite_match(self, expr: Match) -> RelayExpr:
        clauses = tuple(
            Clause(c.lhs, self._wrap_bindings(pattern_vars(c.lhs), c.rhs)) for c in expr.clauses
        )
        rebuilt = expr.with_fields(data=self.original_form(expr.data), clauses=clauses)
        rebuilt.set_checked_type(expr.checked_type)
        return rebuilt

    def _rewrite_region(self, call: Call, region: Function) -> RelayExpr:
        """Specialise an external compiler's region to the bound dimensions of its arguments."""
        args = tuple(map(self.refined_form, call.args))
        if not has_unknown_dim(call.checked_type):
            return replace_children(call, {arg: self.original_form(arg) for arg in call.args})
        # An external region is typed for the named dimensions of its arguments.
        specialized = specialize(region, [arg.checked_type for arg in args])
        called = Call(specialized, args, None, (), call.span)
        called.set_checked_type(specialized.body.checked_type)
        return called

    def _rewrite_operator(self, call: Call) -> RelayExpr:
        is_match = isinstance(call.attrs, MatchShapeAttrs)  # which names what it reads itself
        args = tuple(map(self.original_form if is_match else self.refined_form, call.args))
        refined = call
        if any(a is not b for a, b in zip(args, call.args, strict=True)):
            refined = Call(call.op, args, call.attrs, call.type_args, call.span)
            # Named dimensions of arguments may determine those of the result.
            infer_local_type(refined)
        assert isinstance(call.op, Op)
        definition = call.op.definition
        if not has_unknown_dim(refined.checked_type):
            return refined
        # The declaration cannot say the size; the padded operator returns it beside the data.
        if definition.padded is not None:
            return _slice_padded_result(refined, definition.padded, self._symbols)
        return _bind_result_dims(refined, self._symbols) if definition.dims is not None else refined


def is_compiler_region(function: RelayExpr) -> bool:
    """Return whether a callee is an inline region of an external compiler, whose result follows
    from its arguments.
    """
    return isinstance(function, Function) and function.attr("Compiler") is not None


def _is_refinable(value: RelayExpr) -> bool:
    """Return whether a value is an operator's or region's result, or a tuple or projection."""
    if isinstance(value, Call):
        return isinstance(value.op, Op) or is_compiler_region(value.op)
    return isinstance(value, (Tuple, TupleGetItem))


def _forget_symbols(value: RelayExpr, kind: Type) -> RelayExpr:
    """Return a value under its less specific type, by forget_shape."""
    if _is_same_type(value.checked_type, kind):
        return value
    if isinstance(kind, TupleType):
        fields = tuple(
            _forget_symbols(_tuple_field(value, n), k) for n, k in enumerate(kind.fields)
        )
        return infer_local_type(Tuple(fields))
    assert isinstance(kind, TensorType)
    return infer_local_type(forget_shape(value, kind.shape))


def _match_symbols(
    value: RelayExpr, kind: Type, symbols: _SymbolFactory, hint: str = "d"
) -> RelayExpr:
    """Bind the unknown dimensions of a value to fresh symbols, by match_shape."""
    if not has_unknown_dim(kind):
        return value
    if isinstance(kind, TupleType):
        fields = (
            _match_symbols(_tuple_field(value, n), k, symbols, hint)
            for n, k in enumerate(kind.fields)
        )
        return infer_local_type(Tuple(tuple(fields)))
    assert isinstance(kind, TensorType)
    shape = tuple(
        symbols.fresh_symbol(f"{hint}_{axis}") if is_unknown_dim(d) else d
        for axis, d in enumerate(kind.shape)
    )
    return infer_local_type(match_shape(value, shape).with_fields(span=value.span))


def _bind_result_dims(call: Call, fresh: _SymbolFactory) -> RelayExpr:
    """Bind the result dimensions of an operator that its shape function computes from arguments."""
    assert isinstance(call.op, Op)
    names = fresh.result_symbols(call)
    constants = _constant_dims(call)
    symbols = tuple(next(names) if d is None else d for d in constants)
    attrs = with_dim_symbols(call.attrs, symbols)
    # All dimensions are constants: nothing is to be bound at run time.
    if None not in constants:
        return infer_local_type(Call(call.op, call.args, attrs, call.type_args, call.span))
    *first, last = call.args
    # A zero marks a dimension that is constant and needs no binding.
    unknown = tuple(s if d is None else const(0) for s, d in zip(symbols, constants, strict=True))
    after = bind_dims(last, call.args, unknown, call.op.name, call.attrs)
    bound = Call(
        call.op,
        (*first, infer_local_type(after.with_fields(span=call.span))),
        attrs,
        call.type_args,
        call.span,
    )
    return infer_local_type(bound)


def _constant_dims(call: Call) -> list[PrimExpr | None]:
    """Return the result dimensions that follow from constant arguments, None for each other.

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
        """Fold a load from a constant buffer."""
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


def _slice_padded_result(call: Call, padded: str, fresh: _SymbolFactory) -> RelayExpr:
    """Call the padded form of an operator with data-dependent result size, and slice its result to
    the actual size.
    """
    assert isinstance(call.op, Op)
    # The padded result has a static shape: its size is an upper bound.
    largest = infer_local_type(Call(get(padded), call.args, call.attrs, (), call.span))
    kinds = largest.checked_type
    assert isinstance(kinds, TupleType)
    last = len(kinds.fields) - 1
    (number,) = _count_shape(kinds.fields[last])
    names = fresh.result_symbols(call)
    symbols = tuple(next(names) for _ in range(number))
    true = bind_dims(largest, (_tuple_field(largest, last),), symbols)
    bound = infer_local_type(true.with_fields(span=call.span))
    # One count names every unknown dimension of the result.
    remaining = iter(symbols * _num_unknown_dims(call.checked_type) if number == 1 else symbols)
    result = call.checked_type
    if isinstance(result, TupleType):
        fields = [
            _take_prefix(_tuple_field(bound, n), k, remaining) for n, k in enumerate(result.fields)
        ]
        return infer_local_type(Tuple(tuple(fields)))
    return _take_prefix(_tuple_field(bound, 0), result, remaining)


def _count_shape(kind: Type) -> tuple[int, ...]:
    assert isinstance(kind, TensorType)
    return as_ints(kind.shape)


def _take_prefix(value: RelayExpr, kind: Type, symbols: Iterator[PrimExpr]) -> RelayExpr:
    if not has_unknown_dim(kind):
        return value
    assert isinstance(kind, TensorType)
    return infer_local_type(prefix(value, _substitute_unknown(kind, symbols).shape))


def _bind_function(function: Function) -> Function:
    kinds = (e.checked_type_or_none() for e in evaluation_order(function.body))
    # Rewriting would only copy the function.
    if not any(map(has_unknown_dim, kinds)):
        return function
    return _DimensionBinder(function).run()


def _is_unknown_kernel(function: Function) -> bool:
    """Return whether a function is fused, for no external compiler, with unknown dimensions."""
    if not function.attr("Primitive") or function.attr("Compiler"):
        return False
    kinds = [p.checked_type for p in function.params]
    return any(map(has_unknown_dim, [*kinds, function.body.checked_type]))


def _unfuse_unknown_kernels(function: Function) -> Function:
    callees = (e.op for e in evaluation_order(function.body) if isinstance(e, Call))
    if not any(isinstance(f, Function) and _is_unknown_kernel(f) for f in callees):
        return function
    return lift_body_rewrite(lambda body: defuse(body, _is_unknown_kernel))(function)


@module_pass(name="BindDimensions", required=(MatchDeclaredShapes(),))
def _bind_dimensions(module: IRModule, context: PassContext) -> IRModule:
    defused = map_functions(module, _unfuse_unknown_kernels)
    if defused.functions != module.functions:
        module = InferType()(defused)
    bound = map_functions(module, _bind_function)
    return InferType()(bound) if bound.functions != module.functions else module


def BindDimensions() -> Pass:  # noqa: N802
    """Return a pass that binds unknown dimensions to symbols."""
    return _bind_dimensions
