"""Device of each value."""
