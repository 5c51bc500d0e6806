"""What a run, a plan and a manifest say to people and to MLflow."""
