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
class RewriteRule:
    """Rewrite rule: left -> right if condition."""

    left: str
    right: str
    condition: str = "True"
    fixed: bool = False
    """Operands match as written alone."""
    final: bool = False
    """The right side stays as it is written."""


# fmt: off
REWRITE_RULES: tuple[RewriteRule, ...] = (
    # the smaller and the larger of two
    RewriteRule("min(min(x, y), x)",           "min(x, y)"),
    RewriteRule("max(max(x, y), x)",           "max(x, y)"),
    RewriteRule("min(max(x, y), x)",           "x"),
    RewriteRule("max(min(x, y), x)",           "x"),
    RewriteRule("min(max(x, y), min(x, y))",   "min(x, y)"),
    RewriteRule("max(max(x, y), min(x, y))",   "max(x, y)"),
    RewriteRule("min(min(x, c1), c2)",         "min(x, min(c1, c2))"),
    RewriteRule("max(max(x, c1), c2)",         "max(x, max(c1, c2))"),
    RewriteRule("min(max(x, c1), c2)",         "c2",                    "c2 <= c1"),
    RewriteRule("max(min(x, c1), c2)",         "c2",                    "c1 <= c2"),
    RewriteRule("min(min(x, y), min(x, z))",   "min(min(y, z), x)"),
    RewriteRule("max(max(x, y), max(x, z))",   "max(max(y, z), x)"),
    RewriteRule("min(max(x, z), max(y, z))",   "max(min(x, y), z)"),
    RewriteRule("max(min(x, z), min(y, z))",   "min(max(x, y), z)"),
    RewriteRule("min(min(x, y), z)",           "min(x, z)",             "y >= z"),
    RewriteRule("max(max(x, y), z)",           "max(x, z)",             "y <= z"),
    RewriteRule("min(min(x, y), z)",           "min(x, y)",             "y <= z"),
    RewriteRule("max(max(x, y), z)",           "max(x, y)",             "y >= z"),
    RewriteRule("min(max(x, y), z)",           "z",                     "y >= z"),
    RewriteRule("max(min(x, y), z)",           "z",                     "y <= z"),
    RewriteRule("min(x + z, y + z)",           "min(x, y) + z"),
    RewriteRule("max(x + z, y + z)",           "max(x, y) + z"),
    RewriteRule("min(x - z, y - z)",           "min(x, y) - z"),
    RewriteRule("max(x - z, y - z)",           "max(x, y) - z"),
    RewriteRule("min(z - x, z - y)",           "z - max(x, y)"),
    RewriteRule("max(z - x, z - y)",           "z - min(x, y)"),
    RewriteRule("min(x * c1, y * c1)",         "min(x, y) * c1",        "c1 > 0"),
    RewriteRule("max(x * c1, y * c1)",         "max(x, y) * c1",        "c1 > 0"),
    RewriteRule("min(x * c1, y * c1)",         "max(x, y) * c1",        "c1 < 0"),
    RewriteRule("max(x * c1, y * c1)",         "min(x, y) * c1",        "c1 < 0"),
    RewriteRule("min(x * c1, c2)",             "min(x, c2 // c1) * c1", "c1 > 1 and c2 % c1 == 0"),
    RewriteRule("max(x * c1, c2)",             "max(x, c2 // c1) * c1", "c1 > 1 and c2 % c1 == 0"),
    RewriteRule("min(x // c1, y // c1)",       "min(x, y) // c1",       "c1 > 0"),
    RewriteRule("max(x // c1, y // c1)",       "max(x, y) // c1",       "c1 > 0"),
    RewriteRule("min(x // c1, c2)",            "min(x, c2 * c1) // c1", "c1 > 0"),
    RewriteRule("max(x // c1, c2)",            "max(x, c2 * c1) // c1", "c1 > 0"),
    RewriteRule("min(x // c1 * c1, x)",        "x // c1 * c1",          "c1 > 0"),
    RewriteRule("max(x // c1 * c1, x)",        "x",                     "c1 > 0"),
    RewriteRule("min((x + c2) // c1 * c1, x)", "x",                     "c1 > 0 and c2 >= c1 - 1"),
    RewriteRule("max((x + c2) // c1 * c1, x)", "(x + c2) // c1 * c1",   "c1 > 0 and c2 >= c1 - 1"),
    RewriteRule("min(x % y, x)",               "x % y",                 "x >= 0 and y > 0"),
    # choices
    RewriteRule("select(not p, v, u)",         "select(p, u, v)"),
    RewriteRule("select(p, select(p, v, u), t)", "select(p, v, t)"),
    RewriteRule("select(p, v, select(p, u, t))", "select(p, v, t)"),
    RewriteRule("select(p, v, select(q, v, u))", "select(p or q, v, u)"),
    RewriteRule("select(p, select(q, v, u), u)", "select(p and q, v, u)"),
    RewriteRule("select(x < y, x, y)",         "min(x, y)"),
    RewriteRule("select(x < y, y, x)",         "max(x, y)"),
    RewriteRule("select(x <= y, x, y)",        "min(x, y)"),
    RewriteRule("select(x <= y, y, x)",        "max(x, y)"),
    RewriteRule("select(x > y, x, y)",         "max(x, y)"),
    RewriteRule("select(x > y, y, x)",         "min(x, y)"),
    RewriteRule("select(x >= y, x, y)",        "max(x, y)"),
    RewriteRule("select(x >= y, y, x)",        "min(x, y)"),
    RewriteRule("select(x == y, x, y)",        "y"),
    RewriteRule("select(x == y, y, x)",        "x"),
    RewriteRule("select(x != y, x, y)",        "x"),
    RewriteRule("select(x % c1 != 0, x // c1 + 1, x // c1)", "(x + (c1 - 1)) // c1", "c1 > 0"),
    RewriteRule("select(x % c1 != 0, x // c1 * c2 - c3, x // c1 * c2)", "(x + (c1 - 1)) // c1 * c2",
                "c1 > 0 and c3 > 0 and c2 + c3 == 0"),
    RewriteRule("if_then_else(not p, v, u)",   "if_then_else(p, u, v)"),
    RewriteRule("if_then_else(p, if_then_else(p, v, u), t)", "if_then_else(p, v, t)"),
    RewriteRule("if_then_else(p, v, if_then_else(p, u, t))", "if_then_else(p, v, t)"),
    # conditions
    RewriteRule("not not p",                   "p"),
    RewriteRule("not (x < y)",                 "x >= y"),
    RewriteRule("not (x <= y)",                "x > y"),
    RewriteRule("not (x > y)",                 "x <= y"),
    RewriteRule("not (x >= y)",                "x < y"),
    RewriteRule("not (x == y)",                "x != y"),
    RewriteRule("not (x != y)",                "x == y"),
    RewriteRule("not (p and q)",               "not p or not q"),
    RewriteRule("not (p or q)",                "not p and not q"),
    RewriteRule("p and not p",                 "False"),
    RewriteRule("p or not p",                  "True"),
    RewriteRule("p and (p and q)",             "p and q"),
    RewriteRule("p or (p or q)",               "p or q"),
    RewriteRule("p and (p or q)",              "p"),
    RewriteRule("p or (p and q)",              "p"),
    RewriteRule("x < y and y < x",             "False"),
    RewriteRule("x < y and y <= x",            "False"),
    RewriteRule("x < y and x >= y",            "False"),
    RewriteRule("x < y and x > y",             "False"),
    RewriteRule("x <= y and x > y",            "False"),
    RewriteRule("x == y and x != y",           "False"),
    RewriteRule("x == y and x < y",            "False"),
    RewriteRule("x == y and x > y",            "False"),
    RewriteRule("x <= y and y <= x",           "x == y"),
    RewriteRule("x <= y and x >= y",           "x == y"),
    RewriteRule("x <= y and x != y",           "x < y"),
    RewriteRule("x >= y and x != y",           "x > y"),
    RewriteRule("x < y or y <= x",             "True"),
    RewriteRule("x < y or x >= y",             "True"),
    RewriteRule("x <= y or x > y",             "True"),
    RewriteRule("x == y or x != y",            "True"),
    RewriteRule("x < y or x == y",             "x <= y"),
    RewriteRule("x > y or x == y",             "x >= y"),
    RewriteRule("x < y or x > y",              "x != y"),
    RewriteRule("x < c1 and x < c2",           "x < min(c1, c2)"),
    RewriteRule("x < c1 or x < c2",            "x < max(c1, c2)"),
    RewriteRule("x <= c1 and x <= c2",         "x <= min(c1, c2)"),
    RewriteRule("x <= c1 or x <= c2",          "x <= max(c1, c2)"),
    RewriteRule("x > c1 and x > c2",           "x > max(c1, c2)"),
    RewriteRule("x > c1 or x > c2",            "x > min(c1, c2)"),
    RewriteRule("x >= c1 and x >= c2",         "x >= max(c1, c2)"),
    RewriteRule("x >= c1 or x >= c2",          "x >= min(c1, c2)"),
    RewriteRule("x < c1 and x >= c2",          "False",                 "c1 <= c2"),
    RewriteRule("x < c1 or x >= c2",           "True",                  "c2 <= c1"),
    RewriteRule("x <= c1 and x >= c2",         "False",                 "c1 < c2"),
    RewriteRule("x <= c1 or x >= c2",          "True",                  "c2 <= c1 + 1"),
    RewriteRule("x == c1 and x == c2",         "False",                 "c1 != c2"),
    RewriteRule("x == c1 and x < c2",          "x == c1",               "c1 < c2"),
    RewriteRule("x == c1 and x < c2",          "False",                 "c1 >= c2"),
    RewriteRule("x == c1 and x >= c2",         "x == c1",               "c1 >= c2"),
    RewriteRule("x == c1 and x >= c2",         "False",                 "c1 < c2"),
    RewriteRule("x != c1 or x != c2",          "True",                  "c1 != c2"),
    # comparisons
    RewriteRule("x + c1 < c2",                 "x < c2 - c1"),
    RewriteRule("x + c1 <= c2",                "x <= c2 - c1"),
    RewriteRule("x + c1 > c2",                 "x > c2 - c1"),
    RewriteRule("x + c1 >= c2",                "x >= c2 - c1"),
    RewriteRule("x + c1 == c2",                "x == c2 - c1"),
    RewriteRule("x + c1 != c2",                "x != c2 - c1"),
    RewriteRule("x - c1 < c2",                 "x < c2 + c1"),
    RewriteRule("x - c1 <= c2",                "x <= c2 + c1"),
    RewriteRule("x - c1 > c2",                 "x > c2 + c1"),
    RewriteRule("x - c1 >= c2",                "x >= c2 + c1"),
    RewriteRule("x - c1 == c2",                "x == c2 + c1"),
    RewriteRule("x - c1 != c2",                "x != c2 + c1"),
    RewriteRule("x * c1 < c2",                 "x < (c2 + c1 - 1) // c1", "c1 > 0"),
    RewriteRule("x * c1 <= c2",                "x <= c2 // c1",         "c1 > 0"),
    RewriteRule("x * c1 > c2",                 "x > c2 // c1",          "c1 > 0"),
    RewriteRule("x * c1 >= c2",                "x >= (c2 + c1 - 1) // c1", "c1 > 0"),
    RewriteRule("x * c1 < c2",                 "x > c2 // c1",          "c1 < 0 and c2 % c1 == 0"),
    RewriteRule("x * c1 > c2",                 "x < c2 // c1",          "c1 < 0 and c2 % c1 == 0"),
    RewriteRule("x * c1 == c2",                "x == c2 // c1",         "c1 != 0 and c2 % c1 == 0"),
    RewriteRule("x * c1 == c2",                "False",                 "c1 != 0 and c2 % c1 != 0"),
    RewriteRule("x * c1 != c2",                "x != c2 // c1",         "c1 != 0 and c2 % c1 == 0"),
    RewriteRule("x * c1 != c2",                "True",                  "c1 != 0 and c2 % c1 != 0"),
    RewriteRule("x // c1 < c2",                "x < c1 * c2",           "c1 > 0"),
    RewriteRule("x // c1 <= c2",               "x < c1 * (c2 + 1)",     "c1 > 0"),
    RewriteRule("x // c1 > c2",                "x >= c1 * (c2 + 1)",    "c1 > 0"),
    RewriteRule("x // c1 >= c2",               "x >= c1 * c2",          "c1 > 0"),
    RewriteRule("x * c1 < y * c1",             "x < y",                 "c1 > 0"),
    RewriteRule("x * c1 <= y * c1",            "x <= y",                "c1 > 0"),
    RewriteRule("x * c1 == y * c1",            "x == y",                "c1 != 0"),
    RewriteRule("x + z < y + z",               "x < y"),
    RewriteRule("x + z <= y + z",              "x <= y"),
    RewriteRule("x + z == y + z",              "x == y"),
    RewriteRule("x + y < x",                   "y < 0"),
    RewriteRule("x + y >= x",                  "y >= 0"),
    RewriteRule("x < x + y",                   "0 < y"),
    RewriteRule("x // c1 * c1 == x",           "x % c1 == 0",           "c1 > 0"),
    RewriteRule("min(x, y) < z",               "y < z",                 "x >= z"),
    RewriteRule("min(x, y) <= z",              "y <= z",                "x > z"),
    RewriteRule("max(x, y) < z",               "y < z",                 "x < z"),
    RewriteRule("max(x, y) <= z",              "y <= z",                "x <= z"),
    # quotients, remainders, shifts
    RewriteRule("x % c1 % c2",                 "x % c2",                "c2 > 0 and c1 % c2 == 0"),
    RewriteRule("left_shift(x, c1)",           "x * 2 ** c1",           "0 <= c1 and c1 < 31"),
    RewriteRule("right_shift(x, c1)",          "x // 2 ** c1",          "0 <= c1 and c1 < 31"),
)
NORMALIZE_RULES: tuple[RewriteRule, ...] = (
    RewriteRule("x // c1",                     "-x // -c1",             "c1 < 0"),
    RewriteRule("x % c1",                      "-(-x % -c1)",           "c1 < 0"),
    RewriteRule("truncdiv(x, y)",              "x // y",                "x >= 0 and y > 0"),
    RewriteRule("truncdiv(x, y)",              "-(-x // y)",            "x <= 0 and y > 0"),
)
CANONICAL_FORM_EQUATIONS: tuple[RewriteRule, ...] = (
    RewriteRule("x + y",                       "y + x"),
    RewriteRule("x - y + y",                   "x"),
    RewriteRule("x * (y + z)",                 "x * y + x * z"),
    RewriteRule("(x + y) * (x - y)",           "x * x - y * y"),
    RewriteRule("(x * c1 + y) // c1",          "x + y // c1",           "c1 > 0"),
    RewriteRule("(x * c1 + y) % c1",           "y % c1",                "c1 > 0"),
    RewriteRule("(x * c1 + y) // c1",          "x",                     "0 <= y and y < c1"),
    RewriteRule("(x * c1 + y) % c1",           "y",                     "0 <= y and y < c1"),
    RewriteRule("(x * y + z) // y",            "x",                     "0 <= z and z < y"),
    RewriteRule("(x * y + z) % y",             "z",                     "0 <= z and z < y"),
    RewriteRule("x // c1 // c2",               "x // (c1 * c2)",        "c1 > 0 and c2 > 0"),
    RewriteRule("(x // c1) * c1 + x % c1",     "x",                     "c1 > 0"),
    RewriteRule("(x // y) * y + x % y",        "x",                     "y > 0"),
    RewriteRule("x // c1 % c2 * c1 + x % c1",  "x % (c1 * c2)",         "c1 > 0 and c2 > 0"),
    RewriteRule("(x * c1) // (c1 * c2)",       "x // c2",               "c1 > 0 and c2 > 0"),
    RewriteRule("(x * c1) % (c1 * c2)",        "x % c2 * c1",           "c1 > 0 and c2 > 0"),
    RewriteRule("(x + c1 * c2) // c1",         "x // c1 + c2",          "c1 > 0"),
    RewriteRule("min(x, y)",                   "x",                     "x <= y"),
    RewriteRule("max(x, y)",                   "x",                     "x >= y"),
    RewriteRule("select(p, v, v)",             "v"),
)
# fmt: on
