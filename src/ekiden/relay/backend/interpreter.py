"""Interpreter value classes, under TVM's module name."""

from ekiden.relay.interpreter import Interpreter
from ekiden.relay.interpreter_values import Closure, ConstructorValue, RefValue

__all__ = ["Closure", "ConstructorValue", "Interpreter", "RefValue"]
