"""The values that evaluation gives, at TVM's place."""

from ekiden.relay.interpreter import Closure, ConstructorValue, Interpreter, RefValue

__all__ = ["Closure", "ConstructorValue", "Interpreter", "RefValue"]
