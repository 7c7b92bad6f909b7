"""Specialise a Relay program to stated shapes of its inputs: `shape=` of `ekiden.compile`.

    specialize_input_shapes(module, {"x": (4, None)})
    def @main(%x: Tensor[(n, ?), float32]) { zeros(shape=[n], dtype="float32") }
    ->  def @main(%x: Tensor[(4, ?), float32]) { zeros(shape=[4], dtype="float32") }

A symbolic dimension is substituted in the whole function, in attributes and declared types too; an
unknown one is replaced in the parameter alone, and types are inferred from there. A dimension that
the program declares as a number keeps it: unlike in an exported model, other types and attributes
of a written program rely on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, cast

from ekiden.arith import prove_equal, simplify, substitute
from ekiden.frontend.common.import_result import ImportResult
from ekiden.frontend.common.options import Shapes, parse_shape_option
from ekiden.ir.expr_text import format_type
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, IntImm, PrimExpr, SizeVar, const
from ekiden.ir.prim import Var as Symbol
from ekiden.ir.type import TensorType
from ekiden.relay.expr import Function, Var
from ekiden.relay.transform.language.instantiate_dimensions import instantiate
from ekiden.relay.unify import size_vars
from ekiden.relay.visitor import bind
from ekiden.runtime.errors import ExpressionError, ImportModelError

__all__ = ["specialize_input_shapes"]

Constraints: TypeAlias = tuple[tuple[PrimExpr, str], ...]
"""(condition on symbolic dimensions, node that needs it)."""


def specialize_input_shapes(module: IRModule, shapes: Shapes) -> IRModule:
    """Return a module whose `main` has inputs of the stated shapes.

    Args:
        module: A Relay program with a function `main`.
        shapes: The shape of each input by name: a number fixes a dimension that is symbolic or
            unknown, a name makes it that symbol, None or -1 leaves it as declared.

    Raises ImportModelError naming the input and the dimension: no such input, no tensor, another
    rank, another number than is declared, two sizes for one symbol, a size beyond its bound, or one
    that a condition of the imported model excludes.
    """
    main = module["main"]
    assert isinstance(main, Function)
    imported = ImportResult.from_module(module)
    names = imported.input_names or tuple(p.name_hint for p in main.params)
    params = dict(zip(names, main.params, strict=False))
    bindings = _DimBindings(main)
    stated_shapes: dict[Var, _UserShape] = {}
    for name, shape in shapes.items():
        if name not in params:
            have = ", ".join(names) or "none"
            raise ImportModelError(f"shape of {name!r}: no such input; the inputs are: {have}")
        stated = _UserShape(name, params[name], parse_shape_option(name, shape))
        stated_shapes[params[name]] = stated
        bindings.bind(stated)
    try:
        specialized = cast(Function, instantiate(main, bindings.sizes))
        types = {p: bindings.specialize_type(stated) for p, stated in stated_shapes.items()}
    except ExpressionError as error:  # more elements than memory has addresses
        names_text = ", ".join(map(repr, shapes))
        raise ImportModelError(f"shape of {names_text}: {error}") from error
    new_params = {
        param: Var(param.name_hint, types[old], span=param.span)
        for old, param in zip(main.params, specialized.params, strict=True)
        if old in types
    }
    function = specialized.with_fields(
        params=tuple(new_params.get(p, p) for p in specialized.params),
        body=bind(specialized.body, new_params),
    )
    specialized_module = module.with_function("main", function)
    if imported.constraints is None:
        return specialized_module
    constraints = bindings.specialize_constraints(imported.constraints)
    return specialized_module.with_attr("constraints", constraints)


def _is_at_most(size: PrimExpr, upper: int) -> bool:
    """Return whether a number or a symbol is known to be at most `upper`."""
    if isinstance(size, IntImm):
        return size.value <= upper
    return isinstance(size, SizeVar) and size.upper is not None and size.upper <= upper


class _UserShape:
    """The shape that the user states for an input, beside the type that the program declares."""

    __slots__ = ("declared", "dims", "name")

    def __init__(self, name: str, param: Var, dims: Sequence[int | str | None]) -> None:
        declared = param.checked_type_or_none() or param.type_annotation
        if not isinstance(declared, TensorType):
            kind = "without a type" if declared is None else format_type(declared)
            raise ImportModelError(f"shape of {name!r}: a tensor expected, the input is {kind}")
        if len(dims) != len(declared.shape):
            raise ImportModelError(
                f"shape of {name!r}: {len(declared.shape)} dimensions expected, as in"
                f" {format_type(declared)}; got {len(dims)}"
            )
        self.name, self.declared, self.dims = name, declared, dims


class _DimBindings:
    """Sizes that stated shapes give to the symbolic dimensions of `main`."""

    def __init__(self, main: Function) -> None:
        declared = [p.checked_type_or_none() or p.type_annotation for p in main.params]
        self._symbols = {d.name: d for d in size_vars(t for t in declared if t is not None)}
        self.sizes: dict[Symbol, PrimExpr] = {}
        self._input_names: dict[Symbol, str] = {}
        """The input whose shape gave a symbol its size, for messages."""

    def bind(self, stated: _UserShape) -> None:
        """Bind the symbols that are dimensions by themselves; raise ImportModelError for a second
        size of one.
        """
        for declared_dim, dim in zip(stated.declared.shape, stated.dims, strict=True):
            if dim is None or not isinstance(declared_dim, SizeVar):
                continue
            size = self._user_dim(dim, declared_dim.upper)
            if declared_dim.upper is not None and not _is_at_most(size, declared_dim.upper):
                raise ImportModelError(
                    f"shape of {stated.name!r}: dimension {declared_dim.name!r} is at most"
                    f" {declared_dim.upper}, not {dim}"
                )
            previous = self.sizes.get(declared_dim, size)
            if previous is not size and not prove_equal(previous, size):
                raise ImportModelError(
                    f"shape of {stated.name!r}: dimension {declared_dim.name!r} cannot be {dim}:"
                    f" the shape of {self._input_names[declared_dim]!r} makes it {previous}"
                )
            if size is not declared_dim:
                self.sizes[declared_dim] = size
                self._input_names[declared_dim] = stated.name

    def _user_dim(self, dim: int | str, upper: int | None = None) -> PrimExpr:
        """Return a stated dimension; a name is the program's symbol where it has one, else a new
        symbol of at most `upper`.
        """
        if isinstance(dim, str):
            return self._symbols.setdefault(dim, SizeVar(dim, upper=upper))
        return const(dim)

    def specialize_type(self, stated: _UserShape) -> TensorType:
        """Return the type of an input: unknown dimensions are as stated, others must agree.

        Raises ImportModelError for a number that the declared dimension cannot be.
        """
        shape: list[PrimExpr] = []
        for axis, (declared_dim, dim) in enumerate(
            zip(stated.declared.shape, stated.dims, strict=True)
        ):
            if isinstance(declared_dim, AnyDim):
                shape.append(declared_dim if dim is None else self._user_dim(dim))
                continue
            specialized = simplify(substitute(declared_dim, self.sizes))
            if dim is not None and not prove_equal(specialized, self._user_dim(dim)):
                value = "" if specialized is declared_dim else f" = {specialized}"
                raise ImportModelError(
                    f"shape of {stated.name!r}: dimension {axis} is {declared_dim}{value} in"
                    f" {format_type(stated.declared)}, not {dim}"
                )
            shape.append(specialized)
        return TensorType(tuple(shape), stated.declared.dtype)

    def specialize_constraints(self, constraints: Constraints) -> Constraints:
        """Substitute the sizes in an imported model's conditions, and drop those that hold.

        Raises ImportModelError for one that a stated size breaks, naming its node.
        """
        remaining = []
        for condition, source in constraints:
            specialized = simplify(substitute(condition, self.sizes))
            if isinstance(specialized, IntImm):
                if not specialized.value:
                    raise ImportModelError(f"shape: {source} needs {condition}")
                continue
            remaining.append((specialized, source))
        return tuple(remaining)
