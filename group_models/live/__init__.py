"""Which model serves each key: the release log, the manifest, and the live set that they fold to. No Spark."""
