"""`python -m tellapart.cli`, which `torchrun` starts."""

from tellapart.cli import main

main()
