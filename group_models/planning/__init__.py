"""From measured sizes to a plan: pure arithmetic on columns, without Spark."""
