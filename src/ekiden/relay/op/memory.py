"""Memory dialect: explicit storage and tensor allocation.

Explicit storage, made by manifest_alloc. Sizes, offsets and shapes are expressions on symbols.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import MemoryAliasing, OpDef, get, register_op
from ekiden.ir.prim import PrimExpr
from ekiden.ir.type import StorageType, TensorType, TupleType, Type
from ekiden.relay.expr import Call, Expr


@node("relay.attrs.AllocStorageAttrs")
class AllocStorageAttrs(Attrs):
    """Attributes of memory.alloc_storage: size and alignment in bytes, arena flag, device.

    An `arena` holds nothing that outlives the run, so that the next run may have it again. `device`
    is a number of the module's table of devices, 0 the host.
    """

    size: PrimExpr
    alignment: int = 64
    arena: bool = False
    device: int = 0


@node("relay.attrs.AllocTensorAttrs")
class AllocTensorAttrs(Attrs):
    """Attributes of memory.alloc_tensor: byte offset in the storage, shape, dtype."""

    offset: PrimExpr
    shape: tuple[PrimExpr, ...]
    dtype: str


def _storage_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    return StorageType()


def _tensor_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    assert isinstance(attrs, AllocTensorAttrs)
    return TensorType(attrs.shape, attrs.dtype)


def unit_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    """Return the unit type () for any arguments."""
    return TupleType(())


register_op(
    OpDef(
        name="memory.alloc_storage",
        arguments=(),
        attrs=AllocStorageAttrs,
        relation=_storage_relation,
        result="a storage",
        stateful=True,
        description="A buffer of bytes.",
    )
)
register_op(
    OpDef(
        name="memory.alloc_tensor",
        memory=MemoryAliasing.MUST_ALIAS,
        arguments=("storage",),
        attrs=AllocTensorAttrs,
        relation=_tensor_relation,
        result="a tensor of `shape` and `dtype`",
        stateful=True,
        description="A view of a storage as a tensor.",
    )
)


@node("relay.attrs.OwnAttrs")
class OwnAttrs(Attrs):
    """Attributes of memory.own: the device's index in the module's table, 0 for the host."""

    device: int = 0


def _own_relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
    return types[0]


register_op(
    OpDef(
        name="memory.own",
        arguments=("data",),
        attrs=OwnAttrs,
        relation=_own_relation,
        result="a tensor like `data`",
        stateful=True,
        description="The tensor itself where nothing else refers to it, else a copy: it may be "
        "written.",
    )
)
register_op(
    OpDef(
        name="memory.kill",
        memory=MemoryAliasing.NO_ALIAS,
        arguments=("value",),
        relation=unit_relation,
        result="the empty tuple",
        stateful=True,
        description="Forget a variable, so that its storage can be reused.",
    )
)


def alloc_storage(
    size: PrimExpr, alignment: int = 64, arena: bool = False, device: int = 0
) -> Call:
    """Allocate a storage of `size` bytes."""
    return Call(get("memory.alloc_storage"), (), AllocStorageAttrs(size, alignment, arena, device))


def alloc_tensor(
    storage: Expr, offset: PrimExpr, shape: tuple[PrimExpr, ...], dtype: str = "float32"
) -> Call:
    """Allocate a tensor at byte `offset` of `storage`."""
    return Call(get("memory.alloc_tensor"), (storage,), AllocTensorAttrs(offset, shape, dtype))


def kill(value: Expr) -> Call:
    """End the lifetime of a variable."""
    return Call(get("memory.kill"), (value,))


def own(data: Expr, device: int = 0) -> Call:
    """Return `data` if it is uniquely referenced and on the device, else a copy there."""
    return Call(get("memory.own"), (data,), OwnAttrs(device))
