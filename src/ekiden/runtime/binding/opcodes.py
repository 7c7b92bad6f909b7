"""Opcode table of the virtual machine, generated from the C runtime's.

Generated from runtime/src/vm_opcodes.def by scripts/generate_opcodes.py. Do not edit.
"""

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Opcode:
    """Opcode of the virtual machine: number, mnemonic, operand format and properties."""

    name: str
    number: int
    """The value of an instruction's first word; file format."""
    mnemonic: str
    """The first word of its printed form."""
    text: str
    """The printed form; {x} stands for the operand x."""
    format: str
    """A letter per operand, explained in runtime/src/vm_opcodes.def."""
    operands: tuple[str, ...]
    """A name for each letter but 'n', which is the length of the list after it."""
    properties: frozenset[str]
    """Properties that group instructions, such as "ends": those of the definition,
    without EK_, in lower case.
    """
    meaning: str


# fmt: off
OPCODES: tuple[Opcode, ...] = (
    Opcode("Move", 0, "move",
           "move {dst} {src}",
           "wv",
           ("dst", "src"),
           frozenset(("pure",)),
           "dst becomes a second reference to what src holds"),
    Opcode("Ret", 1, "ret",
           "ret {src}",
           "r",
           ("src",),
           frozenset(("ends", "frames")),
           "leave the function; src is the value of the call"),
    Opcode("Invoke", 2, "invoke",
           "invoke {dst} {func}({args})",
           "wFnV",
           ("dst", "func", "args"),
           frozenset(("frames", "long", "fails")),
           "call a function; args become its registers 0, 1, ..."),
    Opcode("InvokeClosure", 3, "invoke_closure",
           "invoke_closure {dst} {closure}({args})",
           "wrnV",
           ("dst", "closure", "args"),
           frozenset(("frames", "long", "fails")),
           "call a closure; its captured values come first, then args"),
    Opcode("InvokePacked", 4, "invoke_packed",
           "invoke_packed {packed_index} (in: {inputs}, out: {outputs})",
           "pnoR",
           ("packed_index", "output_size", "args"),
           frozenset(("kernel", "works", "fails")),
           "call a primitive; the last output_size args are written by it; an ADT stands for "
           "its fields; not called when its one output has no elements; its own result is "
           "dropped"),
    Opcode("AllocTensor", 5, "alloc_tensor",
           "alloc_tensor {dst} {storage} {offset} [{shape}] {dtype}",
           "wrItnL",
           ("dst", "storage", "offset", "dtype", "shape"),
           frozenset(),
           "a tensor of literal shape in storage, offset bytes from its start"),
    Opcode("AllocTensorReg", 6, "alloc_tensor_reg",
           "alloc_tensor_reg {dst} {storage} {offset}[{offset_index}] "
           "{shape}[{shape_index}:+{ndim}] {dtype}",
           "wresesmt",
           ("dst", "storage", "offset", "offset_index", "shape", "shape_index", "ndim", "dtype"),
           frozenset(),
           "a tensor in storage; offset is an integer or element offset_index of an int64 "
           "tensor; its shape is ndim elements of an int64 tensor from shape_index on"),
    Opcode("AllocADT", 7, "alloc_data",
           "alloc_data {dst} tag({tag}) [{fields}]",
           "wsnV",
           ("dst", "tag", "fields"),
           frozenset(("pure",)),
           "an ADT value with fields; a tuple has tag 0"),
    Opcode("AllocClosure", 8, "alloc_closure",
           "alloc_closure {dst} {func}({free})",
           "wfnV",
           ("dst", "func", "free"),
           frozenset(("pure",)),
           "a closure of a function whose first parameters are bound to free"),
    Opcode("GetField", 9, "get_field",
           "get_field {dst} {object}[{index}]",
           "wrs",
           ("dst", "object", "index"),
           frozenset(("pure", "fails")),
           "field index of an ADT value"),
    Opcode("If", 10, "if",
           "if {test} {target} {true_offset} {false_offset}",
           "eejj",
           ("test", "target", "true_offset", "false_offset"),
           frozenset(("ends", "fails")),
           "jump by true_offset where test equals target, else by false_offset; both are "
           "integers, booleans or one-element tensors of these"),
    Opcode("LoadConst", 11, "load_const",
           "load_const {dst} {const_index}",
           "wk",
           ("dst", "const_index"),
           frozenset(("pure", "plain")),
           "a constant, shared and read-only"),
    Opcode("Goto", 12, "goto",
           "goto {offset}",
           "j",
           ("offset",),
           frozenset(("ends",)),
           "jump"),
    Opcode("GetTag", 13, "get_tag",
           "get_tag {dst} {object}",
           "wr",
           ("dst", "object"),
           frozenset(("pure", "plain", "fails")),
           "the tag of an ADT value, an integer"),
    Opcode("LoadConsti", 14, "load_consti",
           "load_consti {dst} {value}",
           "wI",
           ("dst", "value"),
           frozenset(("pure", "plain")),
           "an integer"),
    Opcode("Fatal", 15, "fatal",
           "fatal",
           "",
           (),
           frozenset(("ends", "fails")),
           "stop with an error: a match has no clause for the value"),
    Opcode("AllocStorage", 16, "alloc_storage",
           "alloc_storage {dst} {size}[{size_index}] {alignment} {device}",
           "wesad",
           ("dst", "size", "size_index", "alignment", "device"),
           frozenset(("allocates",)),
           "a buffer from the device's pool; size in bytes is an integer or element "
           "size_index of an int64 tensor"),
    Opcode("ShapeOf", 17, "shape_of",
           "shape_of {dst} {tensor}",
           "wr",
           ("dst", "tensor"),
           frozenset(),
           "the shape of a tensor as an int64 vector"),
    Opcode("ReshapeTensor", 18, "reshape_tensor",
           "reshape_tensor {dst} {tensor} {shape}[{shape_index}:+{ndim}]",
           "wresm",
           ("dst", "tensor", "shape", "shape_index", "ndim"),
           frozenset(),
           "a view of tensor with another shape, ndim elements of an int64 tensor; as many "
           "elements"),
    Opcode("DeviceCopy", 19, "device_copy",
           "device_copy {dst} {src} {dst_device} {src_device}",
           "wEdd",
           ("dst", "src", "dst_device", "src_device"),
           frozenset(("works",)),
           "a copy of a tensor on another device"),
    Opcode("KillRegister", 20, "kill_register",
           "kill_register {dst}",
           "w",
           ("dst",),
           frozenset(),
           "forget what the register holds, and free it if nothing else refers to it"),
    Opcode("InvokeTail", 21, "invoke_tail",
           "invoke_tail {func}({args})",
           "FnR",
           ("func", "args"),
           frozenset(("ends", "frames")),
           "go on with a function in the place of the running one, whose registers are "
           "forgotten: its result is the result of this call"),
    Opcode("InvokeClosureTail", 22, "invoke_closure_tail",
           "invoke_closure_tail {closure}({args})",
           "rnR",
           ("closure", "args"),
           frozenset(("ends", "frames", "fails")),
           "the same with a closure"),
    Opcode("AllocRef", 23, "alloc_ref",
           "alloc_ref {dst} {value}",
           "wv",
           ("dst", "value"),
           frozenset(("pure", "keeps")),
           "a reference that holds a value"),
    Opcode("ReadRef", 24, "read_ref",
           "read_ref {dst} {ref}",
           "wr",
           ("dst", "ref"),
           frozenset(("pure", "fails")),
           "what a reference holds now"),
    Opcode("WriteRef", 25, "write_ref",
           "write_ref {ref} {value}",
           "rv",
           ("ref", "value"),
           frozenset(("keeps", "fails")),
           "let a reference hold a value"),
    Opcode("InvokePackedValue", 26, "invoke_packed_value",
           "invoke_packed_value {dst} {packed_index}({args})",
           "wpnR",
           ("dst", "packed_index", "args"),
           frozenset(("long", "works", "fails")),
           "call a primitive; dst becomes its own result; an ADT is passed as itself"),
    Opcode("ReadElement", 27, "read_element",
           "read_element {dst} {tensor}[{index}]",
           "wes",
           ("dst", "tensor", "index"),
           frozenset(("plain", "fails")),
           "an integer: one element of an integer or boolean tensor of the host"),
    Opcode("Switch", 28, "switch",
           "switch {value} [{offsets}]",
           "enJ",
           ("value", "offsets"),
           frozenset(("ends", "fails")),
           "jump by offset i, where i is the tag of an ADT value, an integer or a "
           "one-element tensor of these; by the last one where there are not as many before "
           "it"),
    Opcode("AllocArena", 29, "alloc_arena",
           "alloc_arena {dst} {size}[{size_index}] {alignment} {device}",
           "wesad",
           ("dst", "size", "size_index", "alignment", "device"),
           frozenset(("allocates",)),
           "as AllocStorage, for what dies with the run: the machine keeps the buffer for "
           "the next"),
    Opcode("InvokePackedScratch", 30, "invoke_packed",
           "invoke_packed {packed_index} (in: {inputs}, out: {outputs}) scratch {scratch}",
           "pnoRr",
           ("packed_index", "output_size", "args", "scratch"),
           frozenset(("kernel", "works", "fails")),
           "as InvokePacked; the primitive's working memory lies in the tensor scratch as "
           "far as it fits, and overwrites it"),
    Opcode("Own", 31, "own",
           "own {dst} {tensor} {device}",
           "wud",
           ("dst", "tensor", "device"),
           frozenset(("allocates",)),
           "the tensor itself where the register gives it up and nothing else refers to it "
           "or to its memory, on that device; else a copy there, which may be written"),
)
# fmt: on

BY_NAME: dict[str, Opcode] = {opcode.name: opcode for opcode in OPCODES}


def operand_words(letter: str, n: int) -> int:
    """Return the number of words of an operand; `n` is the length of a list operand."""
    return {"R": n, "V": n, "J": n, "L": 2 * n, "I": 2, "t": 3}.get(letter, 1)
