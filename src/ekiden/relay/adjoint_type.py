"""The `Adjoint` data type of programs that `transform.gradient` returns.

    type Adjoint[A] { NoGradient, Gradient(A), }

A cell `ref(Adjoint[Tensor[..]])` stands beside each tensor of a differentiated program; it is
NoGradient until a gradient arrives, so that no zeros are allocated and nothing is computed from
them. The type is known to every module: the gradient of a function without a module uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping

from ekiden.ir.module import IRModule
from ekiden.ir.type import GlobalTypeVar, Type, TypeCall, TypeKind, TypeVar
from ekiden.relay.expr import Constructor, TypeData

_HEADER = GlobalTypeVar("Adjoint", TypeKind.ADT_HANDLE)
_ELEMENT = TypeVar("A")
NO_GRADIENT = Constructor("NoGradient", (), _HEADER)
GRADIENT = Constructor("Gradient", (_ELEMENT,), _HEADER)
ADJOINT = TypeData(_HEADER, (_ELEMENT,), (NO_GRADIENT, GRADIENT))

STANDARD_TYPES: Mapping[GlobalTypeVar, TypeData] = {_HEADER: ADJOINT}
"""Data types that programs use without defining them."""


def adjoint_of(kind: Type) -> Type:
    """Return the type `Adjoint[kind]`."""
    return TypeCall(_HEADER, (kind,))


def definition(module: IRModule, header: Type) -> TypeData | None:
    """Return the definition of a data type: the module's, else the standard one, else None."""
    if not isinstance(header, GlobalTypeVar):
        return None
    # A module may define the type itself: its own definition comes first.
    data = module.type_definitions.get(header) or STANDARD_TYPES.get(header)
    return data if isinstance(data, TypeData) else None


__all__ = ["ADJOINT", "GRADIENT", "NO_GRADIENT", "STANDARD_TYPES", "adjoint_of", "definition"]
