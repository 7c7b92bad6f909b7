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

_ADJOINT_HEADER = GlobalTypeVar("Adjoint", TypeKind.ADT_HANDLE)
_ELEMENT_TYPE_VAR = TypeVar("A")
NO_GRADIENT_CONSTRUCTOR = Constructor("NoGradient", (), _ADJOINT_HEADER)
GRADIENT_CONSTRUCTOR = Constructor("Gradient", (_ELEMENT_TYPE_VAR,), _ADJOINT_HEADER)
ADJOINT_TYPE_DATA = TypeData(
    _ADJOINT_HEADER, (_ELEMENT_TYPE_VAR,), (NO_GRADIENT_CONSTRUCTOR, GRADIENT_CONSTRUCTOR)
)

STANDARD_TYPE_DATA: Mapping[GlobalTypeVar, TypeData] = {_ADJOINT_HEADER: ADJOINT_TYPE_DATA}
"""Data types that programs may use without defining them."""


def adjoint_type(kind: Type) -> Type:
    """Return the type `Adjoint[kind]`."""
    return TypeCall(_ADJOINT_HEADER, (kind,))


def type_definition(module: IRModule, header: Type) -> TypeData | None:
    """Return the definition of a data type: the module's own, else the standard one, else None."""
    if not isinstance(header, GlobalTypeVar):
        return None
    # A module may define the type itself: its own definition comes first.
    data = module.type_definitions.get(header) or STANDARD_TYPE_DATA.get(header)
    return data if isinstance(data, TypeData) else None


__all__ = [
    "ADJOINT_TYPE_DATA",
    "GRADIENT_CONSTRUCTOR",
    "NO_GRADIENT_CONSTRUCTOR",
    "STANDARD_TYPE_DATA",
    "adjoint_type",
    "type_definition",
]
