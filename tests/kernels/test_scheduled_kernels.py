"""Scheduled kernels: traces print, replay and transfer; unscheduled families give a reason."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ekiden import te, tir
from ekiden.codegen.llvm import compile_object, link_image
from ekiden.ir.prim import SizeVar, maximum
from ekiden.ir.structural import structural_equal
from ekiden.kernels import FAMILIES, ScheduledKernel, families, schedule_kernel
from ekiden.kernels.cpu.dense import schedule_dense
from ekiden.kernels.decision import Overrides
from ekiden.kernels.scheduled_kernel import KernelSpec
from ekiden.runtime import load_image
from ekiden.target import Target
from ekiden.tir.transform import lower
from ekiden.topi.nn import dense_pack
from ekiden.topi.nn.weight_packing import pack_weight
from long_runs import share

TARGET = Target(Target.host(), cores=2)
PAIRS = Target("llvm -mcpu=x86-64-v3 -cores=1")


def dense(
    rows: int | SizeVar, columns: int, depth: int, panel: int, lead: tuple[int | SizeVar, ...] = ()
) -> tuple[list[te.Tensor], te.Tensor]:
    """A dense layer with a bias and an activation."""
    data = te.placeholder((*lead, rows, depth), name="data")
    weight = te.placeholder((-(-columns // panel), depth, panel), name="weight")
    bias = te.placeholder((columns,), name="bias")
    anchor = dense_pack(data, weight, columns, panel)
    out = te.compute(
        anchor.shape, lambda *i: maximum(anchor[i] + bias[i[-1]], 0.0), name="out", tag="broadcast"
    )
    return [data, weight, bias], out


def of_bytes(rows: int, columns: int, depth: int, panel: int) -> tuple[list[te.Tensor], te.Tensor]:
    """A dense layer of bytes."""
    data = te.placeholder((rows, depth), "uint8", name="data")
    weight = te.placeholder((-(-columns // panel), depth // 4, panel, 4), "int8", name="weight")
    return [data, weight], dense_pack(data, weight, columns, panel, "int32")


def looked_up(rows: int, columns: int, depth: int, panel: int) -> tuple[list[te.Tensor], te.Tensor]:
    """A dense layer of bytes with further words of weights, whose words of data a table names."""
    data = te.placeholder((rows, depth), "uint8", name="data")
    panels = -(-columns // panel)
    weight = te.placeholder((panels, depth // 4 + 3, panel, 4), "int8", name="weight")
    table = te.placeholder((panels, 3), "int32", name="table")
    return [data, weight, table], dense_pack(data, weight, columns, panel, "int32", table)


Case = tuple[Callable[[], tuple[list[te.Tensor], te.Tensor]], Target, Overrides]
CASES: dict[str, Case] = {
    "plain": (lambda: dense(37, 100, 64, 48), TARGET, {}),
    "leading": (lambda: dense(5, 96, 64, 48, (2, 3)), TARGET, {"split": "rows"}),
    "parts of the sums": (lambda: dense(9, 100, 768, 48), TARGET, {"k_block": 384, "copy": 1}),
    "any rows": (lambda: dense(SizeVar("m"), 40, 64, 32), TARGET, {}),
    "bytes": (lambda: of_bytes(5, 40, 64, 16), TARGET, {}),
    "looked-up words": (lambda: looked_up(5, 40, 64, 16), PAIRS, {"dot": "madd_u8s8"}),
    "looked-up pairs": (lambda: looked_up(5, 40, 64, 16), PAIRS, {"dot": "madd_s16"}),
    "pairs of bytes": (lambda: of_bytes(5, 40, 64, 16), PAIRS, {"dot": "madd_s16"}),
}


def made(case: Case, fixed: Overrides | None = None) -> ScheduledKernel:
    build, target, argument = case
    inputs, output = build()
    decided = {**argument, **(fixed or {})}
    return schedule_kernel(inputs, [output], target, "kernel", {"dense_pack": decided})


def loops(func: tir.PrimFunc) -> tir.PrimFunc:
    """The function without what is added behind a schedule."""
    kept = {k: v for k, v in (func.attrs or {}).items() if k != "tir.in_place"}
    return func.with_fields(attrs=kept)


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
def test_trace_prints_and_replays(name: str) -> None:
    kernel = made(CASES[name])
    assert kernel.trace is not None and kernel.initial_program is not None
    text = str(kernel.trace)
    assert "sch.get_block(name=" in text
    assert "register_tile(" in text or "matrix_tile(" in text
    saved = tir.Trace.from_json(json.dumps(kernel.trace.as_json()))
    for trace in (kernel.trace, saved):
        again = tir.Schedule(kernel.initial_program)
        trace.apply_to_schedule(again)
        assert structural_equal(again.func, loops(kernel.func), map_free_vars=True)


@pytest.mark.quick
@pytest.mark.parametrize("name", CASES)
def test_compilation_trusts_steps_of_default_decisions_only(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    proofs: list[str] = []

    def note_proofs(sch: tir.Schedule, kernel: KernelSpec) -> None:
        """Schedule a dense layer, and note whether its steps are proved."""
        proofs.append(sch.proofs)
        schedule_dense(sch, kernel)

    family = replace(FAMILIES["dense_pack"], schedule_steps=note_proofs)
    monkeypatch.setitem(families._LOADED_FAMILIES, "dense_pack", family)
    build, target, fixed = CASES[name]
    inputs, output = build()
    monkeypatch.delenv("EKIDEN_SCHEDULE_PROOFS")
    kernels = [
        schedule_kernel(inputs, [output], target, "kernel", overrides)
        for overrides in ({}, {"dense_pack": {"rows": 2}}, {"dense_pack": fixed})
    ]
    assert proofs == ["trusted", "checked", "checked" if fixed else "trusted"]
    for kernel, trusts in zip(kernels, (True, False, not fixed), strict=True):
        assert kernel.trace is not None and kernel.initial_program is not None
        other = tir.Schedule(kernel.initial_program, proofs="checked" if trusts else "trusted")
        kernel.trace.apply_to_schedule(other)
        assert structural_equal(other.func, loops(kernel.func), map_free_vars=True)


N, M = SizeVar("n"), SizeVar("m")


@share(4)
@pytest.mark.quick
@pytest.mark.parametrize("leading", [(N, 64), (N, M, 64), (1, M), (N, 2, M), (N, M, 1), (N, 1)])
@pytest.mark.parametrize(
    "fixed",
    [
        {},
        {"split": "rows"},
        {"split": "panels", "order": "row"},
        {"k_block": 384, "order": "panel"},
    ],
)
def test_rows_of_any_shape(leading: tuple[int | SizeVar, ...], fixed: Overrides) -> None:
    case: Case = (lambda: dense(leading[-1], 100, 768, 48, leading[:-1]), TARGET, fixed)
    assert made(case).func.attrs["tir.tiled"] == 1  # type: ignore[index]


@share(6)
@pytest.mark.quick
@pytest.mark.parametrize("columns", [1, 10, 97])
@pytest.mark.parametrize("leading", [(), (1,), (N,), (N, 1)])
@pytest.mark.parametrize("rows", [1, 7, M])
@pytest.mark.parametrize("target", [TARGET, PAIRS], ids=["two cores", "one"])
def test_few_columns_and_rows(
    target: Target, rows: int | SizeVar, leading: tuple[int | SizeVar, ...], columns: int
) -> None:
    panel = min(32, -(-columns // 16) * 16)
    case: Case = (lambda: dense(rows, columns, 7, panel, leading), target, {})
    assert made(case).func.attrs["tir.tiled"] == 1  # type: ignore[index]


@pytest.mark.quick
@pytest.mark.parametrize("columns", [8, 40, 104, 152, 456])
@pytest.mark.parametrize("cores", [2, 3, 8])
@pytest.mark.parametrize("mcpu", ["x86-64-v4", "znver3", "nehalem"])
def test_tiles_follow_runtime_sizes(mcpu: str, cores: int, columns: int) -> None:
    """Whole panels and what is left over, tiles of two heights: however threads share panels out,
    no other size has code."""
    target = Target(f"llvm -mtriple=x86_64-linux-gnu -mcpu={mcpu} -cores={cores}")
    func = made((lambda: dense(61, columns, 8, 48), target, {"order": "row"})).func
    assert str(func).count('scope="register")') <= 4


def test_transferred_trace_computes_the_same() -> None:
    """The tile of a record is another: its numbers are replaced, and the steps are done again."""
    kernel = made(CASES["plain"])
    assert kernel.trace is not None and kernel.initial_program is not None
    text = json.dumps(kernel.trace.as_json())
    split = next(i for i in kernel.trace.insts if i.kind == "split")
    rows = split.inputs[1][1]  # type: ignore[index]
    assert text.count(f"[null, {rows}]") == 1
    moved = tir.Schedule(kernel.initial_program)
    tir.Trace.from_json(text.replace(f"[null, {rows}]", "[null, 2]")).apply_to_schedule(moved)
    assert str(moved.func) != str(kernel.func)
    random = np.random.default_rng(0)
    data, weight, bias = (
        random.standard_normal(s).astype("float32") for s in ((37, 64), (100, 64), (100,))
    )
    packed = pack_weight(weight, "dense", 48, 1)
    for func in (kernel.func, moved.func):
        out = np.full((37, 100), np.nan, "float32")
        load_image(link_image([compile_object([lower(func, TARGET)], TARGET)], ["kernel"]))[
            "kernel"
        ](data, packed, bias, out)
        np.testing.assert_allclose(out, np.maximum(data @ weight.T + bias, 0), rtol=1e-4, atol=1e-4)


@pytest.mark.quick
def test_every_family_is_a_schedule_or_says_why_not() -> None:
    for family in FAMILIES.values():
        assert family.schedule_steps or family.build_unscheduled, family.name
        assert bool(family.unscheduled_reason) == (family.build_unscheduled is not None), (
            family.name
        )


@pytest.mark.quick
def test_docs_list_handwritten_kernels() -> None:
    page = (Path(__file__).parents[2] / "docs" / "kernels.md").read_text()
    rows = re.findall(r"^\| (`.+`.*) \| (.+) \|$", page, re.MULTILINE)
    listed = {name: why for names, why in rows for name in re.findall(r"`(\w+)`", names)}
    assert listed == {
        f.name: f.unscheduled_reason for f in FAMILIES.values() if f.unscheduled_reason
    }
