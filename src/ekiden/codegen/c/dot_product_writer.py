"""Emit int8 dot products with Helium (MVE) vectors, 16 products an instruction.

for k in n: b = words of B[k]; a = word of A[k] in all lanes; acc[0] = dot4_u8s8(acc[0], a, b); ...
->  for each column of B: for k in n / 4: sum += vmladava(16 bytes of A, 16 bytes of that column)

An instruction adds up all products of two vectors, so that a vector has four steps of k of one
column, whose words are gathered. It multiplies bytes of one kind, and data are unsigned where
weights are signed: weights are taken more by 128, and 128 times the sum of the data, which all
columns share, is taken away behind the loops. What is left of k is masked.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

from ekiden.codegen.c.dot_product_nest import VECTOR_WORDS, WORD_BYTES, DotProductNest, OperandLoad
from ekiden.codegen.c.expression import ExpressionWriter
from ekiden.codegen.c.types import c_type

COLUMNS_PER_LOOP = 4
"""Number of accumulators per loop: the instruction takes every second of twelve registers."""
MAX_UNROLLED_VECTORS = 4
"""Maximum number of vectors along k that are fully unrolled: the column loop is short then, and an
inner loop's setup would be a third of it (64 channels: 73 instructions, with a loop 79).
"""
HELIUM_DOT_HELPERS = """\
#if EK_HELIUM
static inline uint8x16_t ek_next_bytes(const uint8_t **at) { /* that moves on */
  uint8x16_t value;
  __asm__("vldrb.8 %q0, [%1], #16" : "=w"(value), "+r"(*at) : "m"(*(const uint8_t(*)[16])*at));
  return value;
}

static inline uint8x16_t ek_raised_bytes(uint32x4_t words) { /* int8 more by 128 */
  return veorq_u8(vreinterpretq_u8_u32(words), vdupq_n_u8(128));
}
#endif"""
VectorBody = Callable[[Sequence[str]], list[str]]
"""Function (loaded operand texts) -> lines of the loop body."""


class DotProductWriter:
    """Writer of a dot-product nest; it appends lines to a statement writer."""

    def __init__(self, writer: ExpressionWriter, dots: DotProductNest) -> None:
        self.out, self.dots = writer, dots
        self.contiguous_vectors = max(1, COLUMNS_PER_LOOP // len(dots.data))
        self.weight_stride = writer.unique("apart")
        """Distance in bytes between the words of a weight vector."""

    def write(self) -> None:
        """Emit the sums of all columns into an array, then store them vector by vector."""
        out, dots, rows = self.out, self.dots, len(self.dots.data)
        totals = self.declare_accumulators("total", rows)
        self.write_loops([], lambda vectors: self.accumulate_lines("vaddvaq_u8", totals, vectors))
        step, sums, n = dots.weights[0].step, out.unique("sums"), out.unique("n")
        out.emit_line(
            f"const uint32x4_t {self.weight_stride} = vmulq_n_u32(vidupq_n_u32(0, 1), {step});"
        )
        out.emit_line(f"int32_t {sums}[{rows * dots.num_columns}];")
        out.emit_line(
            f"for (int32_t {n} = 0; {n} < {dots.num_columns}; {n} += {self.contiguous_vectors}) {{"
        )
        with out.indented():
            self.write_columns(sums, n)
        out.emit_line("}")
        for row, data in enumerate(dots.data):
            # Weights were raised by 128 to be unsigned: 128 times the sum of the data is taken off.
            less = f"ek_v_dup_i32((int32_t)(128u * {totals[row]}))"
            for vector, weight in enumerate(dots.weights):
                begin = row * dots.num_columns + vector * VECTOR_WORDS
                acc = f"{out.name(dots.sum_buffer)}[{out.text(dots.sums[data.var, weight.var])}]"
                out.emit_line(f"{acc} += ek_v_load_i32(&{sums}[{begin}]) - {less};")

    def write_columns(self, sums: str, n: str) -> None:
        """Emit the dot products of a group of output columns, the first of which is column `n`."""
        rows = range(len(self.dots.data))
        accumulators = [
            self.declare_accumulators("sum", len(rows)) for _ in range(self.contiguous_vectors)
        ]

        def dot_lines(vectors: Sequence[str]) -> list[str]:
            """Return the lines of one iteration: load each weight once, and each row's data once
            where several columns share it, then one VMLADAVA for each pair.
            """
            data, emitted = list(vectors[: len(rows)]), []
            weights = [self.out.unique("w") for _ in range(self.contiguous_vectors)]
            for name, text in zip(weights, vectors[len(rows) :], strict=True):
                emitted.append(f"const uint8x16_t {name} = {text};")
            for row in rows if self.contiguous_vectors > 1 else ():
                name = self.out.unique("v")
                emitted.append(f"const uint8x16_t {name} = {data[row]};")
                data[row] = name
            for column, weight in zip(accumulators, weights, strict=True):
                emitted += self.accumulate_lines("vmladavaq_u8", column, data, f", {weight}")
            return emitted

        self.write_loops(
            [f" + ({n} + {c}) * {WORD_BYTES}" for c in range(self.contiguous_vectors)], dot_lines
        )
        for c, column in enumerate(accumulators):
            for row, name in enumerate(column):
                position = row * self.dots.num_columns + c
                self.out.emit_line(f"{sums}[{position} + {n}] = (int32_t){name};")

    def accumulate_lines(
        self, function: str, sums: Sequence[str], vectors: Sequence[str], more: str = ""
    ) -> list[str]:
        """Return the lines that accumulate vectors into sums with `function`."""
        pairs = zip(sums, vectors, strict=True)
        return [f"{name} = {function}({name}, {text}{more});" for name, text in pairs]

    def declare_accumulators(self, hint: str, count: int) -> list[str]:
        """Declare accumulators initialised to 0 and return their names."""
        names = [self.out.unique(hint) for _ in range(count)]
        self.out.emit_line(f"uint32_t {', '.join(f'{name} = 0' for name in names)};")
        return names

    def write_loops(self, columns: Sequence[str], lines: VectorBody) -> None:
        """Emit the loops around a body that handles 16 bytes of each data row and of each weight
        column (`columns`: offsets added to the weight address): four words an iteration, then
        one masked tail iteration.
        """
        out, dots = self.out, self.dots
        with ExitStack() as inside:
            for loop in dots.outer_loops:
                name, kind = out.bind_name(loop.loop_var), c_type(loop.loop_var.dtype)
                out.emit_line(
                    f"for ({kind} {name} = 0; {name} < {out.text(loop.extent)}; ++{name}) {{"
                )
                inside.callback(out.emit_line, "}")
                inside.enter_context(out.indented())
            data = [self.declare_pointer(word, "uint8_t", "") for word in dots.data]
            weights = [self.declare_pointer(dots.weights[0], "uint32_t", more) for more in columns]
            full_vectors, tail_words = divmod(dots.reduction_extent, VECTOR_WORDS)
            # Short reductions are unrolled: the loop overhead would cost as much as one vector's
            # work.
            if full_vectors > MAX_UNROLLED_VECTORS:
                k = out.unique("k")
                out.emit_line(f"for (int32_t {k} = 0; {k} < {full_vectors}; ++{k}) {{")
                self.write_full_iteration(
                    lines, [f"ek_next_bytes(&{name})" for name in data], weights, 0
                )
                with out.indented():
                    for name in weights:
                        out.emit_line(f"{name} += {dots.weights[0].step};")
                out.emit_line("}")
                full_vectors = 0
            for position in range(full_vectors):
                out.emit_line("{")
                near = [
                    f"vldrbq_u8({name} + {position * VECTOR_WORDS * WORD_BYTES})" for name in data
                ]
                self.write_full_iteration(lines, near, weights, position)
                out.emit_line("}")
            if tail_words:
                out.emit_line("{")
                self.write_tail_iteration(lines, data, weights, full_vectors, tail_words)
                out.emit_line("}")

    def write_full_iteration(
        self, lines: VectorBody, data: list[str], weights: list[str], k: int
    ) -> None:
        """Emit an unmasked iteration: four full words of each operand."""
        more = k * self.dots.weights[0].step
        weight_vectors = [
            f"ek_raised_bytes(vldrwq_gather_offset_u32({name} + {more}, {self.weight_stride}))"
            for name in weights
        ]
        self.write_block(lines([*data, *weight_vectors]))

    def write_tail_iteration(
        self, lines: VectorBody, data: list[str], weights: list[str], k: int, tail_words: int
    ) -> None:
        """Emit the masked tail iteration. The predicate has one bit per byte, whatever the loaded
        type.
        """
        mask, more = f"{(1 << tail_words * WORD_BYTES) - 1:#x}", k * self.dots.weights[0].step
        # Data outside the mask are 0, so that raised weights add nothing there.
        near = [f"vldrbq_z_u8({name} + {k * VECTOR_WORDS * WORD_BYTES}, {mask})" for name in data]
        weight_vectors = [
            f"ek_raised_bytes(vldrwq_gather_offset_z_u32({name} + {more}, {self.weight_stride},"
            f" {mask}))"
            for name in weights
        ]
        self.write_block(lines([*near, *weight_vectors]))

    def write_block(self, lines: list[str]) -> None:
        """Emit lines in a block of their own."""
        with self.out.indented():
            for line in lines:
                self.out.emit_line(line)

    def declare_pointer(self, word: OperandLoad, kind: str, more: str) -> str:
        """Declare a pointer to the first byte of a word and return its name."""
        out, name = self.out, self.out.unique("from")
        address = f"{out.name(word.buffer)} + ({out.text(self.dots.initial_offset(word))}){more}"
        out.emit_line(f"const {kind} *{name} = (const {kind} *)(const void *)({address});")
        return name


__all__ = ["HELIUM_DOT_HELPERS", "DotProductWriter"]
