"""``python -m harness`` is ``xla-harness``."""

import sys

from harness.cli import main

sys.exit(main())
