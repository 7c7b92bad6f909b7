"""Memory planning: live ranges, arena offsets, in-place results."""
