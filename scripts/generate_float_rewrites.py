#!/usr/bin/env python3
"""Generate docs/float-rewrites.md from the floating-point rewrite tables."""

import sys
from collections.abc import Iterable

from ekiden.ir.float_tier import FloatTier
from ekiden.relay.transform.graph.float_rewrites import FLOAT_REWRITES
from ekiden.relay.transform.graph.simplify_rules import SIMPLIFY_RULES

FLOAT_REWRITES_HEAD = """# Rewrites of floating point

Made of `src/ekiden/relay/transform/graph/float_rewrites.py` and `simplify_rules.py` by
`scripts/generate_float_rewrites.py`.

Laws of algebra hold for real numbers; floating point rounds. Each rewrite has a tier, and a
compilation names the highest that it allows:

```python
import ekiden

exe = ekiden.compile("model.onnx", float_rewrites="exact")
```

On the command line that is `ekiden compile --float-rewrites exact`, and for passes that are run by
hand `PassContext(config={"relay.float_rewrites": "exact"})`.

| tier | a result differs | allowed |
|---|---|---|
| `exact` | in no bit, the signs of zeros included; a NaN stays a NaN | always |
| `rounded` | by the rounding of the new program's terms | by default |
| `free` | without a bound | where it is asked for by name |

*Rounded* means a small multiple of the dtype's epsilon times the sum of the magnitudes of the terms
that the new program adds. *Free* are rewrites after which constants cancel, an intermediate result
does not overflow any more, or a zero loses its sign.

So `(x + 12582912) - 12582912`, which rounds to a whole number in float32, does so in all tiers but
`free`, and so does `x + 0.0` turn -0.0 into 0.0. Constants that are merged are no smaller than
their parts: `(x + 1) + 2` becomes `x + 3`, and `(x * 1e30) * 1e-30`, which is infinite for
x = 1e10, stays. A bias that batch normalisation is folded into is one term of a sum of many: it may
cancel by less than half of the significand's digits beside the weights.

In which order the kernel of one operator adds up its terms is not a rewrite, as no operator says
one. Loop programs and machine code are rewritten exactly: no fast-math flags are set, products and
sums are fused only where a kernel says so, and index arithmetic alone is simplified. Passes that
compute in another dtype (`ToMixedPrecision`, quantisation, `--precision`) run for a program that
names them.
"""

EQUATIONS_HEAD = """## By equations of `SimplifyExpr`

A name is any expression, one that begins with `c` a constant. `compile` applies those of the tier
`exact`, and all where `free` is allowed; the pass run by itself applies those of the tier that the
context allows. A 0 of integers is both 0.0 and -0.0.
"""
EQUATION_COLUMNS = ("equation", "tier")


def _escape_markdown(text: str) -> str:
    return text.replace("|", "\\|")


def _markdown_table(rows: Iterable[tuple[str, ...]], head: tuple[str, ...]) -> str:
    lines = [f"| {' | '.join(map(_escape_markdown, line))} |" for line in (head, *rows)]
    return "\n".join([lines[0], "|---" * len(head) + "|", *lines[1:], ""])


def page() -> str:
    """Return the text of the page."""
    rewrites = [
        (
            f"`{row.equation}`",
            row.tier.name.lower(),
            ", ".join(f"`{name}`" for name in row.passes),
            row.condition,
        )
        for row in sorted(FLOAT_REWRITES, key=lambda row: row.tier)
    ]
    equations = [
        (f"`{rule.equation}`", tier.name.lower())
        for tier in FloatTier
        for rule in SIMPLIFY_RULES
        if rule.tier is tier
    ]
    by_pass = _markdown_table(rewrites, ("rewrite", "tier", "passes", "condition"))
    return "\n".join(
        (
            FLOAT_REWRITES_HEAD,
            "## By passes\n",
            by_pass,
            EQUATIONS_HEAD,
            _markdown_table(equations, EQUATION_COLUMNS),
        )
    )


if __name__ == "__main__":
    sys.stdout.write(page())
