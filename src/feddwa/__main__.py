"""`python -m feddwa` is the `feddwa` command."""

import sys

from feddwa.cli import main

sys.exit(main())
