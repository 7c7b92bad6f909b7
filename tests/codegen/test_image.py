"""Native code images: linked the same every time, taken apart again, and only calling what the
runtime provides."""

from __future__ import annotations

import numpy as np
import pytest

from ekiden.codegen.llvm import compile_ir, compile_object, link_image, parse_image
from ekiden.codegen.llvm.image import architecture_of
from ekiden.ir.prim import SizeVar, Var, const
from ekiden.runtime import load_image
from ekiden.runtime.errors import InternalError, LoadError
from ekiden.target import Target
from ekiden.tir.expr import Buffer
from ekiden.tir.stmt import Allocate, BufferStore, For, ForKind, PrimFunc

pytestmark = pytest.mark.quick
TARGET = Target.host()


def fill(name: str, value: float) -> PrimFunc:
    n, i = SizeVar("n"), Var("i")
    out, scratch = Buffer("out", (n,)), Buffer("scratch", (n,))
    loop = For(i, const(0), n, ForKind.PARALLEL, BufferStore(out, const(value), (i,)))
    return PrimFunc((out,), Allocate(scratch, loop), {"global_symbol": name})


@pytest.mark.slow
def test_many_objects_make_one_image() -> None:
    names = [f"fill_{i}" for i in range(20)]
    objects = [compile_object([fill(n, float(i))], TARGET) for i, n in enumerate(names)]
    image = link_image(objects, names)
    module = load_image(image)
    for i, name in enumerate(names):
        out = np.zeros(33, "float32")
        module[name](out)
        assert (out == i).all()
    info = parse_image(image)
    assert list(info.exports) == names
    assert info.imports == (
        "ek_kernel_error",
        "ek_parallel_for",
        "ek_workspace_alloc",
        "ek_workspace_free",
    )


def test_several_functions_in_one_object() -> None:
    image = link_image(
        [compile_object([fill("one", 1.0), fill("two", 2.0)], TARGET)], ["two", "one"]
    )
    out = np.zeros(3, "float32")
    load_image(image)["two"](out)
    assert out.tolist() == [2.0] * 3


def test_same_program_same_bytes() -> None:
    first, second = (
        link_image([compile_object([fill("f", 1.5)], TARGET)], ["f"]) for _ in range(2)
    )
    assert first == second


def test_no_exports() -> None:
    assert parse_image(link_image([], [])).exports == {}


def test_unknown_import_is_refused() -> None:
    body = "%y = call float @expf(float %x)\n ret float %y\n"
    text = f"declare float @expf(float)\ndefine float @f(float %x) {{\n {body}}}\n"
    with pytest.raises(
        InternalError, match=r"^image: compiled code calls expf; there are ek_call_packed, "
    ):
        link_image([compile_ir(text, TARGET)], ["f"])


def test_missing_and_double_definitions_are_refused() -> None:
    one = compile_object([fill("f", 1.0)], TARGET)
    with pytest.raises(InternalError, match=r"^image: no object defines 'g'$"):
        link_image([one], ["g"])
    with pytest.raises(InternalError, match=r"^image: 'f' is defined twice$"):
        link_image([one, one], ["f"])


def test_memory_functions_can_be_called() -> None:
    text = """
declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)
define i32 @f(ptr %self, ptr %args, i32 %n, ptr %ret) {
  %size = sext i32 %n to i64
  call void @llvm.memset.p0.i64(ptr %ret, i8 0, i64 %size, i1 false)
  ret i32 0
}
"""
    image = link_image([compile_ir(text, TARGET)], ["f"])
    assert parse_image(image).imports == ("memset",)
    load_image(image)["f"](1)


def test_switch_tables_are_position_independent() -> None:
    cases = "\n".join(f"    i32 {i}, label %c{i}" for i in range(12))
    bodies = "\n".join(
        f"c{i}:\n  call i32 @ek_kernel_error(ptr @k, ptr @m{i})\n  ret i32 -1" for i in range(12)
    )
    strings = "\n".join(f'@m{i} = private constant [4 x i8] c"m{i:02}\\00"' for i in range(12))
    text = f"""
@k = private constant [10 x i8] c"TypeError\\00"
{strings}
declare i32 @ek_kernel_error(ptr, ptr)
define i32 @f(ptr %self, ptr %args, i32 %n, ptr %ret) {{
  switch i32 %n, label %rest [
{cases}
  ]
{bodies}
rest:
  ret i32 0
}}
"""
    kernel = load_image(link_image([compile_ir(text, TARGET)], ["f"]))["f"]
    for n in range(12):
        with pytest.raises(TypeError, match=f"^m{n:02}$"):
            kernel(*range(n))
    kernel(*range(12))


def test_prefixes_are_refused() -> None:
    image = link_image([compile_object([fill("f", 1.0)], TARGET)], ["f"])
    for size in [*range(0, len(image), 97), len(image) - 1]:
        with pytest.raises(LoadError):
            parse_image(image[:size])
        with pytest.raises(LoadError):
            load_image(image[:size])


def test_image_for_another_architecture_is_refused() -> None:
    other = bytearray(link_image([compile_object([fill("f", 1.5)], TARGET)], ["f"]))
    other[6] = 1 - other[6]
    with pytest.raises(LoadError, match="header: this machine lacks what its code needs: AArch64"):
        load_image(bytes(other))


def test_objects_of_two_architectures_do_not_link() -> None:
    objects = [compile_object([fill(name, 1.5)], Target.parse(f"llvm -mcpu={cpu}"))
               for name, cpu in (("f", "x86-64"), ("g", "cortex-a72"))]  # fmt: skip
    with pytest.raises(InternalError, match="objects of one known machine expected"):
        link_image(objects, ["f", "g"])


BIG_FRAME = """
declare i32 @ek_kernel_error(ptr, ptr)
define i32 @big(ptr %self, ptr %args, i32 %count, ptr %result) nounwind {
  %frame = alloca [20000 x i8]
  %code = call i32 @ek_kernel_error(ptr %frame, ptr %args)
  ret i32 %code
}
"""


@pytest.mark.parametrize("environment", ["gnu", "msvc"])
def test_frames_of_windows_touch_each_page_of_the_stack(environment: str) -> None:
    target = Target.parse(f"llvm -mtriple=x86_64-pc-windows-{environment} -mcpu=x86-64-v2")
    image = link_image([compile_ir(BIG_FRAME, target)], ["big"], target)
    assert architecture_of(image) == "x86_64-windows"
    assert parse_image(image).imports == ("ek_kernel_error",)  # the probe is inside
    with pytest.raises(LoadError, match="lacks what its code needs: Windows"):
        load_image(image)


def test_windows_with_any_c_library_gets_the_same_image() -> None:
    images = set()
    for environment in ("gnu", "msvc"):
        target = Target.parse(f"llvm -mtriple=x86_64-pc-windows-{environment} -mcpu=x86-64-v2")
        images.add(link_image([compile_object([fill("f", 1.0)], target)], ["f"], target))
    assert len(images) == 1
