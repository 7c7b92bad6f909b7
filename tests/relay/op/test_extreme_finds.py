"""Extreme attributes that once took time without end: found by the fuzzer of inputs."""

from __future__ import annotations

import pytest

import ekiden
from ekiden import relay
from ekiden.ir.prim import SizeVar
from ekiden.relay import op
from ekiden.relay.transform import InferType
from ekiden.runtime.errors import TypeInferenceError

pytestmark = pytest.mark.quick


@pytest.mark.parametrize("shape", [(2, 0), (2, SizeVar("n"))])
def test_a_split_into_more_parts_than_any_program_reads_is_refused(shape: tuple[int, ...]) -> None:
    x = relay.var("x", shape=shape)
    module = ekiden.IRModule.from_expr(relay.Function([x], op.split(x, 3 << 60, 1).astuple()))
    with pytest.raises(TypeInferenceError, match="cut into 1 to 65536 parts, got 34587645"):
        InferType()(module)
