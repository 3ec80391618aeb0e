"""What is said of a machine beside measurements."""

from __future__ import annotations

from clusterenv.machine import machine_facts


def test_machine_facts_name_the_processor_and_the_versions() -> None:
    facts = machine_facts()
    assert {"processor", "cores granted", "load before", "python", "clusterenv", "gymnasium"} <= facts.keys()
    assert facts["cores granted"] >= 1
    assert facts["memory bytes"] > 1 << 20
    assert all(value not in (None, "") for value in facts.values())
