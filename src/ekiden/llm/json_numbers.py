"""Regular expressions of JSON numbers within bounds."""

from __future__ import annotations

__all__ = ["MAX_BOUND", "integer_range_pattern", "number_range_pattern"]

MAX_BOUND = 10**18
"""Of bounds, both ways."""
_FRACTION = r"(\.[0-9]+)?"
_FRACTION_ABOVE_ZERO = r"\.[0-9]*[1-9][0-9]*"
_FRACTION_OF_ZERO = r"(\.0+)?"


def integer_range_pattern(low: int | None, high: int | None) -> str:
    """Return the expression of the whole numbers from `low` to `high`, both included; empty if
    there are none.
    """
    options = []
    if low is None or low < 0:
        # Zero has one form, without a sign, so it is left to the second option.
        first = 1 if high is None or high >= 0 else -high
        if below := _natural_range(first, None if low is None else -low):
            options.append(f"-{below}")
    if high is None or high >= 0:
        first = 0 if low is None or low < 0 else low
        if above := _natural_range(first, high):
            options.append(above)
    return _alternatives(options)


def number_range_pattern(
    low: int | None, high: int | None, above_low: bool = False, below_high: bool = False
) -> str:
    """Return the expression of numbers without exponent within whole bounds; empty if there are
    none.

    Args:
        low: The lower bound.
        high: The upper bound.
        above_low: Whether `low` itself is left out.
        below_high: Whether `high` itself is left out.
    """
    options = []
    if low is None or low < 0:
        is_negative = high is not None and high <= 0
        minimum = -high if is_negative and high is not None else 0
        maximum = None if low is None else -low
        if below := _decimal_range(minimum, maximum, below_high or not is_negative, above_low):
            options.append(f"-{below}")
    if high is None or high >= 0:
        is_positive = low is not None and low >= 0
        minimum = low if is_positive and low is not None else 0
        if above := _decimal_range(minimum, high, above_low and is_positive, below_high):
            options.append(above)
    return _alternatives(options)


def _decimal_range(low: int, high: int | None, above_low: bool, below_high: bool) -> str:
    """Return the expression of decimals from 0 on within bounds."""
    if low == high:
        return "" if above_low or below_high else f"{low}{_FRACTION_OF_ZERO}"
    if high is not None and high < low:
        return ""
    options = [f"{low}{_FRACTION_ABOVE_ZERO if above_low else _FRACTION}"]
    if between := _natural_range(low + 1, None if high is None else high - 1):
        options.append(f"{between}{_FRACTION}")
    if high is not None and not below_high:
        options.append(f"{high}{_FRACTION_OF_ZERO}")
    return _alternatives(options)


def _natural_range(low: int, high: int | None) -> str:
    """Return the expression of the whole numbers from `low`, at least 0, to `high`."""
    options = []
    digits = len(str(low))
    while high is None or low <= high:
        last = 10**digits - 1
        if high is not None and high <= last:
            options.append(_same_length_range(str(low), str(high)))
            break
        options.append(_same_length_range(str(low), str(last)))
        low, digits = last + 1, digits + 1
        if high is None:
            # Without an upper bound, all numbers with more digits are inside.
            options.append(f"[1-9][0-9]{{{digits - 1},}}")
            break
    return _alternatives(options)


def _same_length_range(low: str, high: str) -> str:
    """Return the expression of the numbers between two of equal length."""
    if low == high:
        return low
    rest = len(low) - 1
    if set(low[1:]) <= {"0"} and set(high[1:]) <= {"9"}:
        return f"[{low[0]}-{high[0]}]" + (f"[0-9]{{{rest}}}" if rest else "")
    if low[0] == high[0]:
        return low[0] + _same_length_range(low[1:], high[1:])
    options = [low[0] + _same_length_range(low[1:], "9" * rest)]
    if int(high[0]) - int(low[0]) > 1:
        options.append(f"[{int(low[0]) + 1}-{int(high[0]) - 1}][0-9]{{{rest}}}")
    options.append(high[0] + _same_length_range("0" * rest, high[1:]))
    return _alternatives(options)


def _alternatives(options: list[str]) -> str:
    return options[0] if len(options) == 1 else f"({'|'.join(options)})" if options else ""
