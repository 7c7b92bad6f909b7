"""Search spaces and default decisions of kernel families, by the analytical cost model."""
