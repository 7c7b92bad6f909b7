"""Loop programs: statements over buffers (PrimFunc), schedule primitives, lowering passes."""
