"""A run as one HTML page that a person would rather read than a table: no network, everything in one file."""
