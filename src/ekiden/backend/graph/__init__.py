"""Graph form of a straight-line program (TVM's graph executor): nodes for inputs, constants and
kernel calls.

It is read from bytecode and turned into bytecode again, which the virtual machine runs.
"""
