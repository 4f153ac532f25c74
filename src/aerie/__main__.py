"""`python -m aerie`: the command line on machines where the package is not installed."""

from aerie.cli.main import main

if __name__ == "__main__":
    main()
