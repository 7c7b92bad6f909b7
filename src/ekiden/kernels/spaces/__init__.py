"""Search spaces: what may be chosen about each family, and the default by an analytical model."""
