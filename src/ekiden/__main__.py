"""Entry point: `python -m ekiden` is the command `ekiden`."""

import sys

from ekiden.cli import main

if __name__ == "__main__":
    sys.exit(main())
