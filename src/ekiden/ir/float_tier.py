"""How far rewrites of floating point may change a result: the tiers, and the one that is allowed.

    exact     equal bits, the signs of zeros included; of NaNs, that they are NaN
    rounded   |new - old| <= k * eps * (sum of the magnitudes of the new program's terms), small k
    free      no bound: constants cancel, an intermediate overflows, a zero loses its sign

`PassContext(config={"relay.float_rewrites": "exact"})` names the highest tier that is allowed.
Integers wrap in a ring, in which algebra is exact: no tier concerns them.
"""

from __future__ import annotations

import enum

from ekiden.ir.pass_context import FLOAT_REWRITES, FLOAT_REWRITES_KINDS, PassContext
from ekiden.runtime.errors import PassError


class FloatTier(enum.IntEnum):
    """A tier of rewrites; a higher one allows the lower ones too."""

    EXACT = 0
    ROUNDED = 1
    FREE = 2

    @staticmethod
    def allowed(context: PassContext | None = None) -> FloatTier:
        """Return the highest tier that a context (the current one) allows.

        Raises PassError where its option names none.
        """
        name = (context or PassContext.current()).option(FLOAT_REWRITES)
        if name not in FLOAT_REWRITES_KINDS:
            kinds = ", ".join(map(repr, FLOAT_REWRITES_KINDS))
            raise PassError(
                f"PassContext: option {FLOAT_REWRITES!r} is one of {kinds}, got {name!r}"
            )
        return FloatTier[str(name).upper()]


assert tuple(tier.name.lower() for tier in FloatTier) == FLOAT_REWRITES_KINDS
