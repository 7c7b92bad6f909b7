"""The graph executor that shows what every node gives, and how long it takes."""

from ekiden.runtime.late import lend

__all__ = lend(__name__, {})
