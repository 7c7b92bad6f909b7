"""Imports of all operator modules with their descriptions, for enumerating the whole registry."""

from ekiden.relay import op
from ekiden.relay.op import nn

for _package in (op, nn):
    for _name in _package.__all__:
        getattr(_package, _name)  # which documents it
