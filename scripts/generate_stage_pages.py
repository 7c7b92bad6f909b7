#!/usr/bin/env python3
"""Generate the pages of the compiler's stages in docs/concepts from a small compiled model: the
program before and after each stage, and its picture.

    scripts/generate_stage_pages.py           write the pages and pictures
    scripts/generate_stage_pages.py --check   fail if the text of a page is out of date
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
import onnx
from generated_files import REPOSITORY_ROOT, write_or_check
from onnx import helper, numpy_helper

import ekiden
from ekiden import relay, te, tir
from ekiden.backend.vm.pipeline import optimize_module
from ekiden.frontend.onnx import from_onnx
from ekiden.ir.instrument import PassInstrument
from ekiden.ir.module import IRModule
from ekiden.ir.transform import PassContext
from ekiden.relay.expr import Function
from ekiden.target import Target
from ekiden.target.virtual_device import compilation_config

CONCEPTS_FOLDER = REPOSITORY_ROOT / "docs/concepts"
DOCUMENTED_TARGET = "llvm -mcpu=x86-64-v3"
"""Named, so that the pages are the same on every machine."""
LINE_HEIGHT, GLYPH_WIDTH, INDENT_WIDTH, PADDING = 16, 7.0, 14, 8
"""Pixels of nests: a line, a glyph, a level, room."""
ARROW_COLOUR = "#6aa67c"
DARK_COLOURS = {
    "#1d2733": "#d6dde6",
    "#1d6b35": "#8fd18f",
    "#e6f5ea": "#1d3a27",
    ARROW_COLOUR: "#8fd18f",
    "#eef3f9": "#1b2733",
    "#e2ecf6": "#22313f",
    "#d6e4f2": "#2a3c4e",
    "#cadded": "#32485d",
    "#bed5e9": "#3a546d",
}
"""Light colour -> the one that replaces it on dark pages."""


def example_model() -> onnx.ModelProto:
    """Return the ONNX model y = softmax(relu(x W1 + b) W2 + x), with an identity and a foldable
    constant.
    """
    rng = np.random.default_rng(0)
    arrays = {
        "w1": rng.standard_normal((64, 64), np.float32),
        "half": np.float32(0.5),
        "bias": rng.standard_normal(64, np.float32),
        "w2": rng.standard_normal((64, 64), np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w1"], ["a"], "first"),
        helper.make_node("Mul", ["bias", "half"], ["b"], "constant"),
        helper.make_node("Add", ["a", "b"], ["c"], "add_bias"),
        helper.make_node("Relu", ["c"], ["d"], "relu"),
        helper.make_node("Identity", ["d"], ["e"], "nothing"),
        helper.make_node("MatMul", ["e", "w2"], ["f"], "second"),
        helper.make_node("Add", ["f", "x"], ["g"], "residual"),
        helper.make_node("Softmax", ["g"], ["y"], "chances", axis=-1),
    ]
    ports = [helper.make_tensor_value_info(n, 1, ["n", 64]) for n in "xy"]
    weights = [numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "block", ports[:1], ports[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


class PassSnapshots(PassInstrument):
    """Pass instrument that records the module before and after the first run of a pass."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.before: IRModule | None = None
        self.after: IRModule | None = None

    def run_before_pass(self, module: IRModule, info: object) -> None:
        """Record the module before the pass."""
        if getattr(info, "name", "") == self.name and self.before is None:
            self.before = module

    def run_after_pass(self, module: IRModule, info: object) -> None:
        """Record the module after the pass."""
        if getattr(info, "name", "") == self.name and self.after is None:
            self.after = module


def main_function(module: IRModule) -> Function:
    """Return the function `main`."""
    function = module["main"]
    assert isinstance(function, Function)
    return function


def format_relay(function: Function) -> str:
    """Return a function as Relay text, without spans and kernel digests."""
    text = relay.astext(function, show_meta_data=False)
    text = re.sub(r"/\* ty=(?:[^*]|\*(?!/))*?\*/ ?", "", text)
    text = re.sub(r"(?:, )?(?:span|hash)=\"?[^,*)\n]*?(?= \*/|,|\))", "", text)
    text = re.sub(r"/\*\s*\*/ ?", "", text)
    text = re.sub(r"meta\[relay\.Constant\]\[(\d+)\]", r"constant\1", text)
    text = re.sub(r"(?<=\S) +(?=[;,)])", "", text)
    lines = (line.rstrip() for line in text.splitlines())
    return "\n".join(text_line for text_line in lines if not text_line.startswith("#["))


def format_typed_relay(module: IRModule) -> str:
    """Return the main function as Relay text with type annotations."""
    text = relay.astext(main_function(module), show_meta_data=False)
    text = re.sub(r"meta\[relay\.Constant\]\[(\d+)\]", r"constant\1", text)
    return "\n".join(
        text_line.rstrip() for text_line in text.splitlines() if not text_line.startswith("#[")
    )


def strip_kernel_digests(text: str) -> str:
    """Strip the trailing digests of kernel names."""
    return re.sub(r"_[0-9a-f]{12}\b", "", text)


def draw_nested_blocks(text: str) -> str:
    """Return indented code as an SVG of nested boxes, one per compound statement."""
    lines = [
        source_line
        for source_line in text.splitlines()
        if source_line.strip() and not source_line.startswith("from ")
    ]
    unit = min((len(e) - len(e.lstrip()) for e in lines if e.startswith(" ")), default=4)
    depth = [(len(shown_line) - len(shown_line.lstrip())) // unit for shown_line in lines]
    width = max(
        len(e.strip()) * GLYPH_WIDTH + d * INDENT_WIDTH for e, d in zip(lines, depth, strict=True)
    )
    width += 2 * PADDING + INDENT_WIDTH * max(depth)
    shown: list[str] = []
    for index, (line, level) in enumerate(zip(lines, depth, strict=True)):
        last = next((i for i in range(index + 1, len(lines)) if depth[i] <= level), len(lines))
        x, y = PADDING / 2 + level * INDENT_WIDTH, PADDING + index * LINE_HEIGHT
        if last > index + 1:
            box_width, box_height = (
                width - 2 * level * INDENT_WIDTH,
                (last - index) * LINE_HEIGHT - 2,
            )
            size = f'width="{box_width:.0f}" height="{box_height}"'
            shade = ("#eef3f9", "#e2ecf6", "#d6e4f2", "#cadded", "#bed5e9")[level % 5]
            shown.append(f'<rect x="{x:.0f}" y="{y:.0f}" {size} rx="4" fill="{shade}"/>')
        shown.append(
            f'<text x="{x + PADDING / 2:.0f}" y="{y + LINE_HEIGHT - 5:.0f}">'
            f"{escape(line.strip())}</text>"
        )
    return wrap_svg("".join(shown), width + PADDING, PADDING * 2 + LINE_HEIGHT * len(lines))


def draw_kernel_calls(text: str) -> str:
    """Return bytecode as an SVG with an arrow from each call to its kernel."""
    code = re.findall(r"^\s*(\d+): (.+)$", text, re.MULTILINE)
    kernels = dict(re.findall(r"^PackedFunc\[(\d+)\]: (.+)$", text, re.MULTILINE))
    code_width = max(len(body) for _, body in code) * GLYPH_WIDTH + 60
    right = code_width + 70
    width = right + max(map(len, kernels.values())) * GLYPH_WIDTH + 3 * PADDING
    shown = []
    kernel_y = {
        number: PADDING + LINE_HEIGHT * (2 + index * max(2, len(code) // len(kernels)))
        for index, number in enumerate(kernels)
    }
    for number, y in kernel_y.items():
        size = f'width="{width - right - PADDING:.0f}" height="{LINE_HEIGHT + 6}"'
        shown.append(f'<rect x="{right}" y="{y - 4}" {size} rx="4" fill="#e6f5ea"/>')
        shown.append(
            f'<text x="{right + PADDING}" y="{y + LINE_HEIGHT - 5}">{kernels[number]}</text>'
        )
    for index, (number, body) in enumerate(code):
        y = PADDING + index * LINE_HEIGHT
        called = re.search(r"PackedFunc\[(\d+)\]", body)
        if called:
            end = kernel_y[called[1]] + LINE_HEIGHT / 2
            start = f"M{code_width} {y + 8} C{code_width + 35} {y + 8}"
            path = f"{start} {right - 35} {end} {right - 2} {end}"
            shown.append(
                f'<path d="{path}" fill="none" stroke="{ARROW_COLOUR}" stroke-width="1.5"/>'
            )
        colour = ' fill="#1d6b35"' if called else ""
        shown.append(
            f'<text x="{PADDING}" y="{y + LINE_HEIGHT - 5}"{colour}>'
            f"{number:>2}  {escape(body)}</text>"
        )
    return wrap_svg("".join(shown), width, 2 * PADDING + LINE_HEIGHT * max(len(code), 3))


def wrap_svg(body: str, width: float, height: float) -> str:
    """Wrap a body in an SVG file, with a second set of colours for dark pages."""
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    font = (
        'font-family="ui-monospace,monospace" font-size="11.5" fill="#1d2733" xml:space="preserve"'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>{dark_style()}<g {font}>{body}</g></svg>\n'
    )


def dark_style() -> str:
    """Return the style sheet that replaces each light colour on dark pages."""
    rules = "".join(
        f'[{attribute}="{light}"]{{{attribute}:{dark}}}'
        for light, dark in DARK_COLOURS.items()
        for attribute in ("fill", "stroke")
        if attribute == "fill" or light == ARROW_COLOUR
    )
    return f"<style>@media (prefers-color-scheme:dark){{{rules}}}</style>"


def format_nodes(proto: onnx.ModelProto) -> str:
    """Return a model's nodes, one per line."""
    lines = []
    for node in proto.graph.node:
        lines.append(
            f"{', '.join(node.output)} = {node.op_type}({', '.join(node.input)})  # {node.name}"
        )
    return "\n".join(lines)


def matmul_relu() -> tuple[str, tir.PrimFunc]:
    """Return a matrix product followed by a relu: its `te` source and its loop program."""
    source = (
        'A = te.placeholder((n, 64), name="A")\n'
        'B = te.placeholder((64, 64), name="B")\n'
        'k = te.reduce_axis((0, 64), name="k")\n'
        'C = te.compute((n, 64), lambda i, j: te.sum(A[i, k] * B[k, j], axis=k), name="C")\n'
        'D = te.compute((n, 64), lambda i, j: te.max(C[i, j], te.const(0.0, "float32")), name="D")'
    )
    n = te.size_var("n")
    a, b = te.placeholder((n, 64), name="A"), te.placeholder((64, 64), name="B")
    k = te.reduce_axis((0, 64), name="k")
    c = te.compute((n, 64), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    d = te.compute((n, 64), lambda i, j: tir.max(c[i, j], tir.const(0.0, "float32")), name="D")
    return source.replace("te.max", "tir.max").replace(
        "te.const", "tir.const"
    ), te.create_prim_func([a, b, d])


def schedule_matmul(function: tir.PrimFunc) -> tir.Schedule:
    """Return the product with 16-wide vectorized tiles and the relu computed at the tile."""
    sch = tir.Schedule(function)
    block, relu = sch.get_block("C"), sch.get_block("D")
    i, j, k = sch.get_loops(block)
    j_tile, j_lane = sch.split(j, factors=[None, 16])
    sch.reorder(i, j_tile, k, j_lane)
    sch.vectorize(j_lane)
    sch.reverse_compute_at(relu, j_tile)
    sch.decompose_reduction(block, k)
    return sch


def code_fence(language: str, text: str) -> str:
    """Return a fenced code block."""
    return f"```{language}\n{text.strip()}\n```"


def before_after_blocks(
    before: tuple[str, str], after: tuple[str, str], first: str = "Before"
) -> str:
    """Return the code fences before and after a stage, with their headings."""
    return f"{first}:\n\n{code_fence(*before)}\n\nAfter:\n\n{code_fence(*after)}"


def build_stages() -> tuple[dict[str, str], dict[str, str]]:
    """Return the generated section of each page, and each page's picture."""
    target = Target(DOCUMENTED_TARGET)
    proto = example_model()
    imported = relay.transform.InferType()(from_onnx(proto))
    fusing = PassSnapshots("FuseOps")
    with PassContext(opt_level=3, instruments=[fusing]):
        optimize_module(imported, target, compilation_config(target))
    assert fusing.before is not None and fusing.after is not None
    exe = ekiden.compile(proto, target)
    bytecode = strip_kernel_digests(exe.disassemble())
    source, loops = matmul_relu()
    schedule = schedule_matmul(loops)
    small = vectorized_elementwise()
    code = ekiden.build(small, "c", name="scale").get_source("c")
    begin = code.rindex("\n", 0, code.index("scale_compute("))
    body = code[begin : code.index("\n}", begin) + 2]
    texts = {
        "import": before_after_blocks(
            ("text", format_nodes(proto)), ("text", format_typed_relay(imported))
        ),
        "relay-passes": before_after_blocks(
            ("text", format_relay(main_function(imported))),
            ("text", format_relay(main_function(fusing.before))),
        ),
        "fusion": before_after_blocks(
            ("text", format_relay(main_function(fusing.before))),
            ("text", format_relay(main_function(fusing.after))),
        ),
        "tensor-programs": before_after_blocks(("text", source), ("text", tir.astext(loops))),
        "schedules": before_after_blocks(
            ("text", str(schedule.trace.simplified())),
            ("text", tir.astext(schedule.mod["main"])),
            "The steps, on the loops of [the page before](tensor-programs.md)",
        ),
        "native-code": before_after_blocks(("text", tir.astext(small)), ("text", body)),
        "bytecode": before_after_blocks(
            ("text", format_relay(main_function(fusing.after))), ("text", bytecode)
        ),
    }
    pictures = {
        "import": relay.draw(main_function(imported)),
        "relay-passes": relay.draw(main_function(fusing.before)),
        "fusion": relay.draw(main_function(fusing.after)),
        "tensor-programs": draw_nested_blocks(tir.astext(loops)),
        "schedules": draw_nested_blocks(tir.astext(schedule.mod["main"])),
        "native-code": draw_nested_blocks(tir.astext(small)),
        "bytecode": draw_kernel_calls(bytecode),
    }
    return texts, pictures


def vectorized_elementwise() -> tir.PrimFunc:
    """Return b = 2 a + 1 in vectors of eight."""
    a = te.placeholder((64,), name="A")
    b = te.compute((64,), lambda i: a[i] * 2.0 + 1.0, name="B")
    sch = tir.Schedule(te.create_prim_func([a, b]))
    (i,) = sch.get_loops(sch.get_block("B"))
    _, lane = sch.split(i, factors=[None, 8])
    sch.vectorize(lane)
    func = sch.mod["main"]
    assert isinstance(func, tir.PrimFunc)
    return func


def profile_flame_chart() -> str:
    """Return the flame chart of a run on this machine."""
    report = ekiden.compile(example_model()).profile(np.ones((32, 64), np.float32))
    return report.flame()


def fill_generated_section(page: Path, text: str) -> str:
    """Return a page with the text between its generated markers replaced. Raises SystemExit unless
    it has exactly one.
    """
    name = page.stem
    begin, end = f"<!-- {name}: scripts/generate_stage_pages.py -->", f"<!-- end of {name} -->"
    old = page.read_text(encoding="utf-8")
    section = f"{begin}\n{text}\n{end}"
    new, count = re.subn(
        f"{re.escape(begin)}.*?{re.escape(end)}", lambda _: section, old, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{page.name}: expected one place for {name}, got {count}")
    return new


def main(arguments: Sequence[str]) -> int:
    """Write or check the pages, and return the exit status."""
    # One compile job: the output must not depend on the number of cores.
    os.environ.setdefault("EKIDEN_COMPILE_JOBS", "1")
    texts, pictures = build_stages()
    files = {
        CONCEPTS_FOLDER / f"{n}.md": fill_generated_section(CONCEPTS_FOLDER / f"{n}.md", text)
        for n, text in texts.items()
    }
    if "--check" not in arguments:
        files |= {CONCEPTS_FOLDER / f"{n}-stage.svg": text for n, text in pictures.items()}
        files[CONCEPTS_FOLDER / "run-stage.svg"] = profile_flame_chart()
    return write_or_check(files, Path(__file__).name)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
