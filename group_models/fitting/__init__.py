"""One unit from its rows to its outcomes: plain pandas and numpy, the only code that runs users' code."""
