"""How a converter gives up."""


class Unsupported(Exception):  # noqa: N818 - UnsupportedError is made of these
    """A node that cannot be converted, and why; the importer collects these into one
    UnsupportedError.
    """
