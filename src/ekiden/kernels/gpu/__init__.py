"""GPU kernel families: thread blocks, shared-memory tiles, tensor cores."""
