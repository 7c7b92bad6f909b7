"""The compiler of one function: from A-normal form with explicit memory to instructions.

Each value gets a register of its own; register_allocation.py makes few of them. The tables of
an executable that all its functions share (`ProgramTables`) are made before, by compile.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import TypeAlias

import numpy as np

from ekiden.backend.kernels.lower import index_check_names
from ekiden.backend.vm.bytecode_emitter import ScopeIterator, emit_scope
from ekiden.backend.vm.constant_pool import ConstantPool
from ekiden.backend.vm.control_flow import ChoiceEmitter, ValueParts
from ekiden.backend.vm.dim_plan import DimPlan, DimStage, constant_values, is_static
from ekiden.backend.vm.primitive_table import HOST_DEVICE_INDEX
from ekiden.backend.vm.register_allocation import allocate_registers
from ekiden.backend.vm.stage_kernels import entry_sources, stage_arguments
from ekiden.backend.vm.write_executable import VMFunction
from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.node import Node, node_fields
from ekiden.ir.op import OPS, Array, Op
from ekiden.ir.prim import IntImm, PrimExpr
from ekiden.ir.type import GlobalTypeVar
from ekiden.relay.expr import (
    Call,
    Constant,
    ConstantData,
    Constructor,
    Function,
    If,
    Match,
    RefCreate,
    RefRead,
    RefWrite,
    Tuple,
    TupleGetItem,
    Var,
)
from ekiden.relay.op.annotation import DeviceCopyAttrs
from ekiden.relay.op.memory import AllocStorageAttrs, AllocTensorAttrs, OwnAttrs
from ekiden.relay.op.vm import InvokeAttrs, ReshapeTensorAttrs
from ekiden.relay.transform.language.let_chains import parse_let_chain
from ekiden.runtime import Device
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import VirtualDevice
from ekiden.target.virtual_device import PARAM_DEVICES_ATTR

_Closure: TypeAlias = tuple[int, tuple[int, ...]]
"""Function number and registers of the captured values."""


@dataclass(slots=True)
class ProgramTables:
    """Tables shared by all functions of an executable: function, primitive and device numbers, and
    the constant pool.
    """

    functions: dict[str, int]
    closures: set[str]
    types: Mapping[GlobalTypeVar, Node]
    devices: dict[Device, int]
    """Number of each device in the table; the host is 0."""
    constants: ConstantPool
    primitives: dict[tuple[Function, int], int] = field(default_factory=dict)
    """Number of each fused function on its device."""
    shape_functions: dict[DimStage, int] = field(default_factory=dict)
    host_functions: dict[str, int] = field(default_factory=dict)
    load_time_primitives: dict[int, int] = field(default_factory=dict)
    """Primitive that computes each load-time constant, by array identity."""
    derived_constants: dict[int, tuple[int, tuple[int, ...]]] = field(default_factory=dict)
    """Derived constants: the primitive and its operand constants, which precede them."""

    def constant_number(self, data: Array, device: int) -> int:
        """Return the number of a constant. Constants computed at load time are computed on the host
        only.

        Sources stand before what is made of them, so that the loader makes them in order; a chain
        of any length is walked with a list.
        """
        if id(data) not in self.load_time_primitives or len(self.devices) > 1:
            return self.constants.intern(data, device)
        waiting = [data]
        while waiting:
            last = waiting[-1]
            source = last.source if isinstance(last, ConstantData) else None
            assert isinstance(source, Call)
            inputs = [a.data for a in source.args if isinstance(a, Constant)]
            numbers = [
                self.constants.intern(a, HOST_DEVICE_INDEX, id(a) in self.load_time_primitives)
                for a in inputs
            ]
            missing = [
                a
                for a, n in zip(inputs, numbers, strict=True)
                if id(a) in self.load_time_primitives and n not in self.derived_constants
            ]
            if missing:
                waiting.extend(missing)
                continue
            number = self.constants.intern(last, HOST_DEVICE_INDEX, is_made=True)
            self.derived_constants.setdefault(
                number, (self.load_time_primitives[id(last)], tuple(numbers))
            )
            waiting.pop()
        return self.constants.intern(data, HOST_DEVICE_INDEX, is_made=True)


class FunctionCompiler(ChoiceEmitter):
    """Compiler of one function to bytecode, in one walk over its bindings.

    Each value gets a register that is written once (twice and more for the result of a choice), so
    that what follows can reason about lifetimes without data flow. Nothing is decided here that a
    register or an address depends on: sizes come from vectors, addresses from arenas, registers
    from `allocate`.
    """

    def __init__(self, program: ProgramTables, plan: DimPlan) -> None:
        function = plan.function
        super().__init__(len(function.params))
        self.program = program
        self.types = program.types
        self.plan = plan
        self.name = plan.name
        self.function = function
        self.registers = {p: i for i, p in enumerate(function.params)}
        self.closures: dict[RelayExpr, _Closure] = {}
        """Statically known closures, by variable."""
        self.vectors: dict[DimStage, int] = {}
        """Register of each stage's size vector."""

    def compile(self) -> VMFunction:
        """Compile the whole function."""
        if self.plan.entry.dims.exprs:
            entry_tensors = entry_sources(self.plan).tensors
            held: ValueParts = {(i,): i for i in range(len(self.function.params))}
            self._emit_dim_vector(
                self.plan.entry,
                [self._component_register(source.path, held) for source in entry_tensors],
            )
        emit_scope(self._emit_let_chain(self.function.body, None))
        params = tuple(p.name_hint for p in self.function.params)
        count, code = allocate_registers(self.resolve_labels(), len(params))
        is_open = self.name not in self.program.closures
        types = tuple(p.checked_type for p in self.function.params) if is_open else ()
        return VMFunction(self.name, params, count, code, types)

    def _emit_dim_vector(self, stage: DimStage, tensors: Sequence[int]) -> None:
        """Emit the computation of a stage's size vector from tensors and earlier vectors."""
        length = len(stage.dims.exprs)
        size = self._emit_load_int(8 * length)
        storage = self.emit_into(
            "AllocStorage", size=size, size_index=0, alignment=64, device=HOST_DEVICE_INDEX
        )
        vector = self.emit_into(
            "AllocTensor", storage=storage, offset=0, dtype="int64", shape=(length,)
        )
        args = (*tensors, *(self.vectors[s] for s in stage.earlier_vectors), vector)
        index = self.program.shape_functions[stage]
        self.emit("InvokePacked", packed_index=index, output_size=1, args=args)
        self.vectors[stage] = vector

    def _emit_stage_vector(self, stage: DimStage | None) -> None:
        """Emit the size vector of a stage after the entry, if it is used."""
        if stage is None or not stage.dims.exprs:
            return
        arguments = stage_arguments(stage)
        tensors = [
            self._component_register(
                (0, *argument.path), {(0,): self._atom_register(argument.value)}
            )
            for argument in arguments
        ]
        self._emit_dim_vector(stage, tensors)

    def _emit_let_chain(self, body: RelayExpr, to: int | None) -> ScopeIterator:
        """Emit a let-chain whose result goes to a register (None: it is the result of the
        function).
        """
        self._emit_stage_vector(self.plan.before.get(body))
        chain = parse_let_chain(body)
        assert chain.result is not None
        last = chain.tail_binding_index()
        for variable, value in chain.bindings[:last]:
            self.source_node = str(value.span or "")
            if isinstance(value, (If, Match)):
                self.registers[variable] = self.new_register()
                yield self._emit_branches(value, self.registers[variable])
            else:
                self.registers[variable] = self._emit_value(value)
                if (closure := self._known_closure(value)) is not None:
                    self.closures[variable] = closure
            self._emit_stage_vector(self.plan.after.get(variable))
        result = chain.result if last == len(chain.bindings) else chain.bindings[last][1]
        if result is not chain.result:
            self.source_node = str(result.span or "")
        if isinstance(result, (If, Match)):
            yield self._emit_branches(result, to)
        else:
            self._emit_result(result, to)

    def _emit_branches(self, choice: If | Match, to: int | None) -> ScopeIterator:
        return self._emit_if(choice, to) if isinstance(choice, If) else self._emit_match(choice, to)

    def _emit_result(self, value: RelayExpr, to: int | None) -> None:
        """Emit the end of a scope, which stores or returns its result. A call in tail position
        reuses the frame, so that recursion of any depth needs one.
        """
        if to is None and self._is_program_call(value):
            assert isinstance(value, Call)
            self._emit_function_call(value, None)
            return
        register = self._atom_register(value)
        if to is None:
            self.emit("Ret", src=register)
        else:
            self.emit("Move", dst=to, src=register)

    def _is_program_call(self, value: RelayExpr) -> bool:
        """Return whether a value is the result of a function of the program."""
        is_call = isinstance(value, Call) and not isinstance(value.op, (Op, Constructor))
        return is_call and self._known_closure(value) is None

    def _emit_value(self, value: RelayExpr) -> int:
        """Emit the instructions that compute a value and return its register."""
        match value:
            case Var():
                return self._emit_alias(value)
            case Constant(data=data):
                return self._emit_load_constant(data)
            case Tuple(fields=fields):
                return self._emit_alloc_adt(0, fields)
            case TupleGetItem(tuple_value=of, index=index):
                return self.emit_into("GetField", object=self._atom_register(of), index=index)
            case GlobalVar(name_hint=name):
                return self.emit_into("AllocClosure", func=self.program.functions[name], free=())
            case Call():
                return self._emit_call(value)
            case RefCreate(value=held):
                return self.emit_into("AllocRef", value=self._atom_register(held))
            case RefRead(ref=ref):
                return self.emit_into("ReadRef", ref=self._atom_register(ref))
            case RefWrite(ref=ref, value=held):
                self.emit("WriteRef", ref=self._atom_register(ref), value=self._atom_register(held))
                return self._emit_alloc_adt(0, ())
            case _:
                raise InternalError(
                    f"VM compiler: a {type(value).__name__} is not in A-normal form"
                )

    def _emit_alias(self, variable: Var) -> int:
        if variable not in self.registers:
            raise InternalError(
                f"VM compiler: variable %{variable.name_hint} has no register in @{self.name}"
            )
        return self.emit_into("Move", src=self.registers[variable])

    def _atom_register(self, expr: RelayExpr) -> int:
        """Return the register of an argument: a variable's own, without a copy."""
        return self.registers[expr] if expr in self.registers else self._emit_value(expr)

    def _atom_registers(self, exprs: tuple[RelayExpr, ...]) -> tuple[int, ...]:
        return tuple(map(self._atom_register, exprs))

    def _emit_load_constant(self, data: Array, device: int = HOST_DEVICE_INDEX) -> int:
        return self.emit_into("LoadConst", const_index=self.program.constant_number(data, device))

    def _emit_load_int(self, value: int) -> int:
        return self.emit_into("LoadConsti", value=value)

    def _emit_alloc_adt(self, tag: int, fields: tuple[RelayExpr, ...]) -> int:
        return self.emit_into("AllocADT", tag=tag, fields=self._atom_registers(fields))

    def _emit_call(self, call: Call) -> int:
        match call.op:
            case Op(name=name):
                return self._emit_operator(name, call)
            case Constructor(tag=tag):
                return self._emit_alloc_adt(tag, call.args)
            case _ if (closure := self._known_closure(call)) is not None:
                return self.emit_into("AllocClosure", func=closure[0], free=closure[1])
            case _:
                result = self.new_register()
                self._emit_function_call(call, result)
                return result

    def _known_closure(self, value: RelayExpr) -> _Closure | None:
        """Return the function and captured values of a value that is statically known to be a
        closure; it is called directly, without allocating a closure object in each iteration.
        """
        match value:
            case Var() if value in self.closures:
                return self.closures[value]
            case GlobalVar(name_hint=name) if name not in self.program.closures:
                return self.program.functions[name], ()
            case Call(op=GlobalVar(name_hint=name), args=args) if name in self.program.closures:
                return self.program.functions[name], self._atom_registers(args)
            case _:
                return None

    def _emit_function_call(self, call: Call, to: int | None) -> None:
        """Emit a call of a function of the program, without a closure object where the function is
        known.
        """
        dst = {} if to is None else {"dst": to}
        tail = "Tail" if to is None else ""
        args = self._atom_registers(call.args)
        if (closure := self._known_closure(call.op)) is not None:
            self.emit(f"Invoke{tail}", **dst, func=closure[0], args=(*closure[1], *args))
        else:
            self.emit(
                f"InvokeClosure{tail}", **dst, closure=self._atom_register(call.op), args=args
            )

    def _emit_operator(self, name: str, call: Call) -> int:
        match name, call.attrs:
            case "memory.alloc_storage", AllocStorageAttrs(
                size=size, alignment=alignment, arena=arena, device=device
            ):
                register, index = self._integer_element(size)
                return self.emit_into(
                    "AllocArena" if arena else "AllocStorage",
                    size=register,
                    size_index=index,
                    alignment=alignment,
                    device=device,
                )
            case "memory.alloc_tensor", AllocTensorAttrs():
                return self._emit_alloc_tensor(self._atom_register(call.args[0]), call.attrs)
            case "memory.own", OwnAttrs(device=device):
                return self.emit_into(
                    "Own", tensor=self._atom_register(call.args[0]), device=device
                )
            case "vm.reshape_tensor", ReshapeTensorAttrs(shape=shape):
                register, index = self._shape_element(shape)
                data = self._atom_register(call.args[0])
                return self.emit_into(
                    "ReshapeTensor", tensor=data, shape=register, shape_index=index, ndim=len(shape)
                )
            case "vm.match_shape" | "vm.forget_shape" | "vm.bind_dims", _:
                return self.emit_into("Move", src=self._atom_register(call.args[0]))
            case "vm.shape_of" | "shape_of", _:
                return self.emit_into("ShapeOf", tensor=self._atom_register(call.args[0]))
            case "vm.invoke_tvm_op", _:
                return self._emit_invoke_kernel(call)
            case "device_copy", DeviceCopyAttrs():
                return self._emit_device_copy(call.args[0], call.attrs)
            case "memory.kill", _:
                return -1  # register_allocation.py knows when values die
            case _ if OPS[name].host:
                return self._emit_host_call(OPS[name].host, call)
            case _:
                where = f" ({call.span})" if call.span else ""
                raise CompileError(
                    f"{name}{where}: the operator has neither a kernel nor an instruction"
                )

    def _emit_device_copy(self, value: RelayExpr, attrs: DeviceCopyAttrs) -> int:
        """Emit a copy to another device; of a constant, load it there."""
        source, target = attrs.src_virtual_device.device, attrs.dst_virtual_device.device
        to = self.program.devices[target]
        if isinstance(value, Constant):
            return self._emit_load_constant(value.data, to)
        return self.emit_into(
            "DeviceCopy",
            src=self._atom_register(value),
            dst_device=to,
            src_device=self.program.devices[source],
        )

    def _integer_element(self, value: PrimExpr) -> tuple[int, int]:
        """Return (register, element) of an integer."""
        if isinstance(value, IntImm):
            return self._emit_load_int(value.value), 0
        return self._vector_element((value,))

    def _vector_element(
        self, exprs: tuple[PrimExpr, ...], beside: tuple[PrimExpr, ...] = ()
    ) -> tuple[int, int]:
        """Return (register, first element) of expressions in the vector of their stage."""
        stage, position = self.plan.stage_and_slot(exprs, beside)
        return self.vectors[stage], position

    def _shape_element(self, shape: tuple[PrimExpr, ...]) -> tuple[int, int]:
        """Return (register, first element) of a shape in the vector of its stage."""
        if is_static(shape):
            return self._emit_load_constant(np.array(constant_values(shape), np.int64)), 0
        return self._vector_element(shape)

    def _emit_alloc_tensor(self, storage: int, attrs: AllocTensorAttrs) -> int:
        if is_static((attrs.offset, *attrs.shape)):
            return self.emit_into(
                "AllocTensor",
                storage=storage,
                offset=constant_values((attrs.offset,))[0],
                dtype=attrs.dtype,
                shape=constant_values(attrs.shape),
            )
        offset = (attrs.offset,)
        offset_register, offset_index = self._vector_element(offset, beside=attrs.shape)
        shape_register, shape_index = self._vector_element(attrs.shape, beside=offset)
        return self.emit_into(
            "AllocTensorReg",
            storage=storage,
            offset=offset_register,
            offset_index=offset_index,
            shape=shape_register,
            shape_index=shape_index,
            ndim=len(attrs.shape),
            dtype=attrs.dtype,
        )

    def _emit_invoke_kernel(self, call: Call) -> int:
        function, inputs, outputs, *scratch = call.args
        assert (
            isinstance(function, Function)
            and isinstance(inputs, Tuple)
            and isinstance(outputs, Tuple)
        )
        assert isinstance(call.attrs, InvokeAttrs)
        device = call.attrs.device
        input_registers = tuple(
            self._emit_load_constant(operand.data, device)
            if isinstance(operand, Constant)
            else self._atom_register(operand)
            for operand in inputs.fields
        )
        args = input_registers + self._atom_registers(outputs.fields)
        index = self.program.primitives[function, device]
        lent = {"scratch": self._atom_register(scratch[0])} if scratch else {}
        name = "InvokePackedScratch" if scratch else "InvokePacked"
        count = len(outputs.fields)
        self.emit(name, packed_index=index, output_size=count, args=args, **lent)
        self.name_checks(index_check_names(function))
        return -1

    def _emit_host_call(self, function: str, call: Call) -> int:
        """Emit a call of a registered host function: the arguments, then the numeric attributes."""
        fields = node_fields(call.attrs) if call.attrs is not None else ()
        attr_values = [getattr(call.attrs, f.name) for f in fields if f.type in ("int", "bool")]
        numbers = [self._emit_load_int(int(v)) for v in attr_values]
        args = (*self._atom_registers(call.args), *numbers)
        index = self.program.host_functions[function]
        return self.emit_into("InvokePackedValue", packed_index=index, args=args)


def param_devices(
    function: Function | None, count: int, devices: Mapping[Device, int]
) -> tuple[int, ...]:
    """Return the device numbers of a function's parameters."""
    attribute = function.attr(PARAM_DEVICES_ATTR) if function is not None else None
    if not isinstance(attribute, tuple):
        return (HOST_DEVICE_INDEX,) * count
    captured = (HOST_DEVICE_INDEX,) * (count - len(attribute))  # nobody passes these from outside
    devices_of_params = (p.device if isinstance(p, VirtualDevice) else None for p in attribute)
    return captured + tuple(
        HOST_DEVICE_INDEX if p is None else devices[p] for p in devices_of_params
    )
