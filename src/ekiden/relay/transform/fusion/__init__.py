"""Which operators run as one kernel."""
