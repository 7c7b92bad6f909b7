"""Rewrite rules of the simplifier, as equations.

A row says that its left side may become its right side where its condition holds. Names stand for:

    x y z w    whole numbers            c1 c2 c3   numbers written in the program
    p q r      conditions               v u        values of any type

`//` and `%` round down, truncdiv rounds towards zero. Operands of `+ * min max and or == !=` match
in both orders. A condition about c1 is computed, one about x is proved by the Analyzer, so
assumptions and bounds count.

REWRITES are applied, the first that matches, to nodes that are no sums or products. Sums, products,
quotients and remainders have the Analyzer's canonical form, a polynomial over atoms; CANONICAL
lists what that form makes equal. NORMAL brings divisions to `//` and `%` by positive numbers for
it. `arith.forms` has what `rewrite_simplify` knows beside REWRITES. Every row of the tables is
proved by z3 in the tests.
"""

from __future__ import annotations

from ekiden.runtime.lazy_dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Rule:
    """Rewrite rule: left -> right if condition."""

    left: str
    right: str
    condition: str = "True"
    fixed: bool = False
    """Operands match as written alone."""
    final: bool = False
    """The right side stays as it is written."""


# fmt: off
REWRITES: tuple[Rule, ...] = (
    # the smaller and the larger of two
    Rule("min(min(x, y), x)",              "min(x, y)"),
    Rule("max(max(x, y), x)",              "max(x, y)"),
    Rule("min(max(x, y), x)",              "x"),
    Rule("max(min(x, y), x)",              "x"),
    Rule("min(max(x, y), min(x, y))",      "min(x, y)"),
    Rule("max(max(x, y), min(x, y))",      "max(x, y)"),
    Rule("min(min(x, c1), c2)",            "min(x, min(c1, c2))"),
    Rule("max(max(x, c1), c2)",            "max(x, max(c1, c2))"),
    Rule("min(max(x, c1), c2)",            "c2",                       "c2 <= c1"),
    Rule("max(min(x, c1), c2)",            "c2",                       "c1 <= c2"),
    Rule("min(min(x, y), min(x, z))",      "min(min(y, z), x)"),
    Rule("max(max(x, y), max(x, z))",      "max(max(y, z), x)"),
    Rule("min(max(x, z), max(y, z))",      "max(min(x, y), z)"),
    Rule("max(min(x, z), min(y, z))",      "min(max(x, y), z)"),
    Rule("min(min(x, y), z)",              "min(x, z)",                "y >= z"),
    Rule("max(max(x, y), z)",              "max(x, z)",                "y <= z"),
    Rule("min(min(x, y), z)",              "min(x, y)",                "y <= z"),
    Rule("max(max(x, y), z)",              "max(x, y)",                "y >= z"),
    Rule("min(max(x, y), z)",              "z",                        "y >= z"),
    Rule("max(min(x, y), z)",              "z",                        "y <= z"),
    Rule("min(x + z, y + z)",              "min(x, y) + z"),
    Rule("max(x + z, y + z)",              "max(x, y) + z"),
    Rule("min(x - z, y - z)",              "min(x, y) - z"),
    Rule("max(x - z, y - z)",              "max(x, y) - z"),
    Rule("min(z - x, z - y)",              "z - max(x, y)"),
    Rule("max(z - x, z - y)",              "z - min(x, y)"),
    Rule("min(x * c1, y * c1)",            "min(x, y) * c1",           "c1 > 0"),
    Rule("max(x * c1, y * c1)",            "max(x, y) * c1",           "c1 > 0"),
    Rule("min(x * c1, y * c1)",            "max(x, y) * c1",           "c1 < 0"),
    Rule("max(x * c1, y * c1)",            "min(x, y) * c1",           "c1 < 0"),
    Rule("min(x * c1, c2)",                "min(x, c2 // c1) * c1",    "c1 > 1 and c2 % c1 == 0"),
    Rule("max(x * c1, c2)",                "max(x, c2 // c1) * c1",    "c1 > 1 and c2 % c1 == 0"),
    Rule("min(x // c1, y // c1)",          "min(x, y) // c1",          "c1 > 0"),
    Rule("max(x // c1, y // c1)",          "max(x, y) // c1",          "c1 > 0"),
    Rule("min(x // c1, c2)",               "min(x, c2 * c1) // c1",    "c1 > 0"),
    Rule("max(x // c1, c2)",               "max(x, c2 * c1) // c1",    "c1 > 0"),
    Rule("min(x // c1 * c1, x)",           "x // c1 * c1",             "c1 > 0"),
    Rule("max(x // c1 * c1, x)",           "x",                        "c1 > 0"),
    Rule("min((x + c2) // c1 * c1, x)",    "x",                        "c1 > 0 and c2 >= c1 - 1"),
    Rule("max((x + c2) // c1 * c1, x)",    "(x + c2) // c1 * c1",      "c1 > 0 and c2 >= c1 - 1"),
    Rule("min(x % y, x)",                  "x % y",                    "x >= 0 and y > 0"),
    # choices
    Rule("select(not p, v, u)",            "select(p, u, v)"),
    Rule("select(p, select(p, v, u), t)",  "select(p, v, t)"),
    Rule("select(p, v, select(p, u, t))",  "select(p, v, t)"),
    Rule("select(p, v, select(q, v, u))",  "select(p or q, v, u)"),
    Rule("select(p, select(q, v, u), u)",  "select(p and q, v, u)"),
    Rule("select(x < y, x, y)",            "min(x, y)"),
    Rule("select(x < y, y, x)",            "max(x, y)"),
    Rule("select(x <= y, x, y)",           "min(x, y)"),
    Rule("select(x <= y, y, x)",           "max(x, y)"),
    Rule("select(x > y, x, y)",            "max(x, y)"),
    Rule("select(x > y, y, x)",            "min(x, y)"),
    Rule("select(x >= y, x, y)",           "max(x, y)"),
    Rule("select(x >= y, y, x)",           "min(x, y)"),
    Rule("select(x == y, x, y)",           "y"),
    Rule("select(x == y, y, x)",           "x"),
    Rule("select(x != y, x, y)",           "x"),
    Rule("select(x % c1 != 0, x // c1 + 1, x // c1)", "(x + (c1 - 1)) // c1", "c1 > 0"),
    Rule("select(x % c1 != 0, x // c1 * c2 - c3, x // c1 * c2)", "(x + (c1 - 1)) // c1 * c2",
         "c1 > 0 and c3 > 0 and c2 + c3 == 0"),
    Rule("if_then_else(not p, v, u)",      "if_then_else(p, u, v)"),
    Rule("if_then_else(p, if_then_else(p, v, u), t)","if_then_else(p, v, t)"),
    Rule("if_then_else(p, v, if_then_else(p, u, t))","if_then_else(p, v, t)"),
    # conditions
    Rule("not not p",                      "p"),
    Rule("not (x < y)",                    "x >= y"),
    Rule("not (x <= y)",                   "x > y"),
    Rule("not (x > y)",                    "x <= y"),
    Rule("not (x >= y)",                   "x < y"),
    Rule("not (x == y)",                   "x != y"),
    Rule("not (x != y)",                   "x == y"),
    Rule("not (p and q)",                  "not p or not q"),
    Rule("not (p or q)",                   "not p and not q"),
    Rule("p and not p",                    "False"),
    Rule("p or not p",                     "True"),
    Rule("p and (p and q)",                "p and q"),
    Rule("p or (p or q)",                  "p or q"),
    Rule("p and (p or q)",                 "p"),
    Rule("p or (p and q)",                 "p"),
    Rule("x < y and y < x",                "False"),
    Rule("x < y and y <= x",               "False"),
    Rule("x < y and x >= y",               "False"),
    Rule("x < y and x > y",                "False"),
    Rule("x <= y and x > y",               "False"),
    Rule("x == y and x != y",              "False"),
    Rule("x == y and x < y",               "False"),
    Rule("x == y and x > y",               "False"),
    Rule("x <= y and y <= x",              "x == y"),
    Rule("x <= y and x >= y",              "x == y"),
    Rule("x <= y and x != y",              "x < y"),
    Rule("x >= y and x != y",              "x > y"),
    Rule("x < y or y <= x",                "True"),
    Rule("x < y or x >= y",                "True"),
    Rule("x <= y or x > y",                "True"),
    Rule("x == y or x != y",               "True"),
    Rule("x < y or x == y",                "x <= y"),
    Rule("x > y or x == y",                "x >= y"),
    Rule("x < y or x > y",                 "x != y"),
    Rule("x < c1 and x < c2",              "x < min(c1, c2)"),
    Rule("x < c1 or x < c2",               "x < max(c1, c2)"),
    Rule("x <= c1 and x <= c2",            "x <= min(c1, c2)"),
    Rule("x <= c1 or x <= c2",             "x <= max(c1, c2)"),
    Rule("x > c1 and x > c2",              "x > max(c1, c2)"),
    Rule("x > c1 or x > c2",               "x > min(c1, c2)"),
    Rule("x >= c1 and x >= c2",            "x >= max(c1, c2)"),
    Rule("x >= c1 or x >= c2",             "x >= min(c1, c2)"),
    Rule("x < c1 and x >= c2",             "False",                    "c1 <= c2"),
    Rule("x < c1 or x >= c2",              "True",                     "c2 <= c1"),
    Rule("x <= c1 and x >= c2",            "False",                    "c1 < c2"),
    Rule("x <= c1 or x >= c2",             "True",                     "c2 <= c1 + 1"),
    Rule("x == c1 and x == c2",            "False",                    "c1 != c2"),
    Rule("x == c1 and x < c2",             "x == c1",                  "c1 < c2"),
    Rule("x == c1 and x < c2",             "False",                    "c1 >= c2"),
    Rule("x == c1 and x >= c2",            "x == c1",                  "c1 >= c2"),
    Rule("x == c1 and x >= c2",            "False",                    "c1 < c2"),
    Rule("x != c1 or x != c2",             "True",                     "c1 != c2"),
    # comparisons
    Rule("x + c1 < c2",                    "x < c2 - c1"),
    Rule("x + c1 <= c2",                   "x <= c2 - c1"),
    Rule("x + c1 > c2",                    "x > c2 - c1"),
    Rule("x + c1 >= c2",                   "x >= c2 - c1"),
    Rule("x + c1 == c2",                   "x == c2 - c1"),
    Rule("x + c1 != c2",                   "x != c2 - c1"),
    Rule("x - c1 < c2",                    "x < c2 + c1"),
    Rule("x - c1 <= c2",                   "x <= c2 + c1"),
    Rule("x - c1 > c2",                    "x > c2 + c1"),
    Rule("x - c1 >= c2",                   "x >= c2 + c1"),
    Rule("x - c1 == c2",                   "x == c2 + c1"),
    Rule("x - c1 != c2",                   "x != c2 + c1"),
    Rule("x * c1 < c2",                    "x < (c2 + c1 - 1) // c1",  "c1 > 0"),
    Rule("x * c1 <= c2",                   "x <= c2 // c1",            "c1 > 0"),
    Rule("x * c1 > c2",                    "x > c2 // c1",             "c1 > 0"),
    Rule("x * c1 >= c2",                   "x >= (c2 + c1 - 1) // c1", "c1 > 0"),
    Rule("x * c1 < c2",                    "x > c2 // c1",             "c1 < 0 and c2 % c1 == 0"),
    Rule("x * c1 > c2",                    "x < c2 // c1",             "c1 < 0 and c2 % c1 == 0"),
    Rule("x * c1 == c2",                   "x == c2 // c1",            "c1 != 0 and c2 % c1 == 0"),
    Rule("x * c1 == c2",                   "False",                    "c1 != 0 and c2 % c1 != 0"),
    Rule("x * c1 != c2",                   "x != c2 // c1",            "c1 != 0 and c2 % c1 == 0"),
    Rule("x * c1 != c2",                   "True",                     "c1 != 0 and c2 % c1 != 0"),
    Rule("x // c1 < c2",                   "x < c1 * c2",              "c1 > 0"),
    Rule("x // c1 <= c2",                  "x < c1 * (c2 + 1)",        "c1 > 0"),
    Rule("x // c1 > c2",                   "x >= c1 * (c2 + 1)",       "c1 > 0"),
    Rule("x // c1 >= c2",                  "x >= c1 * c2",             "c1 > 0"),
    Rule("x * c1 < y * c1",                "x < y",                    "c1 > 0"),
    Rule("x * c1 <= y * c1",               "x <= y",                   "c1 > 0"),
    Rule("x * c1 == y * c1",               "x == y",                   "c1 != 0"),
    Rule("x + z < y + z",                  "x < y"),
    Rule("x + z <= y + z",                 "x <= y"),
    Rule("x + z == y + z",                 "x == y"),
    Rule("x + y < x",                      "y < 0"),
    Rule("x + y >= x",                     "y >= 0"),
    Rule("x < x + y",                      "0 < y"),
    Rule("x // c1 * c1 == x",              "x % c1 == 0",              "c1 > 0"),
    Rule("min(x, y) < z",                  "y < z",                    "x >= z"),
    Rule("min(x, y) <= z",                 "y <= z",                   "x > z"),
    Rule("max(x, y) < z",                  "y < z",                    "x < z"),
    Rule("max(x, y) <= z",                 "y <= z",                   "x <= z"),
    # quotients, remainders, shifts
    Rule("x % c1 % c2",                    "x % c2",                   "c2 > 0 and c1 % c2 == 0"),
    Rule("left_shift(x, c1)",              "x * 2 ** c1",              "0 <= c1 and c1 < 31"),
    Rule("right_shift(x, c1)",             "x // 2 ** c1",             "0 <= c1 and c1 < 31"),
)
NORMAL: tuple[Rule, ...] = (
    Rule("x // c1",                        "-x // -c1",                "c1 < 0"),
    Rule("x % c1",                         "-(-x % -c1)",              "c1 < 0"),
    Rule("truncdiv(x, y)",                 "x // y",                   "x >= 0 and y > 0"),
    Rule("truncdiv(x, y)",                 "-(-x // y)",               "x <= 0 and y > 0"),
)
CANONICAL: tuple[Rule, ...] = (
    Rule("x + y",                          "y + x"),
    Rule("x - y + y",                      "x"),
    Rule("x * (y + z)",                    "x * y + x * z"),
    Rule("(x + y) * (x - y)",              "x * x - y * y"),
    Rule("(x * c1 + y) // c1",             "x + y // c1",              "c1 > 0"),
    Rule("(x * c1 + y) % c1",              "y % c1",                   "c1 > 0"),
    Rule("(x * c1 + y) // c1",             "x",                        "0 <= y and y < c1"),
    Rule("(x * c1 + y) % c1",              "y",                        "0 <= y and y < c1"),
    Rule("(x * y + z) // y",               "x",                        "0 <= z and z < y"),
    Rule("(x * y + z) % y",                "z",                        "0 <= z and z < y"),
    Rule("x // c1 // c2",                  "x // (c1 * c2)",           "c1 > 0 and c2 > 0"),
    Rule("(x // c1) * c1 + x % c1",        "x",                        "c1 > 0"),
    Rule("(x // y) * y + x % y",           "x",                        "y > 0"),
    Rule("x // c1 % c2 * c1 + x % c1",     "x % (c1 * c2)",            "c1 > 0 and c2 > 0"),
    Rule("(x * c1) // (c1 * c2)",          "x // c2",                  "c1 > 0 and c2 > 0"),
    Rule("(x * c1) % (c1 * c2)",           "x % c2 * c1",              "c1 > 0 and c2 > 0"),
    Rule("(x + c1 * c2) // c1",            "x // c1 + c2",             "c1 > 0"),
    Rule("min(x, y)",                      "x",                        "x <= y"),
    Rule("max(x, y)",                      "x",                        "x >= y"),
    Rule("select(p, v, v)",                "v"),
)
# fmt: on
