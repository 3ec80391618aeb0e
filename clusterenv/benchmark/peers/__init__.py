"""Adapters of other libraries for `bench throughput`, each a function `(task, shape) -> Contender`."""
