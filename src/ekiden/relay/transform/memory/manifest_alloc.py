"""Make allocation explicit: every kernel writes to preallocated output tensors (destination-passing
style).

    let %y = fn (%p0, Primitive=1) { nn.relu(%p0) }(%x);
    ->  let %storage = memory.alloc_storage(size=40, alignment=64);
        let %y = memory.alloc_tensor(%storage, offset=0, shape=(1, 10), dtype="float32");
        let %_ = vm.invoke_tvm_op(fn ..., (%x,), (%y,));

Functions that only change a shape become vm.reshape_tensor. Sizes and shapes are expressions on the
symbols of the function's parameters. Storages and kernels have the device that the planned module
puts them on. Needs A-normal form and checked types.

After: kernels are calls for their effect on tensors that are bound before; each tensor begins a
storage of its own, of exactly its bytes. Later passes decide what shares memory, over this form. A
result without a name for one of its dimensions is an error here: BindDimensions gives them names.
"""

from __future__ import annotations

from collections.abc import Callable

from ekiden.arith import simplify
from ekiden.ir import dtype as dt
from ekiden.ir.expr import RelayExpr
from ekiden.ir.module import IRModule
from ekiden.ir.prim import AnyDim, PrimExpr, const
from ekiden.ir.span import Span
from ekiden.ir.transform import Pass, PassContext, module_pass
from ekiden.ir.type import StorageType, TensorType, TupleType, Type
from ekiden.relay.expr import Call, Function, Tuple, TupleGetItem, Var
from ekiden.relay.op.memory import alloc_storage, alloc_tensor
from ekiden.relay.op.vm import invoke_tvm_op, reshape_tensor
from ekiden.relay.transform.devices.device_domains import DeviceDomains
from ekiden.relay.transform.devices.plan_devices import device_table
from ekiden.relay.transform.language.let_chains import (
    LetBinding,
    LetChain,
    drop_bindings,
    map_chains,
)
from ekiden.relay.transform.language.scope_tree import (
    count_uses,
    lift_body_rewrite,
    map_functions,
)
from ekiden.runtime.errors import CompileError

STORAGE_ALIGNMENT_BYTES = 64

DeviceOfCall = Callable[[Call], int]


def size_in_bytes(kind: TensorType) -> PrimExpr:
    """Return a tensor's size in bytes as an expression over its dimensions."""
    size: PrimExpr = const(dt.itemsize(kind.dtype))
    for dim in kind.shape:
        size = size * dim
    return simplify(size)


def flatten_tensor_types(kind: Type) -> list[TensorType]:
    """Return the tensor types in a type, left to right."""
    if isinstance(kind, TensorType):
        return [kind]
    assert isinstance(kind, TupleType), f"a kernel cannot give a {type(kind).__name__}"
    return [t for f in kind.fields for t in flatten_tensor_types(f)]


def called_primitive(value: RelayExpr) -> Function | None:
    """Return the primitive function that a value calls, or None."""
    if isinstance(value, Call) and isinstance(value.op, Function) and value.op.attr("Primitive"):
        return value.op
    return None


def _check_static_rank(kind: TensorType, span: Span | None) -> None:
    if any(isinstance(d, AnyDim) for d in kind.shape):
        where = f" of {span}" if span else ""
        raise CompileError(
            f"allocating the result{where}: its shape depends on data, which is not supported yet"
        )


def _allocate(tensor: Var, kind: TensorType, device: int) -> list[LetBinding]:
    storage = Var("storage")
    storage.set_checked_type(StorageType())
    return [
        (storage, alloc_storage(size_in_bytes(kind), STORAGE_ALIGNMENT_BYTES, device=device)),
        (tensor, alloc_tensor(storage, const(0), kind.shape, kind.dtype)),
    ]


def _lower_binding(variable: Var, value: RelayExpr, device_of: DeviceOfCall) -> list[LetBinding]:
    function = called_primitive(value)
    if function is None:
        return [(variable, value)]
    assert isinstance(value, Call)
    kind = value.checked_type
    for result_type in flatten_tensor_types(kind):
        _check_static_rank(result_type, value.span)
    # A reshape is a view: it needs neither memory nor a kernel.
    if function.attr("relay.reshape_only"):
        assert isinstance(kind, TensorType)
        return [(variable, reshape_tensor(value.args[0], kind.shape))]
    device = device_of(value)
    single = isinstance(kind, TensorType)
    outputs = (
        [variable]
        if single
        else [_tensor_var(output_type) for output_type in flatten_tensor_types(kind)]
    )
    pairs = zip(outputs, flatten_tensor_types(kind), strict=True)
    allocations = [b for o, k in pairs for b in _allocate(o, k, device)]
    invoke = invoke_tvm_op(function, value.args, outputs, device).with_fields(span=value.span)
    # The variable itself is the output tensor, so nothing needs renaming.
    if single:
        return [*allocations, (Var("_"), invoke)]
    return [*allocations, (Var("_"), invoke), (variable, _pack_tuple(outputs, kind))]


def _tensor_var(kind: TensorType) -> Var:
    variable = Var("t")
    variable.set_checked_type(kind)
    return variable


def _pack_tuple(tensors: list[Var], kind: Type) -> RelayExpr:
    """Pack flat tensors into the nested tuple of a type."""
    remaining = iter(tensors)

    def build_tuple(at: Type) -> RelayExpr:
        """Build a value of the type from the remaining tensors."""
        return (
            Tuple(tuple(map(build_tuple, at.fields)))
            if isinstance(at, TupleType)
            else next(remaining)
        )

    return build_tuple(kind)


def _kernel_devices(module: IRModule) -> DeviceOfCall:
    """Return a function from a kernel call to the index of its device in the module's
    device table.
    """
    numbers = {
        virtual_device.device: index for index, virtual_device in enumerate(device_table(module))
    }
    # With one device there is nothing to infer.
    if len(numbers) == 1:
        return lambda call: 0
    domains = DeviceDomains(module)
    return lambda call: numbers[domains.kernel_device(call)]


def _forward_fields(chain: LetChain) -> tuple[LetChain, set[Var]]:
    """Replace projections of tuples that the chain builds by the fields themselves, which then live
    as long as they are read, not as long as the tuple. Return also the variables of these tuples.
    """
    packed: dict[RelayExpr, Tuple] = {}
    forwarded: set[Var] = set()
    bindings: list[tuple[Var, RelayExpr]] = []
    for variable, value in chain.bindings:
        if isinstance(value, Tuple) and all(isinstance(f, Var) for f in value.fields):
            packed[variable] = value
        if isinstance(value, TupleGetItem) and value.tuple_value in packed:
            assert isinstance(value.tuple_value, Var)
            forwarded.add(value.tuple_value)
            value = packed[value.tuple_value].fields[value.index]
        bindings.append((variable, value))
    return LetChain(bindings, chain.result), forwarded


def _drop_unused(body: RelayExpr, candidates: set[Var]) -> RelayExpr:
    """Drop the bindings of those of the variables that nothing in the body reads."""
    if not candidates:
        return body
    # Counted over the body at once: to walk what is nested in each chain, for each chain, would be
    # quadratic in the depth of nesting.
    unread = candidates - count_uses(body).keys()
    return drop_bindings(body, unread)


@module_pass(name="ManifestAlloc")
def _manifest_alloc(module: IRModule, context: PassContext) -> IRModule:
    device_of = _kernel_devices(module)

    def lower_body(body: RelayExpr) -> RelayExpr:
        """Lower the let chains of a body, and drop tuples whose fields were forwarded."""
        projected: set[Var] = set()

        def lower_chain(chain: LetChain, is_function_body: bool) -> LetChain:
            """Make the allocations of a chain explicit, and forward fields of its tuples."""
            bindings = [
                b for v, value in chain.bindings for b in _lower_binding(v, value, device_of)
            ]
            lowered, tuples = _forward_fields(LetChain(bindings, chain.result))
            projected.update(tuples)
            return lowered

        return _drop_unused(map_chains(body, lower_chain), projected)

    return map_functions(module, lift_body_rewrite(lower_body))


def ManifestAlloc() -> Pass:  # noqa: N802
    """Return a pass that makes allocations explicit (TVM's ManifestAlloc)."""
    return _manifest_alloc
