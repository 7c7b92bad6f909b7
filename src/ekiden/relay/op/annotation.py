"""The annotation dialect: marks that passes leave for later ones. They mean nothing to a run."""

from __future__ import annotations

from collections.abc import Sequence

from ekiden import topi
from ekiden.ir.attrs import Attrs
from ekiden.ir.node import node
from ekiden.ir.op import Array, OpDef, OpPattern, register_op
from ekiden.ir.type import Type
from ekiden.relay.expr import Call, Expr
from ekiden.relay.op._declare import call


@node("relay.attrs.CompilerAttrs")
class CompilerAttrs(Attrs):
    """The external compiler that code is for."""

    compiler: str = "default"


def _same(types: Sequence[Type], attrs: Attrs | None) -> Type:
    return types[0]


def _identity(attrs: Attrs | None, data: Array) -> Array:
    return data


for _name, _what in (
    ("annotation.compiler_begin", "A value enters code of an external compiler."),
    ("annotation.compiler_end", "A value leaves code of an external compiler."),
):
    register_op(
        OpDef(
            name=_name,
            arguments=("data",),
            attrs=CompilerAttrs,
            relation=_same,
            result="the type of data",
            reference=_identity,
            description=_what,
        )
    )


register_op(
    OpDef(
        name="annotation.stop_fusion",
        arguments=("data",),
        relation=_same,
        result="the type of data",
        reference=_identity,
        lower=lambda attrs, inputs, out: [topi.copy(inputs[0])],
        pattern=OpPattern.OPAQUE,
        description="The same value, with which nothing is fused.",
    )
)


def stop_fusion(data: Expr) -> Call:
    """The same value; operators before it are not fused with those after it."""
    return call("annotation.stop_fusion", data)


def compiler_begin(data: Expr, compiler: str) -> Call:
    """A value enters code of an external compiler."""
    return call("annotation.compiler_begin", data, attrs=CompilerAttrs(compiler))


def compiler_end(data: Expr, compiler: str) -> Call:
    """A value leaves code of an external compiler."""
    return call("annotation.compiler_end", data, attrs=CompilerAttrs(compiler))
