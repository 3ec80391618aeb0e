"""Fuzzers that are run by command."""
