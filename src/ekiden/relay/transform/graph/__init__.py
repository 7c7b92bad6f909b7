"""Graph-level optimisations: folding, fusion patterns, simplification and canonicalisation."""
