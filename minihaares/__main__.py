"""`python -m minihaares` is the command `minihaares`."""

import sys

from .cli import main

sys.exit(main())
