"""What every language of Ekiden is made of.

Nodes, types, scalar expressions, operators, modules, passes.
"""
