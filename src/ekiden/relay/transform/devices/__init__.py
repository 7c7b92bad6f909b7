"""Device placement of heterogeneous programs."""
