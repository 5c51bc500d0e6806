"""From rows to predictions with the live set's models: resolve, route, predict. No Spark."""
