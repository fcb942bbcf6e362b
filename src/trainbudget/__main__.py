"""`python -m trainbudget VERB`: the same as the command, also under torchrun."""

import sys

from trainbudget.cli import main

if __name__ == "__main__":
    sys.exit(main())
