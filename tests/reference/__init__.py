"""Slow twins of what is done in C++ or in a clever way, written for reading. Tests compare the two."""
