"""Declaration of operators that are a single topi computation; types and lowering are derived from
it.

The type relation runs the computation on placeholders of the argument types, so shapes are stated
once. The reference runs its plain loop program in the interpreter of tir, unless a shorter one in
NumPy is given.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from ekiden import te
from ekiden.arith import evaluate
from ekiden.ir.attrs import Attrs
from ekiden.ir.dtype import to_numpy
from ekiden.ir.op import (
    ArgTypeSolver,
    Array,
    Macs,
    OpDef,
    OpPattern,
    PaddingAbsorption,
    PrecisionPolicy,
    ReferenceFunc,
    TypeRelationFunc,
    register_op,
)
from ekiden.ir.type import TensorType, TupleType, Type
from ekiden.relay.op._declare import (
    DtypeKind,
    check_dtype,
    check_tensors,
    check_tuple_of_tensors,
    raise_type_error,
)
from ekiden.relay.op._interpreter_fallback import InterpretedReference, LoopProgram
from ekiden.te import Tensor
from ekiden.tir import transform as tir_transform

Compute = Callable[..., "Tensor | Sequence[Tensor]"]
"""Computation (attributes, *tensors) -> tensor, or tensors for a tuple; a ValueError becomes a type
error. ValueError is a type error.
"""


def declare_topi_op(
    name: str,
    arguments: Sequence[str],
    compute: Compute,
    result: str,
    attrs: type[Attrs] | None = None,
    pattern: OpPattern = OpPattern.OPAQUE,
    reference: Callable[..., Any] | None = None,
    variadic: bool = False,
    fields: int | Callable[[Attrs | None], int] | None = None,
    solve: ArgTypeSolver | None = None,
    macs: Macs | None = None,
    layout: str = "",
    precision: PrecisionPolicy = PrecisionPolicy.UNKNOWN,
    description: str = "",
    takes: Mapping[str, DtypeKind] | None = None,
    refuses: bool = False,
    channels: tuple[int, int] | None = None,
    borders: PaddingAbsorption = PaddingAbsorption.NO,
    costly: bool = False,
    weight_layouts: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Declare an operator computed by one topi function; `fields` is the number of results of a
    tuple, `takes` the accepted dtypes of arguments.
    """
    register_op(
        OpDef(
            name=name,
            arguments=tuple(arguments),
            attrs=attrs,
            relation=_topi_relation(name, None if variadic else arguments, compute, takes or {}),
            reference=_interpreter_reference(compute)
            if reference is None
            else _numpy_reference(reference),
            lower=lambda attrs, inputs, out: _as_list(compute(attrs, *inputs)),
            pattern=pattern,
            variadic=variadic,
            fields=(lambda attrs: fields) if isinstance(fields, int) else fields,
            solve=solve,
            macs=macs,
            layout=layout,
            precision=precision,
            result=result,
            description=description,
            may_fail=refuses,
            channels=channels,
            weight_layouts=weight_layouts,
            padding_absorption=borders,
            is_expensive=costly,
        )
    )


def _as_list(results: Tensor | Sequence[Tensor]) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def _topi_relation(
    name: str, arguments: Sequence[str] | None, compute: Compute, takes: Mapping[str, DtypeKind]
) -> TypeRelationFunc:
    def relation(types: Sequence[Type], attrs: Attrs | None) -> Type:
        """Infer the result type by running the computation on placeholders.

        Shapes are thus written once, in topi. Errors of the computation become a TypeInferenceError
        of the operator.
        """
        if arguments is None:
            kinds = check_tuple_of_tensors(name, types)
        else:
            kinds = check_tensors(name, types, len(arguments))
            for what, kind in zip(arguments, kinds, strict=True):
                check_dtype(name, what, kind.dtype, takes.get(what, "any"))
        # The computation itself is the shape function: relation and kernel cannot disagree.
        inputs = [te.placeholder(t.shape, t.dtype, f"x{n}") for n, t in enumerate(kinds)]
        try:
            outputs = compute(attrs, *inputs)
        except (ValueError, TypeError, IndexError) as error:
            raise_type_error(name, str(error).removeprefix(f"{name.rpartition('.')[2]}: "))
        types_of = [TensorType(tuple(t.shape), t.dtype) for t in _as_list(outputs)]
        return types_of[0] if isinstance(outputs, Tensor) else TupleType(tuple(types_of))

    return relation


def _numpy_reference(function: Callable[..., Any]) -> ReferenceFunc:
    """Wrap a function of (attributes, *arrays) as a NumPy reference without floating-point
    warnings.
    """

    def reference(attrs: Attrs | None, *arrays: Array) -> Array | tuple[Array, ...]:
        """Return the results as arrays, with NumPy's warnings about infinities and NaNs
        suppressed.
        """
        with np.errstate(all="ignore"):
            results = function(attrs, *arrays)
        if isinstance(results, (tuple, list)):
            return tuple(np.asarray(f) for f in results)
        return np.asarray(results)

    return reference


def _interpreter_reference(compute: Compute) -> ReferenceFunc:
    def program_of(attrs: Attrs | None, arrays: Sequence[Array]) -> LoopProgram:
        """Return the computation's loop program for arrays of these shapes, and its outputs."""
        inputs = [te.placeholder(a.shape, str(a.dtype), f"x{n}") for n, a in enumerate(arrays)]
        computed = compute(attrs, *inputs)
        outputs = _as_list(computed)
        # Shapes of arrays are numbers, so that the extents of the results are constants.
        shapes = [[evaluate(d, {}) for d in t.shape] for t in outputs]
        results = tuple(
            np.empty(n, to_numpy(t.dtype)) for n, t in zip(shapes, outputs, strict=True)
        )
        # A program without any output elements has nothing to run.
        func = (
            tir_transform.lower(te.create_prim_func([*inputs, *outputs]))
            if any(r.size for r in results)
            else None
        )
        return LoopProgram(func, results, not isinstance(computed, Tensor))

    return InterpretedReference(program_of)
