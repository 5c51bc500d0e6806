"""`python -m group_models` is the command `group-models`."""

from group_models.cli import entry

if __name__ == "__main__":
    entry()
