"""Pattern tables of external compilers, under TVM's module name."""

from ekiden.relay.op.contrib import register
from ekiden.relay.op.contrib.register import get_pattern_table, register_pattern_table

__all__ = ["get_pattern_table", "register", "register_pattern_table"]
