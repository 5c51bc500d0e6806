"""A training run: prepared, planned, started, its waves, its manifest, and how it goes on after a death."""
