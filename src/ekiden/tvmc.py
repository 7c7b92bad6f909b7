"""`python -m ekiden.tvmc`: TVM's command line, see `ekiden.driver.tvmc`."""

import sys

from ekiden.driver.tvmc.main import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
