"""Emit a kernel in the language of its target; those of C by `printer`, PTX and OpenCL's SPIR-V by
LLVM, Vulkan's SPIR-V by `spirv_kernel`, WGSL here.
"""

from __future__ import annotations

from ekiden.codegen.c.helpers import HelperFunctions, c_symbol
from ekiden.codegen.device.dialect import GRID_AXES, KERNEL_DIALECTS, KernelDialect
from ekiden.codegen.device.formats import kernel_format
from ekiden.codegen.device.printer import MAX_ASSERT_VALUES, KernelWriter, print_kernel
from ekiden.codegen.device.spirv_kernel import emit_vulkan_kernel
from ekiden.codegen.device.wgsl import STORAGE_DTYPES, IndexNarrower
from ekiden.codegen.llvm import gpu_kernel
from ekiden.codegen.llvm.gpu_backends import GPU_BACKENDS
from ekiden.ir import dtype as dt
from ekiden.ir.prim import IntImm, Intrinsic, PrimExpr, SizeVar, Var, const
from ekiden.runtime.artifact.device_code import DeviceKernel
from ekiden.runtime.errors import CompileError, InternalError
from ekiden.target import Target
from ekiden.target.kinds import MAX_KERNEL_ARGUMENTS
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import AssertStmt, BufferStore, For, PrimFunc, Stmt
from ekiden.tir.visitor import buffers_written, pre_order_stmts


class WgslWriter(KernelWriter):
    """Kernel writer for a language whose memory is bound outside of the kernel (WGSL)."""

    def __init__(self, helpers: HelperFunctions, symbol: str, dialect: KernelDialect) -> None:
        super().__init__(helpers, symbol, dialect)
        self.begin_elements: dict[Buffer, str] = {}
        """Element at which each bound buffer begins."""

    def element_access(self, buffer: Buffer, index: str) -> str:
        """Return an element, offset by the start of its buffer in the bound memory."""
        if buffer not in self.begin_elements:
            return super().element_access(buffer, index)
        if dt.lanes(buffer.dtype) > 1:
            raise CompileError(f"WGSL: buffer {buffer.name!r} holds vectors")
        return f"{self.name(buffer)}[{self.begin_elements[buffer]} + ({index})]"

    def element_store(self, s: BufferStore, value: str) -> str:
        """Return a store, after a check that memory has the element type."""
        _check_storage_dtype(s.buffer)
        return super().element_store(s, value)

    def write_reinterpret(self, e: Intrinsic) -> str:
        """Return a bit cast. Raises CompileError for a wide access, which WGSL lacks."""
        if dt.lanes(e.args[0].dtype) != dt.lanes(e.dtype):
            raise CompileError("WGSL: neighbours in memory are read as one")
        return super().write_reinterpret(e)

    def _write_shuffle(self, e: Intrinsic) -> str:
        raise CompileError("WGSL: vectors are shuffled")

    def write_allocate(self, buffer: Buffer) -> None:
        """Declare a thread-local array; a block-shared one is declared beside the kernel."""
        _check_storage_dtype(buffer)
        extent: PrimExpr = const(1)
        for d in buffer.shape:
            extent = extent * d
        if not isinstance(extent, IntImm):
            raise CompileError(f"buffer {buffer.name!r} of a thread has no constant size")
        lanes = (dt.lanes(buffer.dtype),) if dt.lanes(buffer.dtype) > 1 else ()
        kind, extents = self.syntax.type(buffer.dtype), (max(extent.value, 1), *lanes)
        line = self.syntax.var(kind, self.bind_name(buffer), *extents)
        if buffer.scope == "shared":
            self.top.append(self.dialect.shared_qualifier + line.removeprefix("var "))
        else:
            self.emit_line(line)

    def write_assert(self, s: AssertStmt) -> None:
        """Emit a check as on other devices; values are recorded as 32-bit words."""
        if len(s.values) > MAX_ASSERT_VALUES:
            raise InternalError(f"kernel {self.symbol!r}: a check shows {len(s.values)} values")
        number = len(self.checks)
        self.checks.append((s.kind, s.format))
        self.emit_line(f"if (!({self.text(s.condition)})) {{")
        with self.indented():
            thread = self.unique("thread")
            self.emit_line(f"let {thread} : i32 = {self.dialect.linear_thread_index};")
            self.emit_line(self.dialect.atomic_min.format(place="ek_status", value=thread))
            self.emit_line(f"if (atomicLoad(&ek_status[1]) == {thread}) {{")
            with self.indented():
                texts = [str(number), *(f"i32({self.text(v)})" for v in s.values)]
                for index, text in enumerate(texts, start=1):
                    self.emit_line(f"atomicStore(&ek_status[{2 * index}], {text});")
                    # WGSL has no 64-bit words: the upper half is the sign.
                    self.emit_line(f"atomicStore(&ek_status[{2 * index + 1}], {text} >> 31u);")
            self.emit_line("}")
            self.emit_line("return;")
        self.emit_line("}")


def _check_storage_dtype(buffer: Buffer) -> None:
    if dt.element_dtype(buffer.dtype) not in STORAGE_DTYPES:
        raise CompileError(
            f"WGSL keeps {', '.join(STORAGE_DTYPES)} in memory: buffer {buffer.name!r} has "
            f"{dt.element_dtype(buffer.dtype)}"
        )


def _block_extents(body: Stmt, symbol: str) -> list[int]:
    """Return the extents of a block along x, y and z."""
    extents = dict.fromkeys(GRID_AXES, 1)
    for s in pre_order_stmts(body):
        axis = str((s.annotations or {}).get("thread")) if isinstance(s, For) else ""
        if not isinstance(s, For) or not axis.startswith("threadIdx."):
            continue
        if not isinstance(s.extent, IntImm):
            raise CompileError(f"kernel {symbol!r}: how many threads a block has must be constant")
        extents[axis[-1]] = max(extents[axis[-1]], s.extent.value)
    return [extents[a] for a in GRID_AXES]


def print_wgsl(func: PrimFunc, sizes: list[Var], target: Target) -> DeviceKernel:
    """Print a lowered device function in WGSL; see `codegen.device.wgsl` for the bindings. Raises
    CompileError for what WGSL cannot express.
    """
    dialect, symbol = KERNEL_DIALECTS[target.kind.name], c_symbol(func.name)
    helpers = HelperFunctions(target, dialect.helper_dialect)
    narrow = IndexNarrower()
    writer = WgslWriter(helpers, symbol, dialect)
    fields = [f"blocks_{a}" for a in GRID_AXES]
    bound: list[tuple[str, str, str]] = []
    written = set(buffers_written(func.body))
    try:
        for buffer in func.buffers:
            _check_storage_dtype(buffer)
            name = writer.bind_name(buffer)
            access = dialect.pointer_qualifier if buffer in written else "storage, read"
            bound.append((access, name, dialect.syntax.type(buffer.dtype)))
            fields.append(writer.unique(f"{name}_at"))
            writer.begin_elements[buffer] = f"ek_given.{fields[-1]}"
        body = narrow.visit(func.body)
        for size in map(narrow.narrow_var, sizes):
            fields.append(writer.bind_name(size))
            writer.names[size] = f"ek_given.{fields[-1]}"
            if isinstance(size, SizeVar):
                writer.nonnegative_vars.add(size)
        writer.statement(body)
    except CompileError as error:
        raise CompileError(f"kernel {symbol!r}: target {target.kind.name!r}: {error}") from error
    if writer.checks:
        bound.append((dialect.pointer_qualifier, "ek_status", "atomic<i32>"))
        fields.append("ek_status_at")
    lines = [f"/* Made by Ekiden for {target.kind.name}. */", dialect.prelude]
    threads = zip(GRID_AXES, _block_extents(func.body, symbol), strict=True)
    lines += [f"const ek_{axis} : i32 = {n};" for axis, n in threads]
    lines += ["struct ek_numbers {", *(f"  {field} : i32," for field in fields), "}"]
    for index, (access, name, kind) in enumerate(bound):
        lines.append(f"@group(0) @binding({index}) var<{access}> {name} : array<{kind}>;")
    lines.append(f"@group(0) @binding({len(bound)}) var<uniform> ek_given : ek_numbers;")
    lines += [*writer.top, "", *helpers.texts.values(), ""]
    lines += [
        f"{dialect.kernel_qualifier} {symbol}(",
        *_WGSL_BUILTIN_PARAMETERS,
        ") {",
        *_WGSL_BLOCK_INDEX,
        *writer.lines,
        "}",
        "",
    ]
    args = "b" * len(func.buffers) + "l" * len(sizes)
    code = "\n".join(lines).encode()
    device_type = target.kind.device_type
    return DeviceKernel(symbol, device_type, dialect.name, args, code, tuple(writer.checks))


_WGSL_BUILTIN_PARAMETERS = (
    "  @builtin(workgroup_id) ek_group : vec3<u32>,",
    "  @builtin(num_workgroups) ek_groups : vec3<u32>,",
    "  @builtin(local_invocation_id) ek_thread : vec3<u32>,",
)
_WGSL_BLOCK_INDEX = (
    "  let ek_block : i32 = i32(ek_group.x + ek_group.y * ek_groups.x);",
    "  if (ek_block >= ek_given.blocks_x * ek_given.blocks_y * ek_given.blocks_z) { return; }",
)


def compile_with_llvm(
    func: PrimFunc, sizes: list[Var], target: Target, readable: bool
) -> DeviceKernel:
    """Compile a kernel through LLVM, to PTX or OpenCL's SPIR-V. Raises CompileError for what a
    device cannot do.
    """
    symbol, backend = c_symbol(func.name), GPU_BACKENDS[kernel_format(target)]
    text = gpu_kernel.emit_kernel_ir(func, symbol, sizes, target, backend)
    args, device = "b" * len(func.buffers) + "l" * len(sizes), target.kind.device_type
    generate = gpu_kernel.device_assembly if readable else gpu_kernel.compile_device_code
    code = generate(text, target, backend)
    return DeviceKernel(symbol, device, backend.format, args, code, text.checks)


def compile_vulkan(
    func: PrimFunc, sizes: list[Var], target: Target, readable: bool
) -> DeviceKernel:
    """Compile a kernel to SPIR-V for Vulkan. Raises CompileError for what a device cannot do."""
    symbol = c_symbol(func.name)
    kernel = emit_vulkan_kernel(func, symbol, sizes, target, _block_extents(func.body, symbol))
    code = kernel.text.encode() if readable else kernel.code
    args, device = "b" * len(func.buffers) + "l" * len(sizes), target.kind.device_type
    return DeviceKernel(symbol, device, kernel_format(target), args, code, kernel.checks)


def generate_kernel(
    func: PrimFunc, sizes: list[Var], target: Target, readable: bool = False
) -> DeviceKernel:
    """Generate the code of a kernel in the language of its target. Raises CompileError for more
    arguments than devices accept.
    """
    count = len(func.buffers) + len(sizes)
    if count > MAX_KERNEL_ARGUMENTS:
        raise CompileError(
            f"kernel {c_symbol(func.name)!r}: it has {count} arguments, and devices take"
            f" {MAX_KERNEL_ARGUMENTS}"
        )
    if target.kind.name == "vulkan":
        return compile_vulkan(func, sizes, target, readable)
    dialect = KERNEL_DIALECTS.get(kernel_format(target))
    if dialect is None:
        return compile_with_llvm(func, sizes, target, readable)
    return (print_wgsl if dialect.has_bound_memory else print_kernel)(func, sizes, target)


__all__ = ["compile_with_llvm", "generate_kernel", "print_wgsl"]
