"""`python -m galago`."""

from galago.cli import main

main()
