"""Relay standard library: .rly files in `relay/library`, imported into modules.

module.import_from_std("nat.rly")
p = Prelude(module)                       # functions on lists, options and trees
p.map, p.mod.get_type("List")
p.get_global_var("tensor_array", "int64") # tensor arrays of a dtype, added when asked for
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib import resources

from ekiden.ir.expr import GlobalVar
from ekiden.ir.expr_text import format_shape
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, ExprLike, IntImm, convert
from ekiden.ir.type import GlobalTypeVar
from ekiden.relay.expr import Constructor
from ekiden.relay.parser import parse

LIBRARY_DEPENDENCIES = {
    "prelude.rly": (),
    "nat.rly": ("prelude.rly",),
    "gradient.rly": (),
    "core.rly": (),
}
"""Library files that each library file imports."""
_TENSOR_ARRAY = "tensor_array.rly"
_STATIC_TENSOR_ARRAY = "static_tensor_array.rly"
PRELUDE_FUNCTIONS = tuple(
    "id compose flip hd tl nth update map foldl foldr foldr1 concat filter zip rev map_accuml "
    "map_accumr unfoldl unfoldr sum length tmap size iterate option_map option_get".split()
)
"""Functions of the prelude, exposed as attributes of `Prelude`."""

Shape = Sequence[ExprLike]


def read_std(name: str) -> str:
    """Read a library file.

    Raises:
        KeyError: There is no such file; the message names all files.
    """
    if name not in (*LIBRARY_DEPENDENCIES, _TENSOR_ARRAY, _STATIC_TENSOR_ARRAY):
        raise KeyError(
            f"no file {name!r} in the standard library; there are {', '.join(LIBRARY_DEPENDENCIES)}"
        )
    return resources.files("ekiden.relay").joinpath("library", name).read_text(encoding="utf-8")


def import_from_std(module: IRModule, name: str) -> None:
    """Import a library file and its dependencies into a module, unless present."""
    text = read_std(name)
    for needed in LIBRARY_DEPENDENCIES.get(name, ()):
        import_from_std(module, needed)
    _add_definitions(module, text, name)


IRModule.library = staticmethod(import_from_std)


def _add_definitions(module: IRModule, text: str, name: str) -> None:
    """Add the definitions of a text, unless its first one is present."""
    first = re.search(r"^(?:def @|(?:extern )?type )(\w+)", text, re.MULTILINE)
    assert first is not None, f"{name} defines nothing"
    types = {t.name_hint for t in module.type_definitions}
    # A file is added as a whole: its first definition tells whether it is there.
    if first.group(1) in types or first.group(1) in module:
        return
    library = IRModule(None, module.type_definitions)
    for needed in PRELUDE_FUNCTIONS:
        if needed in module:
            library[module.get_global_var(needed)] = module[needed]
    module.update(parse(text, name, library))


class Prelude:
    """Module with the standard library, and its functions as attributes (TVM's name).

    Each function of the prelude is an attribute: its GlobalVar.
    """

    id: GlobalVar
    compose: GlobalVar
    flip: GlobalVar
    hd: GlobalVar
    tl: GlobalVar
    nth: GlobalVar
    update: GlobalVar
    map: GlobalVar
    foldl: GlobalVar
    foldr: GlobalVar
    foldr1: GlobalVar
    concat: GlobalVar
    filter: GlobalVar
    zip: GlobalVar
    rev: GlobalVar
    map_accuml: GlobalVar
    map_accumr: GlobalVar
    unfoldl: GlobalVar
    unfoldr: GlobalVar
    sum: GlobalVar
    length: GlobalVar
    tmap: GlobalVar
    size: GlobalVar
    iterate: GlobalVar
    option_map: GlobalVar
    option_get: GlobalVar

    def __init__(self, mod: IRModule | None = None) -> None:
        """Add the prelude to `mod`, or to a new module."""
        self.mod = mod if mod is not None else IRModule()
        import_from_std(self.mod, "prelude.rly")
        for name in PRELUDE_FUNCTIONS:
            setattr(self, name, self.mod.get_global_var(name))

    # Tensor arrays of one dtype and any shapes

    def get_name(self, canonical: str, dtype: str) -> str:
        """Return the name of a function for a dtype: `tensor_take` of float32 is
        `tensor_take_float32`.
        """
        return f"tensor_{dtype}_t" if canonical == "tensor_t" else f"{canonical}_{dtype}"

    def get_global_var(self, canonical: str, dtype: str) -> GlobalVar:
        """Return a tensor array function for a dtype.

        Raises:
            KeyError: There is no such function; the message names all functions.
        """
        self.need(dtype)
        return self.mod.get_global_var(self.get_name(canonical, dtype))

    def get_type(self, canonical: str, dtype: str) -> GlobalTypeVar:
        """Return the element type of tensor arrays of a dtype."""
        self.need(dtype)
        return self.mod.get_global_type_var(self.get_name(canonical, dtype))

    def get_ctor(self, ty_name: str, canonical: str, dtype: str) -> Constructor:
        """Return a constructor of a data type.

        Raises:
            KeyError: There is no such constructor.
        """
        return self._find_constructor(ty_name, self.get_name(canonical, dtype))

    def get_tensor_ctor(self, canonical: str, dtype: str) -> Constructor:
        """Return the constructor `tensor_nil`, `tensor0`, ... or `tensor6` of a dtype."""
        kind = self.get_type("tensor_t", dtype)
        return self.get_ctor(kind.name_hint, canonical, dtype)

    def need(self, dtype: str) -> None:
        """Import the tensor array library of a dtype, unless present."""
        # The file is written for float32; whole words, as float32x4 would be another type.
        text = re.sub(r"float32(?=_|\b)", dtype, read_std(_TENSOR_ARRAY))
        _add_definitions(self.mod, text, _TENSOR_ARRAY)

    def _find_constructor(self, kind: str, name: str) -> Constructor:
        constructors = [c for c in self.mod.get_type(kind)[1:] if isinstance(c, Constructor)]
        for constructor in constructors:
            if constructor.name_hint == name:
                return constructor
        names = ", ".join(c.name_hint for c in constructors)
        raise KeyError(f"type {kind}: no constructor {name!r}; there are {names}")

    # Tensor arrays of one dtype and shape

    def get_name_static(self, canonical: str, dtype: str, shape: Shape) -> str:
        """Return the name for a shape: `tensor_take` of float32, (2, ?) is
        `tensor_take_float32_2_any`.
        """
        shape_name = static_shape_name(dtype, shape)
        return (
            f"static_tensor_{shape_name}_t"
            if canonical == "tensor_t"
            else f"{canonical}_{shape_name}"
        )

    def get_global_var_static(self, canonical: str, dtype: str, shape: Shape) -> GlobalVar:
        """Return a function on static tensor arrays that StaticTensorArrayOps registered."""
        return self.mod.get_global_var(self.get_name_static(canonical, dtype, shape))

    def get_type_static(self, canonical: str, dtype: str, shape: Shape) -> GlobalTypeVar:
        """Return the type of the elements of static tensor arrays."""
        return self.mod.get_global_type_var(self.get_name_static(canonical, dtype, shape))

    def get_ctor_static(self, ty_name: str, name: str, dtype: str, shape: Shape) -> Constructor:
        """Return a constructor of a data type of static tensor arrays."""
        kind = self.get_name_static(ty_name, dtype, shape)
        return self._find_constructor(kind, self.get_name_static(name, dtype, shape))

    def get_tensor_ctor_static(self, name: str, dtype: str, shape: Shape) -> Constructor:
        """Return the constructor `tensor_nil` or `tensor_constructor`."""
        return self.get_ctor_static("tensor_t", name, dtype, shape)


def static_shape_name(dtype: str, shape: Shape) -> str:
    """Format a dtype and shape for a name, such as `float32_2_any` or `float32_scalar`."""
    dims = [convert(d, "int64") for d in shape]
    names = [str(d.value) if isinstance(d, IntImm) else "any" for d in dims]
    return "_".join((dtype, *(names or ["scalar"])))


class StaticTensorArrayOps:
    """Tensor array functions of one dtype and static shape; `register` adds them to the module."""

    def __init__(self, prelude: Prelude, dtype: str, shape: Shape) -> None:
        self.prelude = prelude
        self.dtype = dtype
        self.shape = tuple(shape)

    def get_name(self, canonical: str) -> str:
        """Return the name of a function or constructor for this dtype and shape."""
        return self.prelude.get_name_static(canonical, self.dtype, self.shape)

    def get_global_var(self, canonical: str) -> GlobalVar:
        """Return a function on these tensor arrays."""
        return self.prelude.get_global_var_static(canonical, self.dtype, self.shape)

    def get_type(self, canonical: str) -> GlobalTypeVar:
        """Return the type of elements."""
        return self.prelude.get_type_static(canonical, self.dtype, self.shape)

    def get_ctor(self, canonical: str) -> Constructor:
        """Return a constructor of the type of elements."""
        return self.prelude.get_tensor_ctor_static(canonical, self.dtype, self.shape)

    def register(self) -> None:
        """Register the types and functions, and those of the dtype for any shape, unless present.

        Programs look at results by both.
        """
        self.prelude.need(self.dtype)
        module = self.prelude.mod
        if self.get_name("tensor_array") not in module:
            text = "\n".join(self._expand_template())
            library = IRModule(None, module.type_definitions)
            for name in PRELUDE_FUNCTIONS:
                library[module.get_global_var(name)] = module[name]
            module.update(parse(text, _STATIC_TENSOR_ARRAY, library))

    def define_tensor_array_scatter(self, indices_shape: Shape, force_update: bool = False) -> None:
        """Register the tensor arrays.

        In TVM the function for a number of indices has to be defined; here the one that `register`
        adds takes any number.
        """
        self.register()

    def define_tensor_array_split(
        self, value_shape: Shape, lengths_shape: Shape, force_update: bool = False
    ) -> None:
        """Register the tensor arrays, whatever the shapes of values and lengths of a split."""
        self.register()

    def _derived_shapes(self) -> dict[str, Shape]:
        shapes: dict[str, Shape] = {"SELF": self.shape, "STACKED": (AnyDim(), *self.shape)}
        if self.shape:
            shapes |= {"PART": self.shape[1:], "TAKEN": (AnyDim(), *self.shape[1:])}
        return shapes

    def _expand_template(self) -> Iterator[str]:
        """Yield the template's lines expanded for this dtype and shape."""
        shapes = self._derived_shapes()
        words = {"DTYPE": self.dtype}
        for role, shape in shapes.items():
            words[role] = static_shape_name(self.dtype, shape)
            # Words of the template become texts; the parser reads the result like any file.
            text = format_shape(tuple(convert(d, "int64") for d in shape))
            words["SHAPE" if role == "SELF" else f"{role}_SHAPE"] = text
        # The longest word first: SHAPE is contained in others.
        pattern = re.compile(rf"(?<![A-Z])({'|'.join(sorted(words, key=len, reverse=True))})")
        defined = {t.name_hint for t in self.prelude.mod.type_definitions}
        is_left_out = False
        for line in read_std(_STATIC_TENSOR_ARRAY).split("\n"):
            if line.startswith("#if"):
                is_left_out = not self._includes_section(line, words, defined)
            elif line.startswith("#end"):
                is_left_out = False
            elif not is_left_out:
                yield pattern.sub(lambda matched: words[matched.group()], line)

    def _includes_section(self, line: str, words: dict[str, str], defined: set[str]) -> bool:
        """Return whether a conditional section (`#if rank`, `#if type PART`) is included."""
        _, what, *role = line.split()
        if what == "rank":
            return bool(self.shape)
        name = f"static_tensor_{words[role[0]]}_t" if role[0] in words else None
        if name is None or name in defined:
            return False
        defined.add(name)
        return True


__all__ = ["Prelude", "StaticTensorArrayOps", "import_from_std", "read_std"]
