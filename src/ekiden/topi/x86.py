"""CPU schedules and operators under TVM's module name (schedules.py)."""

from ekiden.topi.schedules import schedules_of

__getattr__ = schedules_of(False)
