"""`python -m autotuned`: the command line, for an interpreter whose scripts are not on the path."""

from autotuned.cli import command

if __name__ == "__main__":
    command()
