"""Emit bytecode functions as LLVM functions.

const int32_t *vm2:NAME(ek_vm *vm, ek_value *R, const ek_native *native, int32_t point)

goes on behind call number `point` of the function, and ends at a call, a return or an error: it
gives the next instruction for the machine's loop, or the address of the one that failed, plus one
(runtime/src/ek_native.c). Registers stay in memory. Short instructions and calls of kernels are
written out; for others the machine's own bodies are called.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ekiden.backend.aot.register_facts import (
    RegisterFact,
    RegisterFacts,
    entry_facts,
    transfer_facts,
)
from ekiden.backend.vm.instruction_operands import jump_offsets
from ekiden.backend.vm.write_executable import VMFunction
from ekiden.codegen.llvm.builder import FunctionBuilder, LlvmModule
from ekiden.codegen.llvm.quoting import quote_name
from ekiden.runtime.binding import layout
from ekiden.runtime.binding.layout import Native, Native32, Tensor, TypeIndex, Value
from ekiden.runtime.debug.instructions import Instruction, Operand, encode
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target
from ekiden.target.triple import object_triple

NATIVE_SYMBOL_PREFIX = "vm2:"
"""Symbol prefix of native functions, with the version of the runtime interface that they rely on.
"""
NATIVE_CONTEXT_WORDS = 2


@dataclass(slots=True)
class AotProgram:
    """Shared state of an executable's functions during emission. `kernels` are the primitives that
    are linked with the code and called by name; the others are looked up in the executable at run
    time.
    """

    primitives: Sequence[str]
    kernels: Collection[str]
    module: LlvmModule

    @property
    def native_layout(self) -> type[Native] | type[Native32]:
        """Return the layout of ek_native for the target's pointer width."""
        return Native if self.module.pointer_bytes == 8 else Native32


def emit_functions(
    functions: Sequence[VMFunction],
    primitives: Sequence[str],
    kernels: Collection[str],
    target: Target,
    *,
    is_checked: bool = False,
) -> str:
    """Emit an LLVM module with all functions, exported under NATIVE_SYMBOL_PREFIX and their names.
    With `is_checked` the machine verifies the devices of kernel arguments.
    """
    program = AotProgram(primitives, kernels, LlvmModule(target))
    for function in functions:
        _FunctionEmitter(program, function, is_checked).write()
    head = [f"; for {target}", f'target triple = "{object_triple(target.triple)}"']
    return program.module.text(head) + "attributes #0 = { nounwind }\n"


class _FunctionEmitter:
    """Emitter of one function, instruction by instruction."""

    def __init__(self, program: AotProgram, function: VMFunction, is_checked: bool) -> None:
        self.program = program
        self.function = function
        self.is_checked = is_checked
        self.builder = FunctionBuilder(program.module)
        self.native, self.pointer = program.native_layout, program.module.pointer_bytes
        self.builder.block = "start"
        self.facts: RegisterFacts = entry_facts(len(function.params), function.n_registers)
        self.instruction_words: list[int] = []
        position = 0
        for instruction in function.code:
            self.instruction_words.append(position)
            position += len(encode(instruction))
        self.jump_targets = {t for i in range(len(function.code)) for t in self._jump_targets(i)}
        self.failure_blocks: list[tuple[str, int]] = []
        """Blocks that end in a failure, with the word index of the failing instruction."""
        self.num_resume_points = 0
        self.resume_indices: list[int] = []
        self.frame_offset = NATIVE_CONTEXT_WORDS
        self.max_call_words = max(
            (len(_tuple_operand(i["args"])) for i in function.code if i.name == "InvokePacked"),
            default=0,
        )

    def _jump_targets(self, index: int) -> list[int]:
        """Return the indices that an instruction may jump to."""
        return [index + offset for offset in jump_offsets(self.function.code[index])]

    def write(self) -> None:
        """Add the function to the module."""
        is_open = True
        for index, instruction in enumerate(self.function.code):
            if index in self.jump_targets:
                if is_open:
                    self.builder.branch(_block_label(index))
                self.builder.start(_block_label(index))
                # Facts are not joined over several predecessors: a jump target starts without any.
                self.facts = {}
                is_open = True
            if is_open:  # else nothing leads here
                is_open = self._emit_instruction(index, instruction)
            elif instruction.has("frames"):
                self._count_resume_points(instruction)
        self._emit_function_text()

    def _emit_function_text(self) -> None:
        resume = " ".join(f"i32 {k}, label %point{k}" for k in self.resume_indices)
        name = quote_name(NATIVE_SYMBOL_PREFIX + self.function.name)
        size = max(1, self.max_call_words) * 2
        text = [
            f"define ptr @{name}(ptr %vm, ptr %R, ptr %native, i32 %point) #0 {{",
            "entry:",
            f"  %args = alloca [{size} x i64], align 16",
            "  %ret = alloca [2 x i64], align 16",
            "  store i64 0, ptr %ret, align 8",
            f"  %code = load ptr, ptr %native, align {self.pointer}",
            f"  %points.at = getelementptr i8, ptr %native, i64 {self.native.POINTS}",
            f"  %points = load ptr, ptr %points.at, align {self.pointer}",
            f"  switch i32 %point, label %start [ {resume} ]",
            "start:",
            *self.builder.lines,
            *self._failure_block(),
            "}",
        ]
        self.program.module.defined.add(name)
        self.program.module.functions.append("\n".join(text))

    def _failure_block(self) -> list[str]:
        """Return the block that every failure branches to."""
        if not self.failure_blocks:
            return []
        incoming = ", ".join(f"[ {4 * word + 1}, %{block} ]" for block, word in self.failure_blocks)
        return [
            "failed:",
            f"  %failed.place = phi i64 {incoming}",
            "  %failed.at = getelementptr i8, ptr %code, i64 %failed.place",
            "  ret ptr %failed.at",
        ]

    # registers

    def _register_address(self, register: int, offset: int = 0) -> str:
        return self._offset_address("%R", Value.BYTES * register + offset)

    def _offset_address(self, base: str, offset: int) -> str:
        return (
            self.builder.append_value(f"getelementptr i8, ptr {base}, i64 {offset}")
            if offset
            else base
        )

    def _load_type_word(self, register: int) -> str:
        return self.builder.append_value(
            f"load i32, ptr {self._register_address(register)}, align 8"
        )

    def _load_payload(self, register: int, kind: str = "i64") -> str:
        return self.builder.append_value(
            f"load {kind}, ptr {self._register_address(register, Value.V)}, align 8"
        )

    def _register_fact(self, register: int) -> RegisterFact:
        """Return the dataflow fact about a register; by default it may hold an object."""
        return self.facts.get(register, RegisterFact(is_object=True))

    def _may_be_object(self, register: int) -> bool:
        return self._register_fact(register).is_object

    def _set_register(self, register: int, head: str, payload: str) -> None:
        """Store an owned value in a register, then release the previous one."""
        b = self.builder
        if not self._may_be_object(register):
            self._store_register(register, head, payload)
            return
        # Store before release: a destructor may run code that reads the register.
        old, previous_object = self._load_type_word(register), self._load_payload(register, "ptr")
        self._store_register(register, head, payload)
        release, done = b.fresh_name("release"), b.fresh_name("done")
        b.branch_if(b.append_value(f"icmp sge i32 {old}, {TypeIndex.OBJECT}"), release, done)
        b.start(release)
        self._declare_service("ek_object_release", "void", "ptr")
        b.append_void(f"call void @ek_object_release(ptr {previous_object})")
        b.branch(done)
        b.start(done)

    def _store_register(self, register: int, head: str, payload: str) -> None:
        self.builder.append_void(
            f"store i64 {head}, ptr {self._register_address(register)}, align 8"
        )
        self.builder.append_void(
            f"store i64 {payload}, ptr {self._register_address(register, Value.V)}, align 8"
        )

    def _emit_retain(self, object_pointer: str) -> None:
        # A relaxed increment suffices: the caller holds a reference, so the object cannot be freed
        # meanwhile.
        self.builder.append_void(f"atomicrmw add ptr {object_pointer}, i64 1 monotonic")

    def _declare_service(self, name: str, result: str, *arguments: str) -> None:
        self.program.module.declare(name, result, arguments)

    # instructions

    def _emit_instruction(self, index: int, instruction: Instruction) -> bool:
        """Emit one instruction; return whether control falls through to the next one."""
        facts = transfer_facts(instruction, self.facts)
        is_open = self._emit_by_opcode(index, instruction)
        self.facts = facts
        return is_open

    def _emit_by_opcode(self, index: int, instruction: Instruction) -> bool:
        if self._needs_interrupt_check(index, instruction):
            self._declare_service("ek_native_poll", "i32", "ptr")
            self._check_status(
                index, self.builder.append_value("call i32 @ek_native_poll(ptr %vm)")
            )
        match instruction.name:
            case _ if instruction.has("frames"):
                return self._exit_to_interpreter(instruction)
            case "Goto" | "If" | "Switch":
                self._emit_jump(index, instruction)
                return False
            case "Fatal":
                self._emit_helper_call(index, instruction)
                self.builder.append_void("unreachable")  # it always fails
                return False
            case "Move":
                self._emit_move(_int_operand(instruction["dst"]), _int_operand(instruction["src"]))
            case "KillRegister":
                self._set_register(_int_operand(instruction["dst"]), "0", "0")
            case "LoadConsti":
                self._set_register(
                    _int_operand(instruction["dst"]), str(TypeIndex.INT), str(instruction["value"])
                )
            case "LoadConst":
                self._emit_load_constant(instruction)
            case "InvokePacked":
                self._emit_invoke_packed(index, instruction)
            case _:
                self._emit_helper_call(index, instruction)
        return True

    def _needs_interrupt_check(self, index: int, instruction: Instruction) -> bool:
        """Return whether an interrupt check precedes an instruction: one that may run long, or
        jumps backwards. Calls return to the interpreter loop, which checks itself.
        """
        if instruction.has("frames"):
            return False
        if instruction.has("kernel") or instruction.has("long"):
            return True
        return any(target <= index for target in self._jump_targets(index))

    def _exit_to_interpreter(self, instruction: Instruction) -> bool:
        """Return to the interpreter loop, which executes a call or return; the instruction after it
        is a new entry point.
        """
        b = self.builder
        b.append_void(f"ret ptr {self._offset_address('%points', 4 * self.frame_offset)}")
        self._count_resume_points(instruction)
        if instruction.has("ends"):
            return False  # nothing comes back from there
        b.start(f"point{self.num_resume_points}")
        self.resume_indices.append(self.num_resume_points)
        return True

    def _count_resume_points(self, instruction: Instruction) -> None:
        self.num_resume_points += 1
        self.frame_offset += len(encode(instruction)) + NATIVE_CONTEXT_WORDS

    def _pc_address(self, index: int) -> str:
        return self._offset_address("%code", 4 * self.instruction_words[index])

    def _emit_helper_call(self, index: int, instruction: Instruction) -> None:
        """Emit a call of the virtual machine's own implementation of an instruction (`ek_op_*`)."""
        name = f"ek_op_{instruction.name}"
        self._declare_service(name, "i32", "ptr", "ptr", "ptr")
        status = self.builder.append_value(
            f"call i32 @{name}(ptr %vm, ptr %R, ptr {self._pc_address(index)})"
        )
        self._check_status(index, status)

    def _check_status(self, index: int, status: str) -> None:
        """Branch to the failure block unless a status is 0."""
        going = self.builder.fresh_name("ok")
        self.failure_blocks.append((self.builder.block, self.instruction_words[index]))
        self.builder.branch_if(
            self.builder.append_value(f"icmp eq i32 {status}, 0"), going, "failed"
        )
        self.builder.start(going)

    def _emit_move(self, dst: int, src: int) -> None:
        b = self.builder
        register = src if src >= 0 else -1 - src
        head = b.append_value(f"load i64, ptr {self._register_address(register)}, align 8")
        payload = self._load_payload(register)
        # A negative operand moves the value: the source register is cleared instead of a reference
        # counted.
        if src < 0:
            self._store_register(register, "0", "0")
            if dst == register:
                self._store_register(dst, head, payload)
                return
        elif self._may_be_object(register):
            self._retain_value(register, head, payload)
        self._set_register(dst, head, payload)

    def _retain_value(self, register: int, head: str, payload: str) -> None:
        b = self.builder
        object_pointer = b.append_value(f"inttoptr i64 {payload} to ptr")
        if self._register_fact(register).is_tensor:
            self._emit_retain(object_pointer)
            return
        kind = b.append_value(f"trunc i64 {head} to i32")
        retain, done = b.fresh_name("retain"), b.fresh_name("done")
        b.branch_if(b.append_value(f"icmp sge i32 {kind}, {TypeIndex.OBJECT}"), retain, done)
        b.start(retain)
        self._emit_retain(object_pointer)
        b.branch(done)
        b.start(done)

    def _emit_load_constant(self, instruction: Instruction) -> None:
        b = self.builder
        tensor = self._load_table_entry(
            self.native.CONSTANTS, _int_operand(instruction["const_index"])
        )
        self._emit_retain(tensor)
        bits = b.append_value(f"ptrtoint ptr {tensor} to i64")
        self._set_register(_int_operand(instruction["dst"]), str(TypeIndex.TENSOR), bits)

    def _load_table_entry(self, table: int, index: int) -> str:
        """Load an entry of a table that `native` points to."""
        table_pointer = self._load_pointer("%native", table)
        return self._load_pointer(table_pointer, self.pointer * index)

    def _load_pointer(self, base: str, offset: int) -> str:
        """Load a pointer from memory."""
        return self.builder.append_value(
            f"load ptr, ptr {self._offset_address(base, offset)}, align {self.pointer}"
        )

    # jumps

    def _emit_jump(self, index: int, instruction: Instruction) -> None:
        labels = [_block_label(target) for target in self._jump_targets(index)]
        match instruction.name:
            case "Goto":
                self.builder.branch(labels[0])
            case "If":
                self._emit_if(index, instruction, labels)
            case _:
                self._emit_switch(index, instruction, labels)

    def _emit_if(self, index: int, instruction: Instruction, labels: list[str]) -> None:
        b = self.builder
        test, target = _int_operand(instruction["test"]), _int_operand(instruction["target"])
        fast, slow = b.fresh_name("fast"), b.fresh_name("slow")
        # Integers and booleans are compared here; tensors take the virtual machine's
        # implementation.
        plain = self._emit_is_plain(test)
        if self._register_fact(target).number is None:
            plain = b.append_value(f"and i1 {plain}, {self._emit_is_plain(target)}")
        b.branch_if(plain, fast, slow)
        b.start(fast)
        known_number = self._register_fact(target).number
        expected = self._load_payload(target) if known_number is None else str(known_number)
        b.branch_if(b.append_value(f"icmp eq i64 {self._load_payload(test)}, {expected}"), *labels)
        b.start(slow)
        self._emit_interpreted_jump(index, labels)

    def _emit_is_plain(self, register: int) -> str:
        b = self.builder
        kind = self._load_type_word(register)
        above = b.append_value(f"sub i32 {kind}, {TypeIndex.INT}")
        return b.append_value(f"icmp ult i32 {above}, {TypeIndex.BOOL - TypeIndex.INT + 1}")

    def _emit_interpreted_jump(self, index: int, labels: list[str]) -> None:
        """Emit a call of the virtual machine for a jump, and a branch on the program counter that
        it returns.
        """
        b = self.builder
        self._declare_service("ek_native_choose", "i32", "ptr", "ptr", "ptr")
        pc = self._pc_address(index)
        chosen = b.append_value(f"call i32 @ek_native_choose(ptr %vm, ptr %R, ptr {pc})")
        cases = " ".join(f"i32 {i}, label %{label}" for i, label in enumerate(labels))
        self.failure_blocks.append((b.block, self.instruction_words[index]))
        b.append_void(f"switch i32 {chosen}, label %failed [ {cases} ]")

    def _emit_switch(self, index: int, instruction: Instruction, labels: list[str]) -> None:
        b = self.builder
        value = _int_operand(instruction["value"])
        fast, slow = b.fresh_name("fast"), b.fresh_name("slow")
        b.branch_if(
            b.append_value(f"icmp eq i32 {self._load_type_word(value)}, {TypeIndex.ADT}"),
            fast,
            slow,
        )
        b.start(fast)
        tag_address = self._offset_address(self._load_payload(value, "ptr"), layout.ADT.TAG)
        tag = b.append_value(f"load i32, ptr {tag_address}, align 8")
        cases = " ".join(f"i32 {i}, label %{label}" for i, label in enumerate(labels[:-1]))
        b.append_void(f"switch i32 {tag}, label %{labels[-1]} [ {cases} ]")
        b.start(slow)
        self._emit_interpreted_jump(index, labels)

    # kernels

    def _emit_invoke_packed(self, index: int, instruction: Instruction) -> None:
        """Emit a kernel call with its arguments on the stack; calls with tuples or outputs that may
        be shared go to the virtual machine.
        """
        b = self.builder
        args, count = _tuple_operand(instruction["args"]), _int_operand(instruction["output_size"])
        outputs = args[len(args) - count :]
        # Checked builds validate arguments, and shared outputs must be copied before a kernel
        # writes.
        if self.is_checked or not all(self._register_fact(r).is_writable for r in outputs):
            self._emit_helper_call(index, instruction)
            return
        done = b.fresh_name("done")
        if count == 1 and not self._branch_if_empty(outputs[0], done):
            return
        slow = b.fresh_name("slow")
        tuples = [
            self._emit_is_tuple(r)
            for r in dict.fromkeys(args)
            if not self._register_fact(r).is_tensor
        ]
        if tuples:
            fast = b.fresh_name("fast")
            either = tuples[0]
            for is_tuple in tuples[1:]:
                either = b.append_value(f"or i1 {either}, {is_tuple}")
            b.branch_if(either, slow, fast)
            b.start(fast)
        for i, register in enumerate(args):
            head = b.append_value(f"load i64, ptr {self._register_address(register)}, align 8")
            payload = self._load_payload(register)
            b.append_void(
                f"store i64 {head}, ptr {self._offset_address('%args', Value.BYTES * i)}, align 8"
            )
            payload_address = self._offset_address("%args", Value.BYTES * i + Value.V)
            b.append_void(f"store i64 {payload}, ptr {payload_address}, align 8")
        self._emit_kernel_call(index, _int_operand(instruction["packed_index"]), len(args))
        b.branch(done)
        if tuples:
            b.start(slow)
            self._emit_helper_call(index, instruction)
            b.branch(done)
        b.start(done)

    def _emit_is_tuple(self, register: int) -> str:
        return self.builder.append_value(
            f"icmp eq i32 {self._load_type_word(register)}, {TypeIndex.ADT}"
        )

    def _branch_if_empty(self, register: int, empty: str) -> bool:
        """Branch to `empty` where a tensor has no elements; return False where that is known
        statically.
        """
        b = self.builder
        shape = self._register_fact(register).shape or ()
        if 0 in shape:
            return False
        if -1 in shape:
            tensor = self._load_payload(register, "ptr")
            dims = self._load_pointer(tensor, Tensor.DL + self.program.module.tensor.SHAPE)
            is_empty = "false"
            for axis in range(len(shape)):
                dim = b.append_value(
                    f"load i64, ptr {self._offset_address(dims, 8 * axis)}, align 8"
                )
                is_empty = b.append_value(
                    f"or i1 {is_empty}, {b.append_value(f'icmp eq i64 {dim}, 0')}"
                )
            going = b.fresh_name("going")
            b.branch_if(is_empty, empty, going)
            b.start(going)
        return True

    def _emit_kernel_call(self, index: int, primitive: int, count: int) -> None:
        b = self.builder
        name = self.program.primitives[primitive]
        # Kernels of the same image are called directly, others through the function object linked
        # at load.
        if name in self.program.kernels:
            self._declare_service(quote_name(name), "i32", "ptr", "ptr", "i32", "ptr")
            call = f"call i32 @{quote_name(name)}(ptr null, ptr %args, i32 {count}, ptr %ret)"
            self._check_status(index, b.append_value(call))
            return
        function = self._load_table_entry(self.native.LINKED, primitive)
        code = self._load_pointer(function, layout.Function.CALL)
        b.append_void("store i64 0, ptr %ret, align 8")
        call = f"call i32 {code}(ptr {function}, ptr %args, i32 {count}, ptr %ret)"
        status = b.append_value(call)
        self._declare_service("ek_value_drop", "void", "ptr")
        b.append_void("call void @ek_value_drop(ptr %ret)")
        self._check_status(index, status)


def _block_label(index: int) -> str:
    return f"at{index}"


def _int_operand(operand: Operand) -> int:
    if isinstance(operand, tuple):
        raise InternalError(f"native code: a number expected, got {operand}")
    return operand


def _tuple_operand(operand: Operand) -> tuple[int, ...]:
    if isinstance(operand, int):
        raise InternalError(f"native code: a list expected, got {operand}")
    return operand


__all__ = ["NATIVE_SYMBOL_PREFIX", "emit_functions"]
