"""GPU schedules and operators under TVM's module name (schedules.py)."""

from ekiden.topi.schedules import schedule_getattr

__getattr__ = schedule_getattr(True)
