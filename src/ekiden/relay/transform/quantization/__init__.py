"""Integer arithmetic for quantised models."""
