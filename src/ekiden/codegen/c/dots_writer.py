"""Sums of products of bytes by the vectors of Helium, 16 products at a time.

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

from ekiden.codegen.c.dots import LANES, WORD, Dots, Word
from ekiden.codegen.c.expression import ExpressionWriter
from ekiden.codegen.c.types import c_type

TOGETHER = 4
"""Sums that grow in one loop: instructions name every second register of twelve."""
UNROLLED = 4
"""Vectors of k that stand one after the other, if there are no more: the loop over columns is short
then, and what a loop inside of it needs to begin is a third of it (64 channels: 73 instructions,
with a loop 79)."""
NEXT = """\
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
Lines = Callable[[Sequence[str]], list[str]]
"""The lines that do something with vectors, from the texts that load them."""


class DotsWriter:
    """Writes what a nest does, with lines of another writer."""

    def __init__(self, writer: ExpressionWriter, dots: Dots) -> None:
        self.out, self.dots = writer, dots
        self.together = max(1, TOGETHER // len(dots.data))
        self.apart = writer.unique("apart")
        """How far the words of a vector of weights lie apart."""

    def write(self) -> None:
        """The sums of all columns, into an array; then each vector of them to where they belong."""
        out, dots, rows = self.out, self.dots, len(self.dots.data)
        totals = self.zeros("total", rows)
        self.over([], lambda given: self.added("vaddvaq_u8", totals, given))
        step, sums, n = dots.weights[0].step, out.unique("sums"), out.unique("n")
        out.put(f"const uint32x4_t {self.apart} = vmulq_n_u32(vidupq_n_u32(0, 1), {step});")
        out.put(f"int32_t {sums}[{rows * dots.columns}];")
        out.put(f"for (int32_t {n} = 0; {n} < {dots.columns}; {n} += {self.together}) {{")
        with out.indented():
            self.columns(sums, n)
        out.put("}")
        for row, data in enumerate(dots.data):
            less = f"ek_v_dup_i32((int32_t)(128u * {totals[row]}))"
            for vector, weight in enumerate(dots.weights):
                begin = row * dots.columns + vector * LANES
                acc = f"{out.name(dots.sum_buffer)}[{out.text(dots.sums[data.var, weight.var])}]"
                out.put(f"{acc} += ek_v_load_i32(&{sums}[{begin}]) - {less};")

    def columns(self, sums: str, n: str) -> None:
        """The sums of some columns from number `n` on."""
        rows = range(len(self.dots.data))
        own = [self.zeros("sum", len(rows)) for _ in range(self.together)]

        def lines(given: Sequence[str]) -> list[str]:
            """One step: each weight, and each row's data where several columns share them, is
            loaded once into a vector of its own name; then a VMLADAVA for each pair.
            """
            data, made = list(given[: len(rows)]), []
            weights = [self.out.unique("w") for _ in range(self.together)]
            for name, text in zip(weights, given[len(rows) :], strict=True):
                made.append(f"const uint8x16_t {name} = {text};")
            for row in rows if self.together > 1 else ():
                name = self.out.unique("v")
                made.append(f"const uint8x16_t {name} = {data[row]};")
                data[row] = name
            for column, weight in zip(own, weights, strict=True):
                made += self.added("vmladavaq_u8", column, data, f", {weight}")
            return made

        self.over([f" + ({n} + {c}) * {WORD}" for c in range(self.together)], lines)
        for c, column in enumerate(own):
            for row, name in enumerate(column):
                at = row * self.dots.columns + c
                self.out.put(f"{sums}[{at} + {n}] = (int32_t){name};")

    def added(
        self, function: str, sums: Sequence[str], given: Sequence[str], more: str = ""
    ) -> list[str]:
        """Lines that add what comes of vectors to sums."""
        pairs = zip(sums, given, strict=True)
        return [f"{name} = {function}({name}, {text}{more});" for name, text in pairs]

    def zeros(self, hint: str, count: int) -> list[str]:
        """Variables that begin as 0."""
        names = [self.out.unique(hint) for _ in range(count)]
        self.out.put(f"uint32_t {', '.join(f'{name} = 0' for name in names)};")
        return names

    def over(self, columns: Sequence[str], lines: Lines) -> None:
        """The loops around what is done with 16 bytes of each row of data and of columns of weights
        (what is added to where those begin): in steps of four words, and once with the words that
        are left, others being 0."""
        out, dots = self.out, self.dots
        with ExitStack() as inside:
            for loop in dots.outer:
                name, kind = out.define(loop.loop_var), c_type(loop.loop_var.dtype)
                out.put(f"for ({kind} {name} = 0; {name} < {out.text(loop.extent)}; ++{name}) {{")
                inside.callback(out.put, "}")
                inside.enter_context(out.indented())
            data = [self.pointer(word, "uint8_t", "") for word in dots.data]
            weights = [self.pointer(dots.weights[0], "uint32_t", more) for more in columns]
            whole, rest = divmod(dots.steps, LANES)
            if whole > UNROLLED:
                k = out.unique("k")
                out.put(f"for (int32_t {k} = 0; {k} < {whole}; ++{k}) {{")
                self.step(lines, [f"ek_next_bytes(&{name})" for name in data], weights, 0)
                with out.indented():
                    for name in weights:
                        out.put(f"{name} += {dots.weights[0].step};")
                out.put("}")
                whole = 0
            for at in range(whole):
                out.put("{")
                near = [f"vldrbq_u8({name} + {at * LANES * WORD})" for name in data]
                self.step(lines, near, weights, at)
                out.put("}")
            if rest:
                out.put("{")
                self.left(lines, data, weights, whole, rest)
                out.put("}")

    def step(self, lines: Lines, data: list[str], weights: list[str], k: int) -> None:
        """What is done with four words of each."""
        more = k * self.dots.weights[0].step
        given = [
            f"ek_raised_bytes(vldrwq_gather_offset_u32({name} + {more}, {self.apart}))"
            for name in weights
        ]
        self.put_inside(lines([*data, *given]))

    def left(self, lines: Lines, data: list[str], weights: list[str], k: int, rest: int) -> None:
        """What is done with fewer words of each. A mask has a bit for each byte, whatever is
        loaded."""
        mask, more = f"{(1 << rest * WORD) - 1:#x}", k * self.dots.weights[0].step
        near = [f"vldrbq_z_u8({name} + {k * LANES * WORD}, {mask})" for name in data]
        given = [
            f"ek_raised_bytes(vldrwq_gather_offset_z_u32({name} + {more}, {self.apart}, {mask}))"
            for name in weights
        ]
        self.put_inside(lines([*near, *given]))

    def put_inside(self, lines: list[str]) -> None:
        """Lines of a block."""
        with self.out.indented():
            for line in lines:
                self.out.put(line)

    def pointer(self, word: Word, kind: str, more: str) -> str:
        """A variable that says where a word begins."""
        out, name = self.out, self.out.unique("from")
        place = f"{out.name(word.buffer)} + ({out.text(self.dots.first(word))}){more}"
        out.put(f"const {kind} *{name} = (const {kind} *)(const void *)({place});")
        return name


__all__ = ["NEXT", "DotsWriter"]
