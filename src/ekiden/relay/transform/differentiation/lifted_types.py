"""Types of a program under higher-order differentiation: each float tensor is paired with an
adjoint cell.

    Tensor[s, f32]             ->  (Tensor[s, f32], ref(Adjoint[Tensor[s, f32]]))
    Tensor[s, int32]           ->  itself: no gradient flows to integers
    fn (A, B) -> C             ->  fn (A', B', ref(fn () -> ())) -> C'
    (A, B), ref(A), List[A]    ->  (A', B'), ref(A'), List[A']
    Tree { Node(Tree, A) }     ->  Tree_grad { Node(Tree_grad, A') }    where A' is not A

The last parameter of a function is the tape: a reference to a function that propagates gradients
back through all that ran so far. A type variable stays, and stands for lifted types.

The scheme is that of Wang et al., "Demystifying differentiable programming: shift/reset the
penultimate backpropagator" (2019), without continuations: the tape holds what they would.
"""

from __future__ import annotations

from ekiden.ir.module import IRModule
from ekiden.ir.structural import structural_equal
from ekiden.ir.type import (
    FuncType,
    GlobalTypeVar,
    RelayRefType,
    TensorType,
    TupleType,
    Type,
    TypeCall,
)
from ekiden.relay.adjoint_type import ADJOINT_TYPE_DATA
from ekiden.relay.expr import Constructor, TypeData
from ekiden.relay.transform.language.unique_names import unique_name
from ekiden.relay.visitor import map_type, type_post_order

UNIT_TYPE = TupleType(())
BACK_PROPAGATOR_TYPE = FuncType((), UNIT_TYPE)
"""Type of a back-propagator: fn () -> ()."""
TAPE_TYPE = RelayRefType(BACK_PROPAGATOR_TYPE)
LIFTED_NAME_SUFFIX = "_grad"
"""Name suffix of lifted functions and data types, as in TVM."""


def is_float_tensor(kind: Type) -> bool:
    """Return whether a type is a floating-point tensor, to which gradients flow."""
    return isinstance(kind, TensorType) and "float" in kind.dtype


def is_tensor_tuple(kind: Type) -> bool:
    """Return whether a type is a tensor or a nested tuple of tensors."""
    return all(isinstance(t, (TensorType, TupleType)) for t in type_post_order(kind))


class LiftedTypes:
    """Lifted types and data type definitions of one module."""

    def __init__(self, module: IRModule) -> None:
        self._used_names = {h.name_hint for h in module.type_definitions}
        self.definitions = {
            h: d for h, d in module.type_definitions.items() if isinstance(d, TypeData)
        }
        self.adjoint = self._adjoint_definition()
        """Data type of adjoint cells' contents."""
        self.no_gradient, self.gradient = self.adjoint.constructors
        self.headers: dict[Type, GlobalTypeVar] = {}
        """Lifted headers by header of data types whose fields change."""
        self.constructors: dict[Constructor, Constructor] = {}
        self.data: dict[GlobalTypeVar, TypeData] = {}
        """Type definitions to add to the module."""
        self._lift_type_definitions()

    def _adjoint_definition(self) -> TypeData:
        """Return the standard adjoint type, renamed where the module has another type of
        that name.
        """
        adjoint_definition = self.definitions.get(ADJOINT_TYPE_DATA.header)
        if adjoint_definition is None or structural_equal(adjoint_definition, ADJOINT_TYPE_DATA):
            return adjoint_definition or ADJOINT_TYPE_DATA
        header = GlobalTypeVar(unique_name(ADJOINT_TYPE_DATA.header.name_hint, self._used_names))
        own_constructors = [
            Constructor(c.name_hint, c.inputs, header) for c in ADJOINT_TYPE_DATA.constructors
        ]
        return TypeData(header, ADJOINT_TYPE_DATA.type_vars, tuple(own_constructors))

    def _lift_type_definitions(self) -> None:
        changing: set[Type] = set()
        before = -1
        # Data types may refer to one another: repeat until nothing is added.
        while len(changing) > before:
            before = len(changing)
            changing |= {
                h for h, d in self.definitions.items() if self._contains_lifted_type(d, changing)
            }
        # All new headers exist before any field is lifted, as fields may name any of them.
        for header in self.definitions:
            if header in changing:
                name = unique_name(header.name_hint + LIFTED_NAME_SUFFIX, self._used_names)
                self.headers[header] = GlobalTypeVar(name)
        for old, new in self.headers.items():
            data = self.definitions[old]  # type: ignore[index]
            fields = [tuple(map(self.lift, c.inputs)) for c in data.constructors]
            pairs = list(zip(data.constructors, fields, strict=True))
            lifted = tuple(
                Constructor(c.name_hint + LIFTED_NAME_SUFFIX, f, new, c.tag) for c, f in pairs
            )
            self.constructors.update(zip(data.constructors, lifted, strict=True))
            self.data[new] = TypeData(new, data.type_vars, lifted)
        self.data[self.adjoint.header] = self.adjoint

    @staticmethod
    def _contains_lifted_type(data: TypeData, changing: set[Type]) -> bool:
        components = (
            t for c in data.constructors for field in c.inputs for t in type_post_order(field)
        )
        return any(
            isinstance(t, FuncType) or is_float_tensor(t) or t in changing for t in components
        )

    def lift(self, kind: Type) -> Type:
        """Return the lifted form of a type."""
        return map_type(kind, self._lift_component)

    def _lift_component(self, kind: Type) -> Type:
        match kind:
            case TensorType() if is_float_tensor(kind):
                return TupleType((kind, self.cell_type(kind)))
            case FuncType(arg_types=arguments, ret_type=result, type_params=params):
                return FuncType((*arguments, TAPE_TYPE), result, params)
            case GlobalTypeVar():
                return self.headers.get(kind, kind)
        return kind

    def cell_type(self, kind: Type) -> RelayRefType:
        """Return the type of a tensor's adjoint cell."""
        return RelayRefType(TypeCall(self.adjoint.header, (kind,)))

    def lifted_constructor(self, old: Constructor) -> Constructor:
        """Return the constructor of the lifted data type."""
        return self.constructors.get(old, old)

    def is_lifted(self, kind: Type) -> bool:
        """Return whether lifting changes a type."""
        return self.lift(kind) != kind
