"""Where the time of a run goes: reports, charts, repeated measurements."""
