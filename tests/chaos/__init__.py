"""Faults injected at random into real runs, and a checker that knows every right row."""
