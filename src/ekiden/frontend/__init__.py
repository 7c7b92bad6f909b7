"""Model formats: each folder turns one of them into an IRModule."""
