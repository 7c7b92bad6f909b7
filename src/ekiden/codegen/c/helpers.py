"""Small C functions for what C has no operator for: rounding divisions, minima that keep NaN,
conversions, mathematical functions.

They are written by the same emitters as LLVM's instructions (`codegen.llvm.operations`, `cast`,
`intrinsics`), through a builder that writes C, so that both generators give the same answers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field

from ekiden.codegen.c.types import C_KEYWORDS, C_SYNTAX, CSyntax, c_type, constant, is_macro_like
from ekiden.codegen.c.vectors import UnsupportedVectorError
from ekiden.codegen.llvm.builder import Arguments, FunctionBuilder, LlvmModule, Operand
from ekiden.codegen.llvm.image import EXTERN_PREFIX
from ekiden.codegen.llvm.intrinsics import emit_intrinsic
from ekiden.codegen.llvm.operations import emit_binary
from ekiden.codegen.llvm.software_intrinsics import SOFTWARE_INTRINSICS
from ekiden.codegen.llvm.type_conversion import emit_cast
from ekiden.ir import dtype as dt
from ekiden.ir.prim import BinaryExpr
from ekiden.runtime.errors import InternalError
from ekiden.runtime.lazy_dataclass import dataclass
from ekiden.target import Target

# fmt: off
OPCODE_SYMBOLS = {
    "fadd": "+", "fsub": "-", "fmul": "*", "fdiv": "/",
    "add": "+", "sub": "-", "mul": "*", "sdiv": "/", "udiv": "/", "srem": "%", "urem": "%",
    "and": "&", "or": "|", "xor": "^", "shl": "<<", "lshr": ">>", "ashr": ">>",
}
_UNSIGNED_OPCODES = frozenset(("udiv", "urem", "shl", "lshr"))
_PREDICATE_SYMBOLS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}
FLOAT_BITS_HELPERS = """\
static inline float ek_word_to_float(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t ek_float_to_word(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  return bits;
}"""
FLOAT16_HELPERS = """\
static inline float ek_half_to_float(uint16_t x) {
  uint32_t bits = (uint32_t)(x & 0x7fff) << 13;
  float value = ek_word_to_float(bits);
  value *= 5.192296858534828e+33f;          /* 0x1p112: moves the exponent, subnormals too */
  bits = ek_float_to_word(value);
  if ((x & 0x7fff) >= 0x7c00) bits |= 0x7f800000u;
  bits |= (uint32_t)(x & 0x8000) << 16;
  return ek_word_to_float(bits);
}

static inline uint16_t ek_float_to_half(float x) {
  uint32_t bits = ek_float_to_word(x);
  const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
  bits &= 0x7fffffffu;
  if (bits > 0x7f800000u) return sign | 0x7e00u;
  if (bits >= 0x47800000u) return sign | 0x7c00u;
  if (bits < 0x38800000u) {                 /* subnormal: the sum rounds to its last place */
    bits = ek_float_to_word(ek_word_to_float(bits) + 0.5f);
    return (uint16_t)(sign | (bits - 0x3f000000u));
  }
  bits += 0xc8000fffu + (bits >> 13 & 1u);  /* to nearest, ties to even */
  return (uint16_t)(sign | bits >> 13);
}"""
FLUSH_SUBNORMALS_HELPERS = """\
static inline void ek_set_rounding(uint64_t mode) {
#if defined(__x86_64__)
  const uint32_t word = (uint32_t)mode;
  __asm__ volatile("ldmxcsr %0" : : "m"(word) : "memory");
#elif defined(__aarch64__)
  __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory");
#else
  (void)mode;
#endif
}

static inline uint64_t ek_flush_subnormals(void) { /* gives what was set before */
#if defined(__x86_64__)
  uint32_t mode;
  __asm__ volatile("stmxcsr %0" : "=m"(mode));
  ek_set_rounding(mode | 0x8040u);
#elif defined(__aarch64__)
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  ek_set_rounding(mode | 1u << 24);
#else
  const uint64_t mode = 0;
#endif
  return mode;
}"""
SMLAD_HELPERS = """\
#if defined(__ARM_FEATURE_DSP)
static inline int32_t ek_even_u8(int32_t x) { /* bytes 0 and 2 as two uint16 */
  int32_t even;
  __asm__("uxtb16 %0, %1" : "=r"(even) : "r"(x));
  return even;
}

static inline int32_t ek_odd_u8(int32_t x) {
  int32_t odd;
  __asm__("uxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(x));
  return odd;
}

static inline int32_t ek_even_s8(int32_t x) {
  int32_t even;
  __asm__("sxtb16 %0, %1" : "=r"(even) : "r"(x));
  return even;
}

static inline int32_t ek_odd_s8(int32_t x) {
  int32_t odd;
  __asm__("sxtb16 %0, %1, ror #8" : "=r"(odd) : "r"(x));
  return odd;
}

static inline int32_t ek_smlad(int32_t x, int32_t y, int32_t sum) {
  __asm__("smlad %0, %1, %2, %0" : "+r"(sum) : "r"(x), "r"(y));
  return sum;
}
#else /* what the instructions do, for machines that have none */
static inline int32_t ek_even_u8(int32_t x) { return x & 0x00ff00ff; }

static inline int32_t ek_odd_u8(int32_t x) { return (int32_t)((uint32_t)x >> 8 & 0x00ff00ffu); }

static inline int32_t ek_even_s8(int32_t x) {
  const uint32_t low = (uint16_t)(int8_t)x, high = (uint16_t)(int8_t)(x >> 16);
  return (int32_t)(low | high << 16);
}

static inline int32_t ek_odd_s8(int32_t x) {
  return ek_even_s8((int32_t)((uint32_t)x >> 8));
}

static inline int32_t ek_smlad(int32_t x, int32_t y, int32_t sum) {
  const int32_t low = (int16_t)x * (int16_t)y, high = (int16_t)(x >> 16) * (int16_t)(y >> 16);
  return (int32_t)((uint32_t)sum + (uint32_t)low + (uint32_t)high);
}
#endif"""
DOT4_BY_SMLAD = """\
static inline int32_t ek_dot4_u8s8_int32(int32_t sum, int32_t x, int32_t y) {
  sum = ek_smlad(ek_even_u8(x), ek_even_s8(y), sum);
  return ek_smlad(ek_odd_u8(x), ek_odd_s8(y), sum);
}"""
_MATH_H_NAMES = {
    "floor": "floor", "ceil": "ceil", "trunc": "trunc", "roundeven": "rint", "fabs": "fabs",
    "sqrt": "sqrt", "copysign": "copysign", "fma": "fma",
}
MATH_INSTRUCTIONS = {
    "sqrt": "sqrt", "abs": "fabs", "floor": "floor", "ceil": "ceil", "trunc": "trunc",
    "round": "roundeven", "fma": "fma",
}
# fmt: on
"""LLVM's name of each intrinsic that is a single instruction."""


def c_string_literal(text: str) -> str:
    """Return a C string literal."""
    plain = all(32 <= ord(c) < 127 and c not in '"\\' for c in text)
    return f'"{text}"' if plain else f'"{"".join(map(_escape_byte, text.encode()))}"'


def _escape_byte(byte: int) -> str:
    return chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\{byte:03o}"


_EXTERN_POINTER_TYPES = {"": "const char *", "handle": "void *"}
"""C types of string and address parameters of external functions."""
EXTERN_SYMBOL_MACRO = """\
#ifdef EK_KERNEL_IMAGE
#define EK_SYMBOL(name)
#else
#define EK_STRING(x) #x
#define EK_TEXT(x) EK_STRING(x)
#define EK_SYMBOL(name) __asm__(EK_TEXT(__USER_LABEL_PREFIX__) name)
#endif
"""
"""Macro before declarations of external C functions."""


def c_symbol(name: str) -> str:
    """Return a valid C identifier for a function's symbol."""
    clean = "".join(c if c.isalnum() and c.isascii() else "_" for c in name)
    is_taken = clean[0].isdigit() or clean in C_KEYWORDS or is_macro_like(clean)
    return f"ek_{clean}" if is_taken else clean


def asm_label(name: str) -> str:
    """Return an assembler label for a name that is not a C identifier."""
    return c_string_literal(name if name.replace(".", "_").isidentifier() else f'"{name}"')


@dataclass(frozen=True, slots=True)
class HelperDialect:
    """Dialect in which C helper functions are written: function and table qualifiers, the bit-cast
    expression (None: C's union form), syntax, whether compilers reassociate sums, and the texts of
    native functions by name. With a table qualifier, tables of constants are global; without one
    they are inside functions, as in C.
    """

    function_qualifier: str = "static inline "
    table_qualifier: str = ""
    bit_cast: Callable[[str, str], str] | None = None
    syntax: CSyntax = C_SYNTAX
    reassociates_sums: bool = False
    native_functions: Mapping[str, str] = field(default_factory=dict)


class HelperBuilder(FunctionBuilder):
    """Builder of one helper function's lines. Operands are names after a percent sign, as in LLVM
    IR, or constants.
    """

    has_blocks = False

    def __init__(self, module: LlvmModule, form: HelperDialect, prefix: str) -> None:
        super().__init__(module)
        self.form, self.prefix = form, prefix if form.table_qualifier else ""
        self.syntax, self.allows_reassociation = form.syntax, form.reassociates_sums
        self.tables: dict[tuple[float, ...], str] = {}
        self.uses_half = False

    def assign(self, dtype: str, text: str) -> Operand:
        """Return a variable for an expression, reusing one that holds it already."""
        kind = self.syntax.type(dtype)
        line = f"{kind} {text}"
        operand = self._scopes[-1].get(line)
        if operand is None:
            operand = self._scopes[-1][line] = f"%{self.fresh_name()}"
            self.lines.append(f"  {self.syntax.let(kind, operand[1:], text)}")
        return operand

    def const(self, number: int | float, dtype: str) -> Operand:
        """Return a constant operand."""
        return self.syntax.constant(number, dtype)

    def binary(self, opcode: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Emit an arithmetic or bitwise operation by LLVM's opcode."""
        x, y, kind, syntax = _strip_type(a), _strip_type(b), self.syntax.type(dtype), self.syntax
        text = f"{x} {OPCODE_SYMBOLS[opcode]} {y}"
        if opcode in _UNSIGNED_OPCODES:
            # C takes signedness from the operands' type, LLVM from the opcode.
            unsigned = syntax.integer(dtype, True)
            x, y = (syntax.cast(unsigned, operand) for operand in (x, y))
            text = f"{x} {OPCODE_SYMBOLS[opcode]} {y}"
        elif opcode == "srem":
            text = syntax.remainder(x, y)
        elif opcode == "ashr":
            text = syntax.shift(syntax.integer(dtype, False), x, ">>", y)
        return self.assign(dtype, syntax.cast(kind, f"({text})"))

    def negate(self, dtype: str, a: Operand) -> Operand:
        """Emit `-a`."""
        return self.assign(dtype, f"-{_strip_type(a)}")

    def compare(self, predicate: str, dtype: str, a: Operand, b: Operand) -> Operand:
        """Emit an icmp or fcmp."""
        # C holds float16 as its bits, which do not compare as numbers do.
        if dt.element_dtype(dtype) == "float16":
            a, b = (self.convert("fpext", dtype, "float32", x) for x in (a, b))
        text = _format_comparison(predicate, dtype, _strip_type(a), _strip_type(b), self.syntax)
        kind = dt.with_lanes("bool", dt.lanes(dtype))
        return self.assign(kind, self.syntax.comparison(text, dtype))

    def select(
        self, condition: Operand, dtype: str, a: Operand, b: Operand, lanes: int = 1
    ) -> Operand:
        """Emit `condition ? a : b`."""
        text = self.syntax.select(_strip_type(condition), _strip_type(a), _strip_type(b), dtype)
        return self.assign(dtype, text)

    def convert(self, opcode: str, source: str, target: str, a: Operand) -> Operand:
        """Emit a conversion by LLVM's opcode."""
        x, syntax = _strip_type(a), self.syntax
        kind = syntax.type(target)
        if opcode == "bitcast" and self.form.bit_cast is not None:
            source_value = syntax.cast(syntax.type(source), x)
            return self.assign(target, self.form.bit_cast(kind, source_value))
        if opcode == "bitcast":
            name = self.fresh_name()
            self.lines.append(f"  {kind} {name};")
            # A cast of pointers would break strict aliasing; memcpy is defined and costs nothing.
            self.lines.append(f"  memcpy(&{name}, &({c_type(source)}){{{x}}}, sizeof {name});")
            return f"%{name}"
        if dt.element_dtype(source) == "bool":
            x = syntax.bool_to_int(x, source)
        elif opcode in ("zext", "uitofp"):
            x = syntax.cast(syntax.integer(source, True), x)
        if opcode in ("sext", "sitofp"):
            x = syntax.cast(syntax.integer(source, False), x)
        half = {"fpext": "ek_half_to_float", "fptrunc": "ek_float_to_half"}.get(opcode)
        if half is not None and "float16" in (dt.element_dtype(source), dt.element_dtype(target)):
            _check_scalar(dt.lanes(source))
            self.uses_half = True
            return self.assign(target, f"{half}({x})")
        return self.assign(target, syntax.convert(source, target, x))

    def call(self, name: str, result: str, arguments: Arguments) -> Operand:
        """Raise InternalError: helpers call nothing but intrinsics."""
        raise InternalError(f"c: no meaning for a call of {name!r}")

    def intrinsic(self, name: str, dtype: str, *operands: Operand) -> Operand:
        """Emit a call of a <math.h> function."""
        arguments = ", ".join(map(_strip_type, operands))
        return self.assign(dtype, f"{self.syntax.math(_MATH_H_NAMES[name], dtype)}({arguments})")

    def load_table_element(self, values: tuple[float, ...], index: Operand, lanes: int) -> Operand:
        """Return an element of a constant table of float64."""
        _check_scalar(lanes)
        name = self.tables.setdefault(values, f"{self.prefix}table{len(self.tables)}")
        return self.assign("float64", f"{name}[{_strip_type(index)}]")


def _check_scalar(lanes: int) -> None:
    if lanes > 1:
        raise UnsupportedVectorError


def _strip_type(operand: Operand) -> str:
    return operand[1:] if operand[0] == "%" else operand


def _format_comparison(predicate: str, dtype: str, x: str, y: str, syntax: CSyntax) -> str:
    def compare_operands(a: str, symbol: str, b: str, kind: str = dtype) -> str:
        return syntax.compare(a, symbol, b, kind)

    if dt.is_float(dtype):
        either, both = ("||", "&&") if dt.lanes(dtype) == 1 else ("|", "&")
        match predicate:
            case "oeq" | "une":
                return compare_operands(x, "==" if predicate == "oeq" else "!=", y)
            case "one":
                return f"({compare_operands(x, '<', y)} {either} {compare_operands(x, '>', y)})"
            case "uno":
                return f"({compare_operands(x, '!=', x)} {either} {compare_operands(y, '!=', y)})"
            case "ord":
                return f"({compare_operands(x, '==', x)} {both} {compare_operands(y, '==', y)})"
        return compare_operands(x, _PREDICATE_SYMBOLS[predicate[1:]], y)
    if predicate in ("eq", "ne"):
        return compare_operands(x, "==" if predicate == "eq" else "!=", y)
    kind = syntax.integer(dtype, predicate[0] == "u")
    a, b = (syntax.cast(kind, operand) for operand in (x, y))
    is_same = dt.is_unsigned(dtype) == (predicate[0] == "u")
    return compare_operands(
        a, _PREDICATE_SYMBOLS[predicate[1:]], b, dtype if is_same else _opposite_signedness(dtype)
    )


def _opposite_signedness(dtype: str) -> str:
    """Return the integer dtype of the same width and opposite signedness."""
    element = dt.element_dtype(dtype)
    flipped = element.removeprefix("u") if element.startswith("u") else f"u{element}"
    return dt.with_lanes(flipped, dt.lanes(dtype))


class HelperFunctions:
    """Helper functions of one file, each defined when it is first called. `target` says what the
    functions of <math.h> may be used for: those of which its processor has no instruction would
    be calls of a library, which compiled code has none of. It also says whether accesses of
    buffers are checked.
    """

    def __init__(self, target: Target | None = None, form: HelperDialect | None = None) -> None:
        self.dialect = form or HelperDialect()
        self.bounds_mode = target is not None and bool(target.bounds)
        self.texts: dict[str, str] = {}
        self.sites: dict[str, str] = {}
        self.prototypes: dict[str, str] = {}
        self.externs: dict[str, str] = {}
        self._module = LlvmModule(target)

    def with_dialect(self, form: HelperDialect) -> HelperFunctions:
        """Return a view of the same helpers that emits them in another dialect, into the
        same file.
        """
        view = HelperFunctions(self._module.target, form)
        view.texts = self.texts
        return view

    def native_math(self, op: str, dtype: str) -> str | None:
        """Return the <math.h> function that compiles to one instruction for an intrinsic, or None
        if a helper is needed.
        """
        name = MATH_INSTRUCTIONS.get(op)
        if name is None or dt.element_dtype(dtype) not in ("float32", "float64"):
            return None
        ability, _ = SOFTWARE_INTRINSICS.get(name, (None, None))
        has = ability is None or self._module.has(ability)
        return self.dialect.syntax.math(_MATH_H_NAMES[name], dtype) if has else None

    def has(self, ability: str) -> bool:
        """Return whether the target has an ability."""
        return self._module.has(ability)

    def call_site(self, name: str) -> str:
        """Return the call site of a runtime function that is looked up by name."""
        return self.sites.setdefault(name, f"site{len(self.sites)}")

    def extern(self, name: str, result: str, arguments: Sequence[str | None]) -> str:
        """Declare an external C function once for these dtypes (None: a string) and return its C
        name. A header may declare the symbol differently, so the C name is prefixed; in code for
        an image the loader resolves the symbol (`image.EXTERN_PREFIX`).
        """
        kinds = ", ".join(
            _EXTERN_POINTER_TYPES.get(a or "") or c_type(dt.element_dtype(a or ""))
            for a in arguments
        )
        declared = f"{c_type(dt.element_dtype(result))} {EXTERN_PREFIX}{name}({kinds or 'void'})"
        label = f" EK_SYMBOL({c_string_literal(name)})"
        self.externs.setdefault("", EXTERN_SYMBOL_MACRO)
        self.externs.setdefault(name, f"extern {declared}{label};")
        return f"{EXTERN_PREFIX}{name}"

    def function(self, name: str) -> str:
        """Declare a function of the same module and return its C name."""
        symbol = c_symbol(name)
        label = "" if symbol == name else f" __asm__({asm_label(name)})"
        arguments = "void *self, const ek_value *args, int32_t nargs, ek_value *ret"
        self.prototypes[name] = f"int {symbol}({arguments}){label};"
        return symbol

    def binary(self, kind: type[BinaryExpr], dtype: str, x: str, y: str) -> str:
        """Return a call that computes a binary node on operands of `dtype`."""
        is_comparison = kind.__name__ in ("EQ", "NE", "LT", "LE", "GT", "GE")
        result = dt.with_lanes("bool", dt.lanes(dtype)) if is_comparison else dtype
        name = f"ek_{kind.__name__.lower()}_{dtype}"
        self._define(name, [dtype, dtype], result, lambda b, o: emit_binary(b, kind, dtype, *o))
        return f"{name}({x}, {y})"

    def cast(self, source: str, target: str, x: str) -> str:
        """Return a call that converts a value."""
        name = f"ek_{source}_to_{target}"
        self._define(name, [source], target, lambda b, o: emit_cast(b, o[0], source, target))
        return f"{name}({x})"

    def intrinsic(self, op: str, dtype: str, argument: str, xs: Sequence[str]) -> str:
        """Return a call of an intrinsic on operands of one dtype."""
        name = f"ek_{op}_{argument}"
        target = self._module.target
        if name == "ek_dot4_u8s8_int32" and target is not None and target.has("smlad"):
            self.texts.setdefault("smlad", SMLAD_HELPERS)
            self.texts.setdefault(name, DOT4_BY_SMLAD)
        if name in self.dialect.native_functions:
            self.texts.setdefault(name, self.dialect.native_functions[name])
        kinds = [argument] * len(xs)
        self._define(name, kinds, dtype, lambda b, o: emit_intrinsic(b, op, dtype, argument, o))
        return f"{name}({', '.join(xs)})"

    def reinterpret(self, source: str, target: str, x: str) -> str:
        """Return a call that reinterprets a value's bits as another type."""
        name = f"ek_bits_{source}_as_{target}"
        self._define(name, [source], target, lambda b, o: b.convert("bitcast", source, target, *o))
        return f"{name}({x})"

    def load(self, dtype: str, address: str) -> str:
        """Return a call that reads a value from an unaligned address."""
        name, kind = f"ek_load_{dtype}", c_type(dtype)
        self.texts.setdefault(
            name,
            f"static inline {kind} {name}(const void *place) {{\n  {kind} value;\n"
            "  memcpy(&value, place, sizeof value);\n  return value;\n}",
        )
        return f"{name}({address})"

    def _define(
        self,
        name: str,
        arguments: Sequence[str],
        result: str,
        emit: Callable[[HelperBuilder, list[Operand]], Operand],
    ) -> None:
        if name in self.texts:
            return
        b = HelperBuilder(self._module, self.dialect, f"{name}_")
        names = [f"%{letter}" for letter in "xyz"[: len(arguments)]]
        value = _strip_type(emit(b, names))
        if b.uses_half:
            if self.dialect.bit_cast is None:
                self.texts.setdefault("words", FLOAT_BITS_HELPERS)
            self.texts.setdefault(
                "half", FLOAT16_HELPERS.replace("static inline ", self.dialect.function_qualifier)
            )
        syntax = self.dialect.syntax
        parameters = [(syntax.type(t), n[1:]) for t, n in zip(arguments, names, strict=True)]
        tables = [_constant_table(row, label, self.dialect) for row, label in b.tables.items()]
        if self.dialect.table_qualifier:
            for table in tables:
                self.texts[table] = table
            tables = []
        head = self.dialect.function_qualifier + syntax.function_header(
            name, parameters, syntax.type(result)
        )
        self.texts[name] = "\n".join([head, *tables, *b.lines, f"  return {value};", "}"])


def _constant_table(values: Sequence[float], label: str, form: HelperDialect) -> str:
    numbers = ", ".join(constant(v, "float64") for v in values)
    if form.table_qualifier:
        return f"{form.table_qualifier}double {label}[] = {{{numbers}}};"
    return f"  static const double {label}[] = {{{numbers}}};"
