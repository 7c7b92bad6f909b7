"""C99 emitter of a MicroModule: its interface, program, kernels and constants.

include/tvmgen_NAME.h   inputs, outputs and memories as structures, and the functions that run the
                        entry points (interfaces.py)
include/ekiden_NAME.h   the same as a table: names, dtypes, shapes, for programs of any model
src/NAME_lib0.c         the functions of the model (emit_routines.py), and the memory
src/NAME_lib1.c         the kernels
src/NAME_lib2.c         the constants
src/NAME_lib3.c, ...    on request, the functions of the open C ABI (packed_entry.py)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ekiden.backend.crt.emit_routines import emit_entry, emit_routines
from ekiden.backend.crt.interfaces import Interface, interfaces_of
from ekiden.backend.crt.kernels import c_identifier
from ekiden.backend.crt.micro_module import (
    POOL_ALIGNMENT_BYTES,
    MicroKernel,
    MicroModule,
    MicroTensor,
)
from ekiden.backend.crt.packed_entry import emit_packed
from ekiden.codegen.c.helpers import c_string_literal
from ekiden.codegen.c.types import C_KEYWORDS, constant, memory_type
from ekiden.ir import dtype as dt
from ekiden.ir.name_uniquer import NameUniquer
from ekiden.ir.op import Array

GENERATED_FILE_HEADER = """\
/* Made by Ekiden of the model {name}, for {target}.
**
** C99 that needs nothing but memcpy. {flags} */
"""
COMPILER_FLAGS_NOTE = "Compile with -fwrapv -ffp-contract=off -fno-math-errno."
MICRO_API_HEADER = """\
/* What programs need to know of a model that Ekiden compiled without its runtime. */
#ifndef EKIDEN_MICRO_H_
#define EKIDEN_MICRO_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* An input or an output: `dtype` in NumPy's words, `nbytes` of all its elements. */
typedef struct {
  const char *name;
  const char *dtype;
  int32_t ndim;
  const int32_t *shape;
  uint32_t nbytes;
} ekiden_micro_tensor;

/* A memory that the caller gives, of `nbytes` bytes at a multiple of 16. */
typedef struct {
  const char *name;
  uint32_t nbytes;
} ekiden_micro_pool;

/* A model. `run` takes one address for each input, output and pool and gives 0, or another number
** where the model refuses its inputs, such as an index out of range. */
typedef struct {
  const char *name;
  int32_t num_inputs;
  const ekiden_micro_tensor *inputs;
  int32_t num_outputs;
  const ekiden_micro_tensor *outputs;
  int32_t num_pools;
  const ekiden_micro_pool *pools;
  uint32_t workspace_bytes;
  int32_t (*run)(void *const *inputs, void *const *outputs, void *const *pools);
} ekiden_micro_model;

#ifdef __cplusplus
}
#endif
#endif /* EKIDEN_MICRO_H_ */
"""
MAX_DECIMAL_FLOATS = 4096
"""Maximum number of floats written in decimal; larger constants are hexadecimal, which compiles
twice as fast.
"""
_KERNEL_INCLUDES = """\
#include <math.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
"""
_ALIGNED_MACRO = f"""\
#define EK_ALIGNED __attribute__((aligned({POOL_ALIGNMENT_BYTES})))
"""
_ARENA_SECTION_MACRO = """\

#ifndef EK_ARENA_SECTION /* where the memory lies; the linker's script knows others */
#define EK_ARENA_SECTION ".bss.noinit.ekiden"
#endif
static uint8_t arena[{size}] EK_ALIGNED __attribute__((section(EK_ARENA_SECTION)));
"""


def emit_files(module: MicroModule) -> dict[str, str]:
    """Return the files of the program: path to text."""
    name, prefix = c_identifier(module.name), tvmgen_prefix(module.name)
    head = GENERATED_FILE_HEADER.format(
        name=module.name, target=module.target, flags=COMPILER_FLAGS_NOTE
    )
    files = {
        f"include/{prefix}.h": head + _emit_interface(module),
        "include/ekiden_micro.h": MICRO_API_HEADER,
        f"include/ekiden_{name}.h": head + _emit_table_header(module),
        f"src/{name}_lib0.c": head + _emit_program(module),
        f"src/{name}_lib1.c": head + _emit_kernels(module),
        f"src/{name}_lib2.c": head + _emit_constants(module),
    }
    if module.is_packed:
        for number, interface in enumerate(interfaces_of(module)):
            files[f"src/{name}_lib{3 + number}.c"] = head + emit_packed(interface, name)
    return files


def tvmgen_prefix(name: str) -> str:
    """Return the prefix of a model's C names (TVM's rule)."""
    return f"tvmgen_{c_identifier(name)}"


def _field_name(name: str) -> str:
    """Return the name of a structure's field for a tensor name; C keywords get an underscore."""
    clean = c_identifier(name)
    return f"_{clean}" if clean in C_KEYWORDS else clean


def unique_field_names(tensors: Sequence[MicroTensor]) -> list[str]:
    """Return distinct field names for tensors."""
    uniquer = NameUniquer()
    return [uniquer.fresh(_field_name(tensor.name)) for tensor in tensors]


def pool_field_names(module: MicroModule) -> list[str]:
    """Return the fields for the pools that the caller provides."""
    return [] if module.has_own_memory else [_field_name(p.name) for p in module.pools]


def _emit_interface(module: MicroModule) -> str:
    prefix = tvmgen_prefix(module.name)
    guard = f"{prefix.upper()}_H_"
    sections = [f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n"]
    sections.append('\n#ifdef __cplusplus\nextern "C" {\n#endif\n')
    for interface in interfaces_of(module):
        sections += _emit_structures(interface)
    sections.append(f"\n#define {prefix.upper()}_WORKSPACE_SIZE {module.workspace}\n")
    pools = pool_field_names(module)
    for field, pool in zip(pools, module.pools, strict=False):
        macro = f"{prefix.upper()}_{field.upper()}_WORKSPACE_POOL_SIZE"
        sections.append(f"#define {macro} {pool.used}\n")
    if pools:
        sections.append(_emit_struct(f"{prefix}_workspace_pools", pools))
    signatures = "".join(f"{_run_signature(module, i)};\n" for i in interfaces_of(module))
    sections.append(
        "\n/* 0, or another number where the model refuses its inputs. */\n"
        f"{signatures}"
        "\n#ifdef __cplusplus\n}\n#endif\n" + f"#endif /* {guard} */\n"
    )
    return "".join(sections)


def _emit_structures(interface: Interface) -> Iterator[str]:
    """Yield the structures of inputs and outputs, and the size of each field."""
    for what, tensors in (("inputs", interface.inputs), ("outputs", interface.outputs)):
        for field, tensor in zip(unique_field_names(tensors), tensors, strict=True):
            shape = ", ".join(map(str, tensor.shape))
            yield (
                f"\n/* {tensor.name.replace('*/', '* /')}: {tensor.dtype}[{shape}] */\n"
                f"#define {interface.prefix.upper()}_{field.upper()}_SIZE {tensor.nbytes}\n"
            )
        yield _emit_struct(f"{interface.prefix}_{what}", unique_field_names(tensors))


def _emit_struct(name: str, fields: Sequence[str]) -> str:
    rows = "".join(f"  void *{field};\n" for field in fields) or "  void *unused;\n"
    return f"\nstruct {name} {{\n{rows}}};\n"


def _run_signature(module: MicroModule, interface: Interface) -> str:
    prefix = interface.prefix
    parameters = f"struct {prefix}_inputs *inputs, struct {prefix}_outputs *outputs"
    if not module.has_own_memory:
        parameters += f", struct {tvmgen_prefix(module.name)}_workspace_pools *workspace_pools"
    return f"int32_t {prefix}_run({parameters})"


def _emit_table_header(module: MicroModule) -> str:
    name = c_identifier(module.name)
    guard = f"EKIDEN_{name.upper()}_H_"
    tables = "".join(
        f"extern const ekiden_micro_model ekiden_{interface.name};\n"
        for interface in interfaces_of(module)
    )
    return (
        f'#ifndef {guard}\n#define {guard}\n\n#include "ekiden_micro.h"\n\n'
        '#ifdef __cplusplus\nextern "C" {\n#endif\n'
        f"{tables}"
        f"#ifdef __cplusplus\n}}\n#endif\n#endif /* {guard} */\n"
    )


def _kernel_prototype(kernel: MicroKernel) -> str:
    kinds = [f"{'const ' * p.is_read}{p.c_type} *" for p in kernel.parameters]
    if kernel.workspace:
        kinds.append("uint8_t *")
    return f"int32_t {kernel.name}({', '.join(kinds)});\n"


def _emit_program(module: MicroModule) -> str:
    prefix, name = tvmgen_prefix(module.name), c_identifier(module.name)
    sections = [
        f'#include <stddef.h>\n#include <string.h>\n\n#include "ekiden_{name}.h"\n'
        f'#include "{prefix}.h"\n\n{_ALIGNED_MACRO}'
    ]
    if module.has_own_memory and module.workspace:
        sections.append(_ARENA_SECTION_MACRO.format(size=module.workspace))
    sections.append("\n" + "".join(map(_kernel_prototype, module.kernels)))
    sections += [
        f"extern const {memory_type(str(a.dtype))} {prefix}_constant_{n}[];\n"
        for n, a in enumerate(module.constants)
    ]
    sections.append(emit_routines(module, prefix))
    interfaces = interfaces_of(module)
    sections += [
        emit_entry(module, entry, interface.run)
        for entry, interface in zip(module.entry_points, interfaces[1:], strict=True)
    ]
    sections += [_emit_run_function(module, interface) for interface in interfaces]
    sections.append("\n" + _emit_pool_table(module))
    sections += [_emit_tensor_tables(module, interface) for interface in interfaces]
    return "".join(sections)


def _emit_run_function(module: MicroModule, interface: Interface) -> str:
    """Return the interface's `run` function."""
    rows = []
    for what, tensors in (("inputs", interface.inputs), ("outputs", interface.outputs)):
        field_list = ", ".join(f"{what}->{f}" for f in unique_field_names(tensors)) or "NULL"
        rows.append(f"  void *const given_{what}[] = {{{field_list}}};\n")
    pools, fields = "NULL", pool_field_names(module)
    if fields:
        field_list = ", ".join(f"workspace_pools->{f}" for f in fields)
        rows.append(f"  void *const given_pools[] = {{{field_list}}};\n")
        pools = "given_pools"
    unused = "".join(f"  (void){w};\n" for w in ("inputs", "outputs"))
    call = f"  return {interface.run}(given_inputs, given_outputs, {pools});\n"
    return f"\n{_run_signature(module, interface)} {{\n{unused}{''.join(rows)}{call}}}\n"


def _emit_pool_table(module: MicroModule) -> str:
    """Return the table of the pools that the caller provides, or "" if there are none."""
    if module.has_own_memory or not module.pools:
        return ""
    text = "".join(f"  {{{c_string_literal(p.name)}, {p.used}}},\n" for p in module.pools)
    return f"static const ekiden_micro_pool pool_table[] = {{\n{text}}};\n"


def _emit_tensor_tables(module: MicroModule, interface: Interface) -> str:
    definitions: list[str] = []
    for what, tensors in (("input", interface.inputs), ("output", interface.outputs)):
        table, rows = f"{interface.name}_{what}", []
        for number, t in enumerate(tensors):
            shape = f"{table}{number}_shape"
            sizes = ", ".join(map(str, t.shape)) or "0"
            definitions.append(f"static const int32_t {shape}[] = {{{sizes}}};\n")
            literals = f"{c_string_literal(t.name)}, {c_string_literal(t.dtype)}"
            rows.append(f"  {{{literals}, {len(t.shape)}, {shape}, {t.nbytes}}},\n")
        text = "".join(rows) or "  {NULL, NULL, 0, NULL, 0},\n"
        definitions.append(f"static const ekiden_micro_tensor {table}s[] = {{\n{text}}};\n")
    pools = 0 if module.has_own_memory else len(module.pools)
    definitions.append(
        f"\nconst ekiden_micro_model ekiden_{interface.name} = {{\n"
        f"  {c_string_literal(interface.label)}, {len(interface.inputs)}, {interface.name}_inputs,"
        f" {len(interface.outputs)}, {interface.name}_outputs,\n"
        f"  {pools}, {'pool_table' if pools else 'NULL'}, {module.workspace},"
        f" {interface.run},\n}};\n"
    )
    return "".join(definitions)


def _emit_kernels(module: MicroModule) -> str:
    prototypes = "".join(map(_kernel_prototype, module.kernels))
    texts = [*module.helpers, *(k.text for k in module.kernels)]
    return "\n\n".join([_KERNEL_INCLUDES + "\n" + prototypes, *texts]) + "\n"


def _emit_constants(module: MicroModule) -> str:
    definitions = ["#include <math.h>\n#include <stdint.h>\n"]
    prefix = tvmgen_prefix(module.name)
    for number, array in enumerate(module.constants):
        kind, shape = memory_type(str(array.dtype)), ", ".join(map(str, array.shape))
        declared = f"const {kind} {prefix}_constant_{number}[{max(array.size, 1)}]"
        definitions.append(f"\n/* {array.dtype}[{shape}] */\nextern {declared};\n")
        aligned = f"__attribute__((aligned({module.alignment_of(array)})))"
        definitions.append(f"{declared} {aligned} = {{\n{_format_initializers(array)}}};\n")
    return "".join(definitions)


def _format_initializers(array: Array, per_line: int = 16) -> str:
    """Return the elements of an array as initializers."""
    dtype = str(array.dtype)
    flat = np.asarray(array).reshape(-1)
    if dtype in ("float16", "bfloat16"):
        flat, dtype = flat.view(np.uint16), "uint16"
    if dtype == "bool":
        flat, dtype = flat.astype(np.uint8), "uint8"
    if dtype == "float32" and flat.size > MAX_DECIMAL_FLOATS and np.isfinite(flat).all():
        texts = [f"{v.hex()}f" for v in flat.tolist()]
    elif dt.SCALAR_BITS[dtype] < 32 and not dt.is_float(dtype):
        texts = list(map(str, flat.tolist()))
    else:
        texts = [constant(v, dtype) for v in flat.tolist()]
    lines = [
        ", ".join(texts[position : position + per_line])
        for position in range(0, len(texts), per_line)
    ]
    return "".join(f"  {line},\n" for line in lines) or "  0,\n"


__all__ = ["COMPILER_FLAGS_NOTE", "emit_files", "tvmgen_prefix", "unique_field_names"]
