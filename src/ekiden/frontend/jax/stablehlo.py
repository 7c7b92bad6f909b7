"""StableHLO as text, as bytecode of MLIR, and as a portable artifact: to modules of MLIR."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from io import BytesIO

from jax.interpreters import mlir
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import func, stablehlo
from jaxlib.mlir.passmanager import PassManager

from ekiden.runtime.errors import ImportModelError

BYTECODE = b"ML\xefR"
"""The magic number at the start of MLIR's bytecode, of portable artifacts too."""


def context() -> ir.Context:
    """Return a context with the dialects of JAX, in which those it does not know are parsed too, so
    that their operations are reported by name.
    """
    made = mlir.make_ir_context()
    made.allow_unregistered_dialects = True
    return made


def parsed(data: str | bytes, label: str, within: ir.Context) -> ir.Module:
    """Return the module that text or bytecode says.

    Raises ImportModelError with the first words of what MLIR says of anything else.
    """
    if isinstance(data, bytes) and data.startswith(BYTECODE):
        return _of_bytecode(data, label, within)
    try:
        # MLIR's bindings end the process where a message of theirs quotes what is no UTF-8
        text = data.decode() if isinstance(data, bytes) else data
        return ir.Module.parse(text, within)
    except Exception as error:  # MLIRError, or UnicodeDecodeError of bytes that are no text
        raise ImportModelError(f"import {label}: no StableHLO: {_reason(error)}") from error


def _of_bytecode(data: bytes, label: str, within: ir.Context) -> ir.Module:
    """Return the module of a portable artifact, or else of plain bytecode."""
    try:
        return stablehlo.deserialize_portable_artifact(within, data)
    except Exception as first:
        try:
            return ir.Module.parse(data, within)
        except Exception:
            text = f"import {label}: no StableHLO: {_reason(first)}"
            raise ImportModelError(text) from first


def _reason(error: Exception) -> str:
    """Return the first line of a message that says something: MLIR's own begin with a heading."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    told = [line for line in lines if _ERROR.search(line)] or lines or [type(error).__name__]
    return told[0][:_SHOWN]


_ERROR = re.compile(r"\berror: ")
_SHOWN = 300
"""Characters of a foreign message that are shown: some quote a whole program."""


def decomposed(operation: ir.Operation) -> ir.Module | None:
    """Return a module whose `main` computes an operation of CHLO, or a function of complex numbers,
    in simpler operations, as jaxlib's own passes have it; None where they leave it as it is.
    """
    stablehlo.register_stablehlo_passes()
    with operation.context, ir.Location.unknown():
        module = ir.Module.create()
        takes, gives = (
            [v.type for v in values] for values in (operation.operands, operation.results)
        )
        with ir.InsertionPoint(module.body):
            main = func.FuncOp("main", ir.FunctionType.get(takes, gives))
        block = main.add_entry_block()
        with ir.InsertionPoint(block):
            func.return_(_copied(operation, list(block.arguments)))
        PassManager.parse(_DECOMPOSE).run(module.operation)
        same = [o.operation for o in block.operations if o.operation.name == operation.name]
        kinds = [value.type for value in operation.operands]
        is_left = any([value.type for value in each.operands] == kinds for each in same)
        return None if is_left else module


def _copied(operation: ir.Operation, operands: list[ir.Value]) -> list[ir.Value]:
    """Insert an operation of other operands, and return its results."""
    copy = operation.clone()
    attributes = copy.attributes
    is_reverse = "is_reverse" in attributes and attributes["is_reverse"].value
    if is_reverse:  # which the pass leaves out
        axis = attributes["dimension"].value
        attributes["is_reverse"] = ir.BoolAttr.get(False)
        count = attributes["operandSegmentSizes"][0]
        moved = [stablehlo.reverse(operand, [axis]) for operand in operands[:count]]
        operands = [*moved, *operands[count:]]
        copy.move_after(moved[-1].owner)
    for index, operand in enumerate(operands):
        copy.operands[index] = operand
    results = list(copy.results)
    if is_reverse:
        count = attributes["resultSegmentSizes"][0]
        results[:count] = [stablehlo.reverse(result, [axis]) for result in results[:count]]
    return results


_DECOMPOSE = (
    "builtin.module(func.func(chlo-legalize-to-stablehlo,stablehlo-complex-math-expander,"
    "stablehlo-legalize-deprecated-ops{fail-on-unused=false}))"
)


def entry_of(module: ir.Module, wanted: str, label: str) -> str:
    """Return the name of the function that a program begins with: `wanted`, or else `main`, or the
    only one that is public.

    Raises ImportModelError, listing the functions, where there is none.
    """
    names = [function.attributes["sym_name"].value for function in functions_of(module)]
    public = [
        function.attributes["sym_name"].value
        for function in functions_of(module)
        if not _is_private(function)
    ]
    chosen = wanted or ("main" if "main" in names else public[0] if len(public) == 1 else "")
    if chosen in names:
        return chosen
    listed = ", ".join(repr(name) for name in (public or names)[:_LISTED]) or "none"
    missing = f"no function {wanted!r}" if wanted else "no function 'main'"
    raise ImportModelError(f"import {label}: {missing}; there are {listed}; signature= names one")


_LISTED = 8
"""Functions that a message names."""


def functions_of(module: ir.Module) -> Sequence[ir.Operation]:
    """Return the functions of a module that have a body."""
    return [
        each.operation
        for each in module.body.operations
        if each.operation.name == "func.func" and len(each.regions[0].blocks)
    ]


def _is_private(function: ir.Operation) -> bool:
    attributes = function.attributes
    return "sym_visibility" in attributes and attributes["sym_visibility"].value == "private"


def is_stablehlo(data: bytes) -> bool:
    """Whether bytes are a program in MLIR: bytecode, or text with a module or a function."""
    return data.startswith(BYTECODE) or _TEXT.match(data) is not None


_TEXT = re.compile(rb"(\s|//[^\n]*\n|#\w+ = [^\n]*\n)*(\"builtin\.module\"|module\b|func\.func\b)")


def bytecode_of(module: ir.Module) -> bytes:
    """Return a module as bytecode, which another context of MLIR can read."""
    buffer = BytesIO()
    module.operation.write_bytecode(buffer)
    return buffer.getvalue()


def read(path: str | os.PathLike[str]) -> bytes:
    """Return the bytes of a file."""
    with open(path, "rb") as file:
        return file.read()
