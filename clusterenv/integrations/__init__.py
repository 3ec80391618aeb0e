"""Adapters that give libraries with an interface of their own what they expect of environments."""
