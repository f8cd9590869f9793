"""`python -m gangsaw` is the `gangsaw` program."""

from gangsaw.cli.main import main

main()
