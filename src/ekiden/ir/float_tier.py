"""FloatTier: how far floating-point rewrites may change a result.

    exact     equal bits, the signs of zeros included; of NaNs, that they are NaN
    rounded   |new - old| <= k * eps * (sum of the magnitudes of the new program's terms), small k
    free      no bound: constants cancel, an intermediate overflows, a zero loses its sign

`PassContext(config={"relay.float_rewrites": "exact"})` names the highest tier that is allowed.
Integers wrap in a ring, in which algebra is exact: no tier concerns them.
"""

from __future__ import annotations

import enum

from ekiden.ir.pass_context import FLOAT_REWRITES_KINDS, FLOAT_REWRITES_OPTION, PassContext
from ekiden.runtime.errors import PassError


class FloatTier(enum.IntEnum):
    """Strictness tier of floating-point rewrites; a higher tier includes the lower ones."""

    EXACT = 0
    ROUNDED = 1
    FREE = 2

    @staticmethod
    def allowed(context: PassContext | None = None) -> FloatTier:
        """Return the highest tier the pass context allows (default: the current context).

        Raises PassError where its option names none.
        """
        name = (context or PassContext.current()).option(FLOAT_REWRITES_OPTION)
        if name not in FLOAT_REWRITES_KINDS:
            kinds = ", ".join(map(repr, FLOAT_REWRITES_KINDS))
            raise PassError(
                f"PassContext: option {FLOAT_REWRITES_OPTION!r} is one of {kinds}, got {name!r}"
            )
        return FloatTier[str(name).upper()]


# Option names and tiers are declared in two modules, as options must be known before this one is
# imported.
assert tuple(tier.name.lower() for tier in FloatTier) == FLOAT_REWRITES_KINDS
