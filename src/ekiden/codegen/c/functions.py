"""Emit lowered PrimFuncs as one C file.

Each function is there twice: `name_compute` over plain pointers and sizes, for C programs to call,
and `name` with the one signature of the runtime, which checks its arguments and calls it.
"""

from __future__ import annotations

from collections.abc import Sequence

from ekiden.codegen.c.helpers import HelperFunctions, asm_label, c_string_literal, c_symbol
from ekiden.codegen.c.statement import StatementWriter
from ekiden.codegen.c.types import c_type, memory_type
from ekiden.codegen.common import (
    BOUNDS_ERROR_KIND,
    DEVICE_ID_VAR,
    argument_label,
    device_type_of,
    expected_scalar,
    flushes_subnormals,
    in_place_params,
    is_device_argument,
    not_contiguous_message,
    out_of_range_message,
    pack_dtype,
    shape_checks,
)
from ekiden.ir import dtype as dt
from ekiden.ir.prim import SizeVar, Var, cast
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import PrimFunc

FILE_HEADER = """\
/* Made by Ekiden for {target}.
**
** C11 with -fwrapv -ffp-contract=off (GCC or Clang). Vectors are loops over lanes. Functions return
** 0, or -1 with the error set in the runtime. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stddef.h>
#include <string.h>

#include <ekiden/kernel.h>
"""
ARGUMENT_CHECK_HELPERS = """\
static const ek_dltensor *ek_argument(const ek_value *value) {
  if (value->type_index == EK_TENSOR) return &((const ek_tensor *)value->v.ptr)->dl;
  return value->type_index == EK_DLTENSOR_PTR ? (const ek_dltensor *)value->v.ptr : NULL;
}

static uint32_t ek_dtype_word(ek_dtype type) {
  return type.code | (uint32_t)type.bits << 8 | (uint32_t)type.lanes << 16;
}
"""
BOUNDS_CHECK_MACRO = f"""\
#define EK_AT(at, size, free, message) __extension__ ({{ \\
  const int64_t ek_at = (int64_t)(at), ek_size = (int64_t)(size); \\
  if ((uint64_t)ek_at >= (uint64_t)ek_size) {{ \\
    free \\
    const int64_t ek_shown[] = {{ek_at, ek_size}}; \\
    return ek_kernel_error_values("{BOUNDS_ERROR_KIND}", message, ek_shown); \\
  }} \\
  ek_at; }})
"""


def emit(func: PrimFunc, target: Target) -> str:
    """Emit one function as C. Raises InternalError for a form that lowering must have removed."""
    return emit_module([func], target)


def emit_module(funcs: Sequence[PrimFunc], target: Target) -> str:
    """Emit several functions as one C file."""
    helpers = HelperFunctions(target)
    definitions = [text for func in funcs for text in _emit_function(func, helpers)]
    head = FILE_HEADER.format(target=target)
    sites = [f"EK_CALL_SITE({v}, {c_string_literal(name)});" for name, v in helpers.sites.items()]
    sites += [*helpers.prototypes.values(), *helpers.externs.values()]
    if helpers.bounds_mode:
        sites.append(BOUNDS_CHECK_MACRO)
    return (
        "\n\n".join([head, *sites, ARGUMENT_CHECK_HELPERS, *helpers.texts.values(), *definitions])
        + "\n"
    )


class HostWriter(StatementWriter):
    """Statement writer for host functions, whose compiler vectorises loops."""

    scalarizes_vector_loops = True


def _aliased_parameters(func: PrimFunc) -> frozenset[Buffer]:
    """Return the parameters that may alias the output (the last parameter), and the output
    itself.
    """
    aliasing = [func.params[n] for n in in_place_params(func)]
    shared = [*aliasing, func.params[-1]] if aliasing else []
    return frozenset(p for p in shared if isinstance(p, Buffer))


def _emit_function(func: PrimFunc, helpers: HelperFunctions) -> list[str]:
    for number in func.scalars:
        expected_scalar(number, func)
    symbol = c_symbol(func.name)
    loops: list[str] = []
    writer = HostWriter(helpers, symbol, loops)
    sizes = [row.extent for row in shape_checks(func) if row.binds_var]
    variables = [v for v in sizes if isinstance(v, Var)]
    writer.nonnegative_vars |= {v for v in variables if isinstance(v, SizeVar)}
    if (func.attrs or {}).get("tir.noalias"):
        writer.aliasing_buffers = _aliased_parameters(func)
    arguments = [
        f"{memory_type(p.dtype)} *{writer.restrict_qualifier(p)}{writer.bind_name(p)}"
        if isinstance(p, Buffer)
        else f"{c_type(p.dtype)} {writer.bind_name(p)}"
        for p in func.params
    ]
    arguments += [f"{c_type(v.dtype)} {writer.bind_name(v)}" for v in variables]
    writer.device_type = device_type_of(func)
    if writer.device_type is not None:
        arguments.append(f"{c_type(DEVICE_ID_VAR.dtype)} {writer.bind_name(DEVICE_ID_VAR)}")
    if flushes_subnormals(func):
        writer.flush_subnormals()
    writer.statement(func.body)
    writer.write_epilogue()
    body = "\n".join(writer.lines)
    parameter_list = ", ".join(arguments) or "void"
    compute = f"int {symbol}_compute({parameter_list}) {{\n{body}\n}}"
    # C requires the loops' functions to be defined before the function that calls them.
    return [*loops, compute, _emit_packed_entry(func, symbol, helpers)]


def _emit_packed_entry(func: PrimFunc, symbol: str, helpers: HelperFunctions) -> str:
    """Emit the entry point with the runtime's packed signature: it unpacks and checks the
    arguments.
    """
    w = StatementWriter(helpers, symbol, [])
    w.device_type = device_type_of(func)
    count = len(func.params)
    # The signature is fixed: the casts silence warnings about unused parameters.
    w.emit_line("(void)self;")
    w.emit_line("(void)ret;")
    # The count is checked first, as all checks below read `args[i]`.
    w.check(f"nargs != {count}", "TypeError", f"{func.name}: expected {count} arguments")
    argument_names = [
        _unpack_tensor(w, func, i, p) if isinstance(p, Buffer) else _unpack_scalar(w, func, i, p)
        for i, p in enumerate(func.params)
    ]
    sizes: list[str] = []
    for row in shape_checks(func):
        actual = f"{argument_names[row.index]}->shape[{row.axis}]"
        # The first tensor with a symbolic size defines it; the others are compared with it.
        if row.binds_var:
            assert isinstance(row.extent, Var)
            w.emit_line(f"const {c_type(row.extent.dtype)} {w.bind_name(row.extent)} = {actual};")
            sizes.append(w.name(row.extent))
        else:
            w.check(f"{actual} != ({w.text(row.extent)})", "ValueError", row.message)
    values = [
        # DLPack: the first element is at data + byte_offset, not at data.
        f"({memory_type(p.dtype)} *)((char *){name}->data + {name}->byte_offset)"
        if isinstance(p, Buffer)
        else name
        for p, name in zip(func.params, argument_names, strict=True)
    ]
    if w.device_type is not None:
        sizes.append(w.name(DEVICE_ID_VAR))
    w.emit_line(f"return {symbol}_compute({', '.join([*values, *sizes])});")
    # A name that is no C identifier is given to the symbol by an assembler label.
    label = "" if symbol == func.name else f" __asm__({asm_label(func.name)})"
    signature = f"int {symbol}(void *self, const ek_value *args, int32_t nargs, ek_value *ret)"
    body = "\n".join(w.lines)
    return f"{signature}{label};\n{signature} {{\n{body}\n}}"


def _unpack_scalar(w: StatementWriter, func: PrimFunc, i: int, param: Var) -> str:
    """Emit the check that an argument is a number representable in its parameter's dtype; return
    the variable's name.
    """
    label, kind = argument_label(func, i, param), expected_scalar(param, func)
    index, value = f"args[{i}].type_index", f"args[{i}].v"
    is_integer = f"({index} == EK_INT || {index} == EK_BOOL)"
    name, ctype = w.bind_name(param), c_type(param.dtype)
    if dt.is_float(param.dtype):
        w.check(f"!{is_integer} && {index} != EK_FLOAT", "TypeError", f"{label} must be {kind}")
        number = w.unique(f"{param.name}_given")
        # An integer or a bool is accepted for a float, as in Python.
        w.emit_line(f"const double {number} = {is_integer} ? (double){value}.i64 : {value}.f64;")
        argument = Var(number, "float64")
        w.names[argument] = number
        w.emit_line(f"const {ctype} {name} = {w.text(cast(argument, param.dtype))};")
        return name
    w.check(f"!{is_integer}", "TypeError", f"{label} must be {kind}")
    w.emit_line(f"const {ctype} {name} = ({ctype}){value}.i64;")
    # At equal width the round trip is always exact, but negative numbers do not fit uint64.
    wrong = f"{value}.i64 < 0" if param.dtype == "uint64" else f"(int64_t){name} != {value}.i64"
    w.check(wrong, "ValueError", f"{label} {out_of_range_message(param)}")
    return name


def _unpack_tensor(w: StatementWriter, func: PrimFunc, i: int, buffer: Buffer) -> str:
    """Emit the check that an argument is a tensor of the parameter's dtype and rank; return its
    name.
    """
    name, label = w.unique(f"{buffer.name}_tensor"), argument_label(func, i, buffer)
    rank = len(buffer.shape)
    w.emit_line(f"const ek_dltensor *{name} = ek_argument(&args[{i}]);")
    w.check(f"{name} == NULL", "TypeError", f"{label} must be a tensor")
    w.check(f"{name}->ndim != {rank}", "ValueError", f"{label} must have {rank} dimensions")
    wrong = f"ek_dtype_word({name}->dtype) != {pack_dtype(buffer.dtype)}u"
    w.check(wrong, "TypeError", f"{label} must have dtype {buffer.dtype}")
    # Accesses to a buffer with strides use them; all others assume compact row-major memory.
    if rank and not buffer.strides:
        w.check(f"!ek_dltensor_is_contiguous({name})", "ValueError", not_contiguous_message(label))
    if w.device_type is not None and is_device_argument(func, buffer):
        _check_device(w, name, label)
    return name


def _check_device(w: StatementWriter, name: str, label: str) -> None:
    """Emit the check that an argument is on the first argument's device, and that the device has
    the right type.
    """
    wrong = f"{name}->device.type != {w.device_type}"
    w.check(wrong, "ValueError", f"{label} must lie on a device of type {w.device_type}")
    number = f"{name}->device.id"
    # The first tensor determines the device; the others must be on the same one.
    if DEVICE_ID_VAR not in w.names:
        w.emit_line(f"const {c_type(DEVICE_ID_VAR.dtype)} {w.bind_name(DEVICE_ID_VAR)} = {number};")
        return
    wrong = f"{number} != {w.name(DEVICE_ID_VAR)}"
    w.check(wrong, "ValueError", f"{label} must lie on the device of the first argument")


__all__ = ["emit", "emit_module"]
