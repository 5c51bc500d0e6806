"""The estimators: what a family is, the families by name, users' own objects, and models of several parts."""
