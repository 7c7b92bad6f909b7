"""Schedules for processors, and operators, at TVM's place (schedules.py)."""

from ekiden.topi.schedules import schedules_of

__getattr__ = schedules_of(False)
