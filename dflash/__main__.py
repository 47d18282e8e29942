"""``python -m dflash`` is the ``dflash`` command."""

import sys

from dflash.cli import main

sys.exit(main())
