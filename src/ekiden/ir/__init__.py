"""What every language of Ekiden is made of: nodes, types, scalar expressions, operators, modules, passes."""
