"""Unification of Relay types, with holes, symbolic dimensions and polymorphic instantiation.

    unify(?h, T)  =  T, and ?h := T          unless T contains ?h (the occurs check)
    unify(Tensor[(a, ..), t], Tensor[(b, ..), t])  =  Tensor[(unify_dim(a, b), ..), t]

`unify` is for what must be one type, `join` for what is one of two: the branches of an If may
differ in a dimension, which is `?` behind it. Chains of solved holes are shortened as they are
followed, as in union-find.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ekiden.arith import prove_equal, simplify, substitute
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, Var
from ekiden.ir.type import (
    FuncType,
    IncompleteType,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
    TypeVar,
)
from ekiden.relay.visitor import map_type, type_post_order

Dims = Mapping[Var, PrimExpr]
Type.prover = staticmethod(prove_equal)


class MismatchError(Exception):
    """Mismatch of two types; the caller adds the location. The text, if any, is the reason."""


def size_vars(kinds: Iterable[Type]) -> list[SizeVar]:
    """Return the symbolic dimensions that occur by themselves in tensor shapes, in order."""
    dims: dict[SizeVar, None] = {}
    for kind in kinds:
        for node in type_post_order(kind):
            if isinstance(node, TensorType):
                dims.update((d, None) for d in node.shape if isinstance(d, SizeVar))
    return list(dims)


def substitute_dims(kind: Type, dims: Dims) -> Type:
    """Substitute symbolic dimensions in a type, and simplify."""
    if not dims:
        return kind

    def replace(at: Type) -> Type:
        """Substitute in a tensor type; return the same object if nothing changed."""
        if not isinstance(at, TensorType):
            return at
        shape = tuple(
            d if isinstance(d, IntImm) else simplify(substitute(d, dims)) for d in at.shape
        )
        return (
            at
            if all(a is b for a, b in zip(shape, at.shape, strict=True))
            else TensorType(shape, at.dtype)
        )

    return map_type(kind, replace)


def unify_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Unify two dimensions: their common value, or `?` if one is unknown.

    Of two compound expressions that cannot be decided, the first is returned: the run time checks
    them.

    Raises:
        MismatchError: The dimensions are known to differ: numbers, two names (each stands for any
            size), or expressions whose difference is a number other than 0.
    """
    if a is b or isinstance(a, AnyDim):
        return a
    if isinstance(b, AnyDim):
        return b
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        if a.value != b.value:
            raise MismatchError
        return a
    # n + n and 2 * n are one size.
    if prove_equal(a, b):
        return a
    # Names stand for any size, so two of them differ for some; a known difference decides compound
    # ones.
    if (isinstance(a, (IntImm, Var)) and isinstance(b, (IntImm, Var))) or isinstance(
        simplify(a - b), IntImm
    ):
        raise MismatchError
    return a


def join_dim(a: PrimExpr, b: PrimExpr) -> PrimExpr:
    """Join two dimensions: their common value, else `?`.

    Raises:
        MismatchError: They are different numbers.
    """
    if a is b or isinstance(a, AnyDim):
        return a
    if isinstance(a, IntImm) and isinstance(b, IntImm):
        return unify_dim(a, b)
    # Each branch may be taken: what holds for one alone is not known of the result.
    return a if not isinstance(b, AnyDim) and prove_equal(a, b) else AnyDim()


class Unifier:
    """Substitution of type holes (IncompleteType), extended by `unify`."""

    def __init__(self) -> None:
        self.solved: dict[IncompleteType, Type] = {}
        self.has_holes = False
        self._combine_dims = unify_dim

    def fresh_hole(self) -> IncompleteType:
        """Return a fresh hole."""
        self.has_holes = True
        return IncompleteType()

    def follow_holes(self, kind: Type) -> Type:
        """Follow solved holes at the top of a type.

        The holes that were followed then lead directly to it.
        """
        passed: list[IncompleteType] = []
        while isinstance(kind, IncompleteType):
            solution = self.solved.get(kind)
            if solution is None:
                break
            passed.append(kind)
            kind = solution
        # Paths are compressed, as in union-find.
        for hole in passed[:-1]:
            self.solved[hole] = kind
        return kind

    def resolve(self, kind: Type) -> Type:
        """Substitute all solved holes in a type."""
        if not self.has_holes or type(kind) is TensorType:
            return kind

        def replace(at: Type) -> Type:
            """Return a hole's resolved solution."""
            if isinstance(at, IncompleteType):
                solution = self.follow_holes(at)
                return solution if solution is at else self.resolve(solution)
            return at

        return map_type(kind, replace)

    def is_open(self, kind: Type) -> bool:
        """Return whether a type contains unsolved holes."""
        # Most programs have no hole, and pay for none.
        if not self.has_holes or type(kind) is TensorType:
            return False
        return any(isinstance(t, IncompleteType) for t in type_post_order(self.resolve(kind)))

    def unify(self, a: Type, b: Type) -> Type:
        """Unify two types, and return the common type. Recursion is over the depth of types only.

        Raises:
            MismatchError: The types do not agree.
        """
        a, b = self.follow_holes(a), self.follow_holes(b)
        if a is b:
            return a
        if isinstance(a, IncompleteType):
            return self._solve_hole(a, b)
        if isinstance(b, IncompleteType):
            return self._solve_hole(b, a)
        match a, b:
            case TensorType(), TensorType():
                return self._unify_tensors(a, b)
            case TupleType(fields=xs), TupleType(fields=ys) if len(xs) == len(ys):
                return TupleType(self._unify_all(xs, ys))
            case FuncType(), FuncType() if len(a.arg_types) == len(b.arg_types):
                return self._unify_functions(a, b)
            case TypeCall(func=f, args=xs), TypeCall(func=g, args=ys) if len(xs) == len(ys):
                return TypeCall(self.unify(f, g), self._unify_all(xs, ys))
            case RelayRefType(value=x), RelayRefType(value=y):
                return RelayRefType(self.unify(x, y))
        # Types without fields have one value.
        if type(a) is type(b) and not a.__slots__:
            return a
        raise MismatchError

    def join(self, a: Type, b: Type) -> Type:
        """Join the types of two alternatives (branches).

        It is as `unify`, but dimensions that are not known to be equal become `?`.
        """
        # For the parts of the types too, down to their tensors.
        self._combine_dims = join_dim
        try:
            return self.unify(a, b)
        finally:
            self._combine_dims = unify_dim

    def _unify_all(self, xs: tuple[Type, ...], ys: tuple[Type, ...]) -> tuple[Type, ...]:
        return tuple(self.unify(x, y) for x, y in zip(xs, ys, strict=True))

    def _unify_tensors(self, a: TensorType, b: TensorType) -> TensorType:
        if a.dtype != b.dtype or len(a.shape) != len(b.shape):
            raise MismatchError
        shape = tuple(map(self._combine_dims, a.shape, b.shape))
        return (
            a
            if all(x is y for x, y in zip(shape, a.shape, strict=True))
            else TensorType(shape, a.dtype)
        )

    def _unify_functions(self, a: FuncType, b: FuncType) -> FuncType:
        """Unify two function types.

        A polymorphic one beside one that is not is taken for one of its uses.
        """
        if a.type_constraints or b.type_constraints:
            raise MismatchError("relations of function types are not solved")
        if len(a.type_params) != len(b.type_params):
            if a.type_params and b.type_params:
                raise MismatchError
            # A polymorphic function is compared with a plain one at one instance of its parameters.
            a, b = self._instantiate_fresh(a), self._instantiate_fresh(b)
        if a.type_params:
            # Up to the names of type parameters.
            renamed = dict(zip(b.type_params, a.type_params, strict=True))
            b = FuncType(
                tuple(_substitute_type_vars(t, renamed) for t in b.arg_types),
                _substitute_type_vars(b.ret_type, renamed),
                a.type_params,
            )
        return FuncType(
            self._unify_all(a.arg_types, b.arg_types),
            self.unify(a.ret_type, b.ret_type),
            a.type_params,
        )

    def _instantiate_fresh(self, kind: FuncType) -> FuncType:
        return self.instantiate(kind, tuple(self.fresh_hole() for _ in kind.type_params))

    def _solve_hole(self, hole: IncompleteType, kind: Type) -> Type:
        # With solved holes replaced: the occurs check must see what they stand for.
        resolved = self.resolve(kind)
        # The occurs check: no type is infinite.
        if any(t is hole for t in type_post_order(resolved)):
            raise MismatchError("the type would contain itself")
        self.solved[hole] = resolved
        return resolved

    def instantiate(self, kind: FuncType, type_args: tuple[Type, ...]) -> FuncType:
        """Instantiate a polymorphic function type with `type_args`."""
        if not kind.type_params:
            return kind
        new: dict[TypeVar, Type] = dict(zip(kind.type_params, type_args, strict=True))
        return FuncType(
            tuple(_substitute_type_vars(t, new) for t in kind.arg_types),
            _substitute_type_vars(kind.ret_type, new),
        )


def _substitute_type_vars(kind: Type, new: Mapping[TypeVar, Type]) -> Type:
    return map_type(kind, lambda t: new.get(t, t) if isinstance(t, TypeVar) else t)


def match_dims(param: Type, arg: Type, flexible: set[SizeVar], dims: dict[Var, PrimExpr]) -> None:
    """Bind the flexible symbolic dimensions of a parameter type to an argument type's
    dimensions.
    """
    if isinstance(param, TensorType) and isinstance(arg, TensorType):
        if len(param.shape) == len(arg.shape):
            for p, a in zip(param.shape, arg.shape, strict=True):
                if (
                    isinstance(p, SizeVar)
                    and p in flexible
                    and (p not in dims or isinstance(dims[p], AnyDim))
                ):
                    dims[p] = a
    elif isinstance(param, TupleType) and isinstance(arg, TupleType):
        for x, y in zip(param.fields, arg.fields, strict=False):
            match_dims(x, y, flexible, dims)
