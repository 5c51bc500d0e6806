"""The only modules that touch Spark, MLflow or files: thin, one per thing that they adapt to."""
