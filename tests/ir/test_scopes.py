"""Scopes of structural equality: what the functions of a module and loop programs share has no
meaning. The text writes a function and a loop program on its own, and reads back without sharing.
"""

from __future__ import annotations

import pytest

from ekiden import tir
from ekiden.ir.compare import find_first_mismatch
from ekiden.ir.expr import BaseFunc
from ekiden.ir.module import IRModule
from ekiden.ir.prim import SizeVar
from ekiden.ir.structural import structural_digest, structural_equal, structural_hash
from ekiden.relay import (
    Call,
    Function,
    GlobalVar,
    If,
    Type,
    TypeVar,
    op,
    parse,
    tensor_type,
    var,
)
from ekiden.relay.op.prim_func_call import call_lowered
from ekiden.script import tir as T
from ekiden.tir.alpha_renaming import renew_defs

pytestmark = pytest.mark.quick

F32 = "float32"


@T.prim_func
def doubled(x: T.Buffer((3,), F32), y: T.Buffer((3,), F32)) -> None:  # type: ignore[valid-type]
    for i in range(3):
        y[i] = x[i] * T.float32(2)


@T.prim_func
def tripled(x: T.Buffer((3,), F32), y: T.Buffer((3,), F32)) -> None:  # type: ignore[valid-type]
    for i in range(3):
        y[i] = x[i] * T.float32(3)


def _calls_in_branches(first: tir.PrimFunc, second: tir.PrimFunc) -> IRModule:
    c, x = var("c", shape=(), dtype="bool"), var("x", shape=(3,))
    branches = call_lowered(first, [x]), call_lowered(second, [op.exp(x)])
    return IRModule.from_expr(Function((c, x), If(c, *branches)))


def _shared_nodes() -> dict[str, BaseFunc]:
    """Two functions of one parameter and one expression."""
    x = var("x", shape=(3,))
    value = op.exp(x)
    return {"f": Function((x,), op.add(value, value)), "g": Function((x,), value)}


def _shared_size(*sizes: SizeVar) -> IRModule:
    """A function for each size, and an attribute about the size of the first."""
    params = [var("x", type_annotation=tensor_type((n,))) for n in sizes]
    functions = {f"f{at}": Function((x,), op.exp(x)) for at, x in enumerate(params)}
    return IRModule({**functions}, attrs={"sizes": sizes[:1]})


PLAIN = Function((x := var("x", shape=(3,)),), op.exp(x))
N = SizeVar("n")
MODULES: dict[str, IRModule] = {
    "a loop program called in both branches": _calls_in_branches(doubled, doubled),
    "a loop program of two names": IRModule({"f": doubled, "g": doubled}),
    "a function of two names": IRModule({"f": PLAIN, "g": PLAIN}),
    "an expression of two functions": IRModule({**_shared_nodes()}),
    "a size of two functions": _shared_size(N, N),
}


@pytest.mark.parametrize("name", MODULES)
def test_text_reads_back_what_scopes_share(name: str) -> None:
    module = MODULES[name]
    again = parse(module.astext())
    assert structural_equal(again, module)
    assert structural_digest(again) == structural_digest(module)
    assert structural_hash(again) == structural_hash(module)
    assert find_first_mismatch(again, module) is None


def test_copies_of_a_loop_program_are_the_loop_program() -> None:
    shared, copied = (_calls_in_branches(doubled, f) for f in (doubled, renew_defs(doubled)))
    assert structural_equal(shared, copied) and structural_equal(copied, shared)
    assert structural_digest(shared) == structural_digest(copied)


def test_loop_programs_that_differ_are_named_by_their_path() -> None:
    same, other = (_calls_in_branches(doubled, f) for f in (doubled, tripled))
    assert not structural_equal(same, other)
    assert structural_digest(same) != structural_digest(other)
    mismatch = find_first_mismatch(same, other)
    assert mismatch is not None
    assert mismatch.path.startswith("functions.main.body.false_branch.attrs.func.body")
    assert (mismatch.lhs, mismatch.rhs) == ("2.0", "3.0")


def test_expression_shared_within_a_function_stays_shared() -> None:
    x = var("x", shape=(3,))
    once = IRModule.from_expr(Function((x,), op.add(value := op.exp(x), value)))
    twice = IRModule.from_expr(Function((x,), op.add(op.exp(x), op.exp(x))))
    assert not structural_equal(once, twice)


def test_size_stays_one_for_the_functions_and_attributes_of_a_module() -> None:
    one, two = _shared_size(N, N), _shared_size(N, SizeVar("n"))
    assert not structural_equal(one, two)
    mismatch = find_first_mismatch(one, two)
    assert mismatch is not None and mismatch.path.startswith("functions.f1.")


def _call_of_identity(*type_args: Type) -> IRModule:
    kind = TypeVar("A")
    y, x = var("y", type_annotation=kind), var("x", dtype="int32", shape=())
    identity = Function((y,), y, kind, (kind,))
    name = GlobalVar("identity")
    return IRModule(
        {name: identity, GlobalVar("main"): Function((x,), Call(name, (x,), None, type_args))}
    )


def test_type_arguments_of_functions_are_compared_where_both_write_them() -> None:
    int32, int64 = (tensor_type((), dtype) for dtype in ("int32", "int64"))
    bare, written, other = _call_of_identity(), _call_of_identity(int32), _call_of_identity(int64)
    assert structural_equal(bare, written) and structural_equal(bare, other)
    assert not structural_equal(written, other)


def test_constructors_of_two_modules_are_not_the_difference() -> None:
    """Type parameters of a constructor are bound by it."""
    text = "type Box[A] { Full(A), }\ndef @main() { Full(%s) }"
    mismatch = find_first_mismatch(parse(text % "1f"), parse(text % "2f"))
    assert mismatch is not None and mismatch.path == "functions.main.body.args[0].data[]"


def test_functions_are_added_to_a_clone_alone() -> None:
    module = IRModule({"f": PLAIN}, attrs={"n": 1})
    clone = module.clone()
    assert structural_equal(clone, module)
    clone["g"] = PLAIN
    assert "g" in clone and "g" not in module
