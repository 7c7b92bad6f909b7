"""Recurrent layers: the loop over time in one kernel."""
