"""Promises of DESIGN on losses, hostile peers and broken environments."""
