"""Function flags: noalias buffers and fast-math."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden import tir
from ekiden.codegen.build import build
from ekiden.codegen.cache import KernelCache
from ekiden.codegen.llvm import assembly, emit_function
from ekiden.runtime.errors import CompileError
from ekiden.target import Target
from ekiden.tir import PrimFunc
from ekiden.tir.transform import lower

HEAD = "from ekiden.script import tir as T\n@T.prim_func\ndef f("
TARGET = Target.host()


def parse(params: str, body: str, **attrs: object) -> PrimFunc:
    """A lowered function with attributes."""
    typed = params.replace(": (", ": T.Buffer((").replace(")", '), "float32")')
    lines = "\n".join(f"    {line}" for line in body.strip("\n").splitlines())
    func = tir.parse(f"{HEAD}{typed}):\n{lines}\n")
    assert isinstance(func, PrimFunc)
    return lower(func.with_fields(attrs={"global_symbol": "f", **attrs}))


STORES = "b[0] = a[0]\nb[1] = a[0]\nb[2] = a[0]"


def loads(text: str) -> int:
    return text.count("load float")


def test_buffers_may_alias_unless_noalias() -> None:
    assert loads(emit_function(parse("a: (4,), b: (4,)", STORES), TARGET)) == 3
    text = emit_function(parse("a: (4,), b: (4,)", STORES, **{"tir.noalias": True}), TARGET)
    assert loads(text) == 1
    assert text.count("!alias.scope") == 4 and text.count("!noalias") == 4


def test_register_buffers_do_not_alias() -> None:
    """Such registers are on the stack, which is found out while the function is written."""
    body = (
        "b[0] = a[0]\n"
        "with T.alloc_buffer((4,), 'float32', scope='register') as r:\n"
        "    for i in range(4):\n        r[i] = a[i]\n"
        "    for i in range(4):\n        b[i] = r[3 - i]"
    )
    a, b = np.arange(4, dtype="float32"), np.zeros(4, "float32")
    func = parse("a: (4,), b: (4,)", body, **{"tir.noalias": True})
    build(func, cache=KernelCache(None))["f"](a, b)
    assert b.tolist() == [3, 2, 1, 0]


def test_aliasing_arguments_are_reloaded() -> None:
    module = build(
        parse("a: (4,), b: (4,)", "b[0] = a[0] + 1.0\nb[1] = a[0]"), cache=KernelCache(None)
    )
    x = np.array([1, 0, 0, 0], "float32")
    module["f"](x, x)
    assert x.tolist() == [2, 2, 0, 0]


def test_store_to_a_buffer_is_seen_by_its_loads() -> None:
    func = parse(
        "a: (4,), b: (4,)",
        "b[0] = a[0]\nb[1] = b[0] + 1.0\nb[0] = 5.0\nb[2] = b[0]",
        **{"tir.noalias": True},
    )
    a, b = np.full(4, 3, "float32"), np.zeros(4, "float32")
    build(func, cache=KernelCache(None))["f"](a, b)
    assert b.tolist() == [5, 4, 5, 0]


def test_alias_scopes_reach_parallel_loop_bodies() -> None:
    text = emit_function(
        parse(
            "a: (64,), b: (64,)", "for i in T.parallel(64):\n    b[i] = a[i]", **{"tir.noalias": 1}
        ),
        TARGET,
    )
    build(
        parse(
            "a: (64,), b: (64,)", "for i in T.parallel(64):\n    b[i] = a[i]", **{"tir.noalias": 1}
        )
    )
    assert "!alias.scope" in text.split("define internal")[1]


PRODUCT = "for i in range(64):\n    b[i] = a[i] * 2.0 + b[i] * c[i]"


def test_operations_have_the_flags_a_function_allows() -> None:
    plain = emit_function(parse("a: (64,), c: (64,), b: (64,)", PRODUCT), TARGET)
    assert "fadd float" in plain and "contract" not in plain
    func = parse("a: (64,), c: (64,), b: (64,)", PRODUCT, **{"tir.fast_math": "contract nsz"})
    text = emit_function(func, TARGET)
    assert "fadd contract nsz float" in text and "fmul contract nsz float" in text
    has_fma = Target.parse("llvm -mcpu=x86-64-v3")
    assert "vfmadd" in assembly([func], has_fma)
    assert "vfmadd" not in assembly([parse("a: (64,), c: (64,), b: (64,)", PRODUCT)], has_fma)


def test_mathematical_functions_keep_their_order() -> None:
    func = parse(
        "a: (64,), b: (64,)",
        "for i in range(64):\n    b[i] = T.exp(a[i]) + 1.0",
        **{"tir.fast_math": "reassoc contract"},
    )
    lines = emit_function(func, TARGET).splitlines()
    assert sum("reassoc" in line for line in lines) == 1


def test_without_nan_a_maximum_is_one_comparison() -> None:
    body = "for i in range(64):\n    b[i] = T.max(a[i], b[i])"
    counts = [
        emit_function(parse("a: (64,), b: (64,)", body, **{"tir.fast_math": flags}), TARGET).count(
            "fcmp"
        )
        for flags in ("", "nnan")
    ]
    assert counts == [2, 1]


def test_unknown_flag_is_refused() -> None:
    func = parse("a: (4,), b: (4,)", STORES, **{"tir.fast_math": "contract quick"})
    with pytest.raises(CompileError) as caught:
        emit_function(func, TARGET)
    assert str(caught.value) == (
        "function 'f': 'tir.fast_math' has unknown flags quick; there are nnan, ninf, nsz, arcp, "
        "contract, afn, reassoc"
    )
