"""Descriptions of the operators declared by functions of a module, such as `relay.op.linalg.svd`.

Python makes a submodule an attribute of its package when anything imports it, without a call of the
package's `__getattr__`; so the modules are documented here, once all operators are loaded.
"""

from __future__ import annotations

from ekiden._lazy import load_module
from ekiden.relay.op._document import attach_descriptions
from ekiden.relay.op._exports import EXPORTED_NAMES

for _entry in EXPORTED_NAMES[""].split():
    _name, _, _module = _entry.partition(":")
    attach_descriptions(f"{_name}.", vars(load_module(f"ekiden.relay.op.{_module or _name}")))
