"""How a converter gives up."""


class Unsupported(Exception):
    """A node that cannot be converted, and why; the importer collects these into one UnsupportedError."""
