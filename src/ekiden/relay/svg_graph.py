"""SVG drawings of Relay graphs in layers (Sugiyama style).

    relay.draw(mod["main"])      # SVG as text; notebooks show it under the module's text

A fused function is a box with a line for each of its operators. Constants stand in the box that
reads them; what is bound by `let` is drawn where it is used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from html import escape

from ekiden.ir.expr import GlobalVar, RelayExpr
from ekiden.ir.op import Op
from ekiden.relay.expr import Call, Constant, Function, Let, Tuple, TupleGetItem, Var
from ekiden.relay.visitor import CHILD_GETTERS, post_order
from ekiden.runtime.lazy_dataclass import dataclass

__all__ = ["MAX_BOXES", "draw"]

MAX_BOXES = 120
"""Maximum boxes of a graph drawn in notebooks."""
LINE_HEIGHT_PX, GLYPH_WIDTH_PX, BOX_PADDING_PX, BOX_GAP_X_PX, BOX_GAP_Y_PX, PICTURE_MARGIN_PX = (
    15,
    6.9,
    9,
    26,
    34,
    8,
)
"""Layout in pixels: line height, glyph width, box padding, horizontal and vertical gaps, margin."""
SVG_STYLE = """
.ekg text{font:12px ui-monospace,monospace;fill:#1d2733}.ekg .t{fill:#6a7785;font-size:11px}
.ekg rect{stroke:#7f93a8;stroke-width:1}.ekg .op{fill:#e9f1fa}.ekg .in{fill:#fdf3e1}
.ekg .fused{fill:#e6f5ea;stroke:#6aa67c}.ekg .out{fill:#fdf3e1}.ekg .other{fill:#f3eef9}
.ekg path{fill:none;stroke:#7f93a8;stroke-width:1.3}
@media (prefers-color-scheme:dark){.ekg text{fill:#d6dde6}.ekg .t{fill:#9aa7b4}
.ekg .op{fill:#1b2c3d}.ekg .in,.ekg .out{fill:#3a2f1a}.ekg .fused{fill:#1d3a27}
.ekg .other{fill:#2d2540}}
"""


@dataclass(slots=True, eq=False)
class _GraphBox:
    """Box of the drawing; its position is assigned by the layout."""

    kind: str
    lines: list[str]
    type_text: str = ""
    operands: list[_GraphBox] = field(default_factory=list)
    layer: int = 0
    x: float = 0.0
    y: float = 0.0

    @property
    def width(self) -> float:
        longest = max(map(len, [*self.lines, self.type_text]))
        return longest * GLYPH_WIDTH_PX + 2 * BOX_PADDING_PX

    @property
    def height(self) -> int:
        return LINE_HEIGHT_PX * (len(self.lines) + bool(self.type_text)) + BOX_PADDING_PX


def draw(function: Function) -> str:
    """Draw a function as SVG: one box per operator or kernel with its result type.

    Types are shown where they were inferred. Choices, matches and inner functions that are not
    kernels are boxes with their names, without their contents.
    """
    boxes = _build_boxes(function)
    layers = _layout_boxes(boxes)
    pairs = [(above, below) for below in boxes for above in dict.fromkeys(below.operands)]
    sides = [_edge_bypass_x(above, below, layers) for above, below in pairs]
    ends = [box.x + box.width for box in boxes] + [side for side in sides if side is not None]
    width = max(ends) + PICTURE_MARGIN_PX
    height = max(box.y + box.height for box in layers[-1]) + PICTURE_MARGIN_PX
    size = f'width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" class="ekg" {size}><style>{SVG_STYLE}</style>'
    edges = "".join(_draw_edge(a, b, side) for (a, b), side in zip(pairs, sides, strict=True))
    return f"{head}{edges}{''.join(map(_draw_box, boxes))}</svg>"


def _build_boxes(function: Function) -> list[_GraphBox]:
    """Build the boxes in topological order."""
    boxes_of: dict[RelayExpr, list[_GraphBox]] = {}
    boxes: list[_GraphBox] = []
    for param in function.params:
        boxes.append(_GraphBox("in", [f"%{param.name_hint}"], _format_type(param)))
        boxes_of[param] = [boxes[-1]]
    order = post_order(function.body)
    values = {let.var: let.value for let in order if isinstance(let, Let)}
    for expr in order:
        if expr in boxes_of or expr in values:  # a bound variable comes before its value
            continue
        reads = [
            box
            for operand in _read_operands(expr)
            for box in boxes_of.get(_resolve_variable(operand, values), ())
        ]
        if (lines := _box_lines(expr)) is not None:
            boxes.append(_GraphBox(_box_kind(expr), lines, _format_type(expr), reads))
            reads = [boxes[-1]]
        # Tuples and projections have no boxes: edges pass through them.
        boxes_of[expr] = reads
    boxes.append(
        _GraphBox("out", ["result"], "", boxes_of[_resolve_variable(function.body, values)])
    )
    return boxes


def _resolve_variable(expr: RelayExpr, values: Mapping[Var, RelayExpr]) -> RelayExpr:
    """Return the value bound to a let variable; other expressions unchanged."""
    while isinstance(expr, Var) and expr in values:
        expr = values[expr]
    return expr


def _read_operands(expr: RelayExpr) -> Sequence[RelayExpr]:
    """Return the expressions that an expression reads."""
    match expr:
        case Call():
            return (expr.op, *expr.args)
        case Let():
            return (expr.body,)
        case _:
            return CHILD_GETTERS[type(expr)](expr)


def _box_lines(expr: RelayExpr) -> list[str] | None:
    """Return the text lines of an expression's box, or None if it has none."""
    match expr:
        case Call():
            names = list(_called_operators(expr.op))
            constants = [a for a in expr.args if isinstance(a, Constant)]
            return [*names, *(f"  {_format_constant(constant)}" for constant in constants)]
        case (
            Var() | Constant() | Tuple() | TupleGetItem() | Let() | Op() | GlobalVar() | Function()
        ):
            return None
        case _:
            return [type(expr).__name__.lower()]


def _called_operators(callee: RelayExpr) -> Iterator[str]:
    """Yield the operators of a call in order, several for a fused function."""
    match callee:
        case Op():
            yield callee.name
        case GlobalVar():
            yield f"@{callee.name_hint}"
        case Function():
            for inner in post_order(callee.body):
                if isinstance(inner, Call):
                    yield from _called_operators(inner.op)
        case _:
            yield type(callee).__name__.lower()


def _box_kind(expr: RelayExpr) -> str:
    if not isinstance(expr, Call):
        return "other"
    return "fused" if isinstance(expr.op, Function) else "op"


def _format_constant(value: Constant) -> str:
    data = value.data
    return f"{data.item():g}" if data.shape == () else f"{data.dtype}{list(data.shape)}"


def _format_type(expr: RelayExpr) -> str:
    kind = expr.checked_type_or_none()
    if kind is None:
        return ""
    text = str(kind)
    return text if len(text) <= 48 else f"{text[:47]}…"


def _layout_boxes(boxes: list[_GraphBox]) -> list[list[_GraphBox]]:
    """Assign positions to the boxes; return the layers, top first.

    A layer is one below the lowest that it reads. In a layer boxes are in the order of the middle
    of the boxes that they read, and every layer is centred.
    """
    for box in boxes:
        # The longest path decides, so that all edges point down.
        box.layer = max((read_box.layer + 1 for read_box in box.operands), default=0)
    layers: list[list[_GraphBox]] = [[] for _ in range(max(box.layer for box in boxes) + 1)]
    for box in boxes:
        layers[box.layer].append(box)
    widths = [sum(b.width for b in layer) + BOX_GAP_X_PX * (len(layer) - 1) for layer in layers]
    top = float(PICTURE_MARGIN_PX)
    for layer, width in zip(layers, widths, strict=True):
        # The barycenter heuristic of layered drawings keeps crossings few.
        layer.sort(key=_barycenter)
        x = PICTURE_MARGIN_PX + (max(widths) - width) / 2
        for box in layer:
            box.x, box.y = x, top
            x += box.width + BOX_GAP_X_PX
        top += max(box.height for box in layer) + BOX_GAP_Y_PX
    return layers


def _barycenter(box: _GraphBox) -> float:
    middles = [read_box.x + read_box.width / 2 for read_box in box.operands]
    return sum(middles) / len(middles) if middles else 0.0


def _edge_bypass_x(
    above: _GraphBox, below: _GraphBox, layers: list[list[_GraphBox]]
) -> float | None:
    """Return how far right an edge must bypass the layers it crosses, or None."""
    between = [box for layer in layers[above.layer + 1 : below.layer] for box in layer]
    if not between:
        return None
    return max(box.x + box.width for box in [above, *between, below]) + BOX_GAP_X_PX * 0.7


def _draw_edge(above: _GraphBox, below: _GraphBox, side: float | None) -> str:
    x0, y0 = above.x + above.width / 2, above.y + above.height
    x1, y1 = below.x + below.width / 2, below.y
    if side is not None:  # past what stands between; a cubic goes three quarters of the way
        x0, y0 = above.x + above.width, above.y + above.height / 2
        x1, y1 = below.x + below.width, below.y + below.height / 2
        far = x0 + (side - x0) * 4 / 3
        bend = f"C{far:.0f} {y0:.0f} {far:.0f} {y1:.0f}"
        return f'<path d="M{x0:.0f} {y0:.0f}{bend} {x1:.0f} {y1:.0f}"></path>'
    half = (y1 - y0) / 2
    middle = f"C{x0:.0f} {y0 + half:.0f} {x1:.0f} {y1 - half:.0f}"
    return f'<path d="M{x0:.0f} {y0:.0f}{middle} {x1:.0f} {y1:.0f}"></path>'


def _draw_box(box: _GraphBox) -> str:
    elements = [
        f'<rect class="{box.kind}" x="{box.x:.0f}" y="{box.y:.0f}" rx="4" '
        f'width="{box.width:.0f}" height="{box.height}"></rect>'
    ]
    texts = [(line, "") for line in box.lines] + (
        [(box.type_text, ' class="t"')] if box.type_text else []
    )
    for index, (line, mark) in enumerate(texts, 1):
        y = box.y + LINE_HEIGHT_PX * index
        elements.append(
            f'<text xml:space="preserve"{mark} x="{box.x + BOX_PADDING_PX:.0f}" y="{y:.0f}">'
            f"{escape(line)}</text>"
        )
    return "".join(elements)
