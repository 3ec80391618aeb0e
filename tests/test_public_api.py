from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import clusterenv
import clusterenv_registry

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("package", [clusterenv, clusterenv_registry])
def test_every_public_name_exists_and_is_listed_by_dir(package: object) -> None:
    names = package.__all__  # type: ignore[attr-defined]

    assert names == sorted(names)
    assert set(names) <= set(dir(package))
    for name in names:
        assert getattr(package, name) is not None


@pytest.mark.parametrize("package", [clusterenv, clusterenv_registry])
def test_unknown_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'no_such_name'"):
        package.no_such_name  # noqa: B018  the access is what is tested


@pytest.mark.parametrize(
    ("names", "document"),
    [(clusterenv.__all__, "README.md"), (clusterenv_registry.__all__, "docs/plugins.md")],
)
def test_every_public_name_is_documented(names: list[str], document: str) -> None:
    text = (ROOT / document).read_text()

    assert [name for name in names if name not in text] == []


@pytest.mark.parametrize("package", ["clusterenv", "clusterenv_registry"])
def test_packages_say_that_they_are_typed(package: str) -> None:
    folder = Path(sys.modules[package].__file__ or "").parent

    assert (folder / "py.typed").is_file()


@pytest.mark.process
@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("clusterenv", ("numpy", "gymnasium", "torch", "zmq")),
        ("clusterenv.register_env", ("numpy", "gymnasium", "torch", "zmq")),
        ("clusterenv.cli", ("numpy", "gymnasium", "torch", "zmq")),
        ("clusterenv.env", ("torch",)),
        ("clusterenv.service", ("torch",)),
        ("clusterenv.runner_process", ("zmq",)),
    ],
)
def test_import_is_light(module: str, heavy: tuple[str, ...]) -> None:
    code = f"import sys, {module}; loaded = set({heavy}) & set(sys.modules); assert not loaded, loaded"

    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
