"""`python -m dflash_decoding`."""

import sys

from .cli import main

sys.exit(main())
