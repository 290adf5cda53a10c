"""`python -m coda_lang.cli` is `coda-run`."""

import sys

from coda_lang.cli import main

sys.exit(main())
