"""Which device each value is on."""
