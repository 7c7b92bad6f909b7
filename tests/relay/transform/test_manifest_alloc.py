"""ManifestAlloc: kernels write into explicitly allocated tensors."""

import pytest
from pass_checks import check, program

from ekiden.relay.transform import ManifestAlloc
from ekiden.runtime.errors import CompileError

pytestmark = pytest.mark.quick


def test_kernel_gets_a_tensor_to_write() -> None:
    check(
        ManifestAlloc(),
        """def @main(%x: Tensor[(2, 3), float32]) {
          let %y = fn (%p: Tensor[(2, 3), float32], Primitive=1) -> Tensor[(2, 3), float32] {
            tanh(%p) }(%x);
          %y }""",
        """def @main(%x: Tensor[(2, 3), float32]) {
          let %s = memory.alloc_storage(size=24);
          let %y = memory.alloc_tensor(%s, offset=0, shape=[2, 3], dtype="float32");
          let %u = vm.invoke_tvm_op(
            fn (%p: Tensor[(2, 3), float32], Primitive=1) -> Tensor[(2, 3), float32] { tanh(%p) },
            (%x,), (%y,));
          %y }""",
    )


def test_sizes_are_expressions_on_symbols() -> None:
    text = ManifestAlloc()(
        program("""def @main(%x: Tensor[(n, 3), float32]) {
          let %y = fn (%p: Tensor[(n, 3), float32], Primitive=1) -> Tensor[(n, 3), float32] {
            tanh(%p) }(%x);
          %y }""")
    ).astext()
    assert (
        "memory.alloc_storage(size=n * 12)" in text or "memory.alloc_storage(size=12 * n)" in text
    )


def test_reshape_becomes_a_view() -> None:
    check(
        ManifestAlloc(),
        """def @main(%x: Tensor[(2, 3), float32]) {
          let %y = fn (%p: Tensor[(2, 3), float32], Primitive=1, relay.reshape_only=1)
            -> Tensor[(6,), float32] { reshape(%p, newshape=[6]) }(%x);
          %y }""",
        """def @main(%x: Tensor[(2, 3), float32]) {
          let %y = vm.reshape_tensor(%x, shape=[6]); %y }""",
    )


def test_kernel_with_several_results_gives_a_tuple() -> None:
    check(
        ManifestAlloc(),
        """def @main(%x: Tensor[(4,), float32]) {
          let %y = fn (%p: Tensor[(4,), float32], Primitive=1) {
            split(%p, indices_or_sections=[1], axis=0) }(%x);
          %y }""",
        """def @main(%x: Tensor[(4,), float32]) {
          let %s = memory.alloc_storage(size=4);
          let %a = memory.alloc_tensor(%s, offset=0, shape=[1], dtype="float32");
          let %t = memory.alloc_storage(size=12);
          let %b = memory.alloc_tensor(%t, offset=0, shape=[3], dtype="float32");
          let %u = vm.invoke_tvm_op(
            fn (%p: Tensor[(4,), float32], Primitive=1) {
              split(%p, indices_or_sections=[1], axis=0) },
            (%x,), (%a, %b));
          let %y = (%a, %b);
          %y }""",
    )


def test_kernels_in_branches_allocate_there() -> None:
    transformed = ManifestAlloc()(
        program("""def @main(%c: bool, %x: float32) {
          let %r = if (%c) {
            let %y = fn (%p: float32, Primitive=1) -> float32 { tanh(%p) }(%x); %y
          } else { %x };
          %r }""")
    )
    lines = str(transformed).splitlines()
    branch = next(i for i, line in enumerate(lines) if "if (" in line)
    assert "memory.alloc_storage" in lines[branch + 1]


def test_shape_that_depends_on_data_is_refused() -> None:
    text = """def @main(%x: Tensor[(?,), float32]) {
      let %y = fn (%p: Tensor[(?,), float32], Primitive=1) -> Tensor[(?,), float32] {
        tanh(%p) }(%x);
      %y }"""
    with pytest.raises(CompileError, match="its shape depends on data"):
        ManifestAlloc()(program(text))
