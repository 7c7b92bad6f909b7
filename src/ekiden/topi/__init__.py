"""The operator inventory: one function per computation, over tensor expressions."""
