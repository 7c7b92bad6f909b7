"""The graph form of a straight-line program: nodes that are inputs, constants and kernel calls.

It is read from bytecode and turned into bytecode again, which the virtual machine runs.
"""
