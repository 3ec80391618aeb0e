from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from clusterenv.launcher_config import RESERVED_DIRECTIVES, SlurmConfig

PAGE = (Path(__file__).parents[2] / "docs" / "slurm.md").read_text()
TABLE = PAGE[PAGE.index("## Options") : PAGE.index("## Modes")]


@pytest.mark.parametrize("option", [item.name for item in fields(SlurmConfig)])
def test_every_option_is_in_the_table(option: str) -> None:
    assert f"`{option}`" in TABLE


@pytest.mark.parametrize("name", SlurmConfig(partition="p", qos="q", setup="x").asks_for_a_job)
def test_rule_of_auto_names_what_asks_for_a_job(name: str) -> None:
    rule = PAGE[PAGE.index("* `auto`: steps if") : PAGE.index("**Where the head runs.**")]
    assert name.replace("_", " ") in rule


def test_reserved_directives_are_options_of_sbatch_that_jobs_cannot_do_without() -> None:
    assert {"output", "export", "array"} <= RESERVED_DIRECTIVES
