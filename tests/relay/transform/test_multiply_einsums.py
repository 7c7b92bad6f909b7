"""MultiplyEinsums: Einstein's sums over two operands become matrix products."""

from __future__ import annotations

import numpy as np
import pytest
from pass_checks import assert_same_meaning, calls, check, program

import ekiden
from ekiden.relay.transform import FoldConstant, InferType, MultiplyEinsums

EXTENTS = {"a": 2, "b": 3, "i": 4, "j": 5, "k": 6, "l": 1}


def array(labels: str) -> np.ndarray:
    return np.random.default_rng(len(labels)).random([EXTENTS[n] for n in labels], np.float32)


def shape(labels: str) -> str:
    extents = ", ".join(str(EXTENTS[n]) for n in labels)
    return f"({extents}{',' if len(labels) == 1 else ''})"


@pytest.mark.parametrize(
    ("left", "right", "out", "kind"),
    [
        ("ij", "jk", "ik", "nn.matmul"),
        ("ij", "kj", "ik", "nn.dense"),
        ("ij", "jk", "ki", "nn.matmul"),
        ("aij", "jk", "aik", "nn.matmul"),
        ("aij", "ajk", "aik", "nn.batch_matmul"),
        ("aibk", "ajbk", "abij", "nn.batch_matmul"),
        ("abij", "abjk", "aibk", "nn.batch_matmul"),
        ("iab", "bak", "ik", "nn.dense"),
        ("ij", "ij", "", "nn.matmul"),
        ("ij", "j", "i", "nn.matmul"),
        ("aij", "aj", "ai", "nn.batch_matmul"),
        ("ij", "kl", "ijkl", "einsum"),  # nothing to sum
        ("ij", "jk", "i", "einsum"),  # summed in one operand alone
        ("ij", "ik", "ijk", "einsum"),
    ],
)
def test_einsums_become_matmuls(left: str, right: str, out: str, kind: str) -> None:
    before = program(
        f"""def @main(%x: Tensor[{shape(left)}, float32], %y: Tensor[{shape(right)}, float32]) {{
          einsum((%x, %y), equation="{left},{right}->{out}") }}"""
    )
    after = InferType()(MultiplyEinsums()(before))
    assert kind in calls(after) and (kind == "einsum") == ("einsum" in calls(after))
    assert_same_meaning(before, after, [array(left), array(right)])


def test_operands_with_matching_axes_are_not_transposed() -> None:
    check(
        MultiplyEinsums(),
        """def @main(%x: Tensor[(a, n, k), float32], %y: Tensor[(a, m, k), float32]) {
          einsum((%x, %y), equation="anm,akm->ank") }""",
        """def @main(%x: Tensor[(a, n, k), float32], %y: Tensor[(a, m, k), float32]) {
          nn.batch_matmul(%x, %y) }""",
    )


@pytest.mark.parametrize(
    ("types", "equation"),
    [
        (("Tensor[(4, 4), float32]", "Tensor[(4, 5), float32]"), "ii,ij->ij"),
        (("Tensor[(4, 1), float32]", "Tensor[(6, 5), float32]"), "ij,jk->ik"),  # 1 broadcasts
        (("Tensor[(4, n), float32]", "Tensor[(m, 5), float32]"), "ij,jk->ik"),
        (("Tensor[(4, 6), int32]", "Tensor[(6, 5), int32]"), "ij,jk->ik"),
    ],
)
def test_other_einsums_are_unchanged(types: tuple[str, str], equation: str) -> None:
    text = f'einsum((%x, %y), equation="{equation}")'
    module = program(f"def @main(%x: {types[0]}, %y: {types[1]}) {{ {text} }}")
    assert calls(MultiplyEinsums()(module)) == ["einsum"]


def test_constant_becomes_the_weight_of_a_dense_layer() -> None:
    before = program(
        """def @main(%x: Tensor[(n, 6), float32], %w: Tensor[(2, 6, 5), float32]) {
          einsum((%x, %w), equation="nk,akj->naj") }""",
        w=array("akj"),
    )
    after = FoldConstant()(MultiplyEinsums()(before))
    assert calls(after) == ["nn.dense", "reshape"]
    assert_same_meaning(before, after, [np.ones((3, 6), np.float32)])


def test_einsums_of_symbolic_sizes_become_matmuls() -> None:
    module = program(
        """def @main(%q: Tensor[(n, h, 8), float32], %k: Tensor[(m, h, 8), float32]) {
          einsum((%q, %k), equation="nhd,mhd->hnm") }"""
    )
    executable = ekiden.compile(module)
    for n, m, h in ((3, 5, 2), (1, 1, 1), (0, 4, 3)):
        q, k = np.ones((n, h, 8), np.float32), np.ones((m, h, 8), np.float32) * 2
        np.testing.assert_array_equal(executable(q, k).numpy(), np.full((h, n, m), 16))
