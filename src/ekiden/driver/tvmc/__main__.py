"""`python -m ekiden.driver.tvmc`."""

import sys

from ekiden.driver.tvmc.main import main

sys.exit(main())
