"""`python -m dllmark`: the command line, where its script is not on the path."""

from dllmark.commands.cli import main

if __name__ == "__main__":
    main()
