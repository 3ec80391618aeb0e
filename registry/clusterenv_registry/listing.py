"""What people and programs are shown of an environment in the catalogue."""

from __future__ import annotations

from clusterenv_registry.entry import Entry, SpecSource


def described(entry: Entry) -> dict[str, str | None]:
    """All that is known of an environment without building it."""
    return {
        "name": entry.name,
        "owner": entry.owner,
        "source": str(entry.source),
        "observation_space": entry.found.get("observation_space"),
        "action_space": entry.found.get("action_space"),
        "missing": _missing(entry),
    }


def line(entry: Entry) -> str:
    """The same in words, but for the name."""
    parts = [entry.owner if str(entry.source) == entry.name else f"{entry.owner}: {entry.source}"]
    if "observation_space" in entry.found:
        parts.append(f"{entry.found['observation_space']} -> {entry.found['action_space']}")
    missing = _missing(entry)
    if missing is not None:
        parts.append(f"needs: {missing}")
    return "; ".join(parts)


def _missing(entry: Entry) -> str | None:
    """The command that installs what the environment needs."""
    from clusterenv_registry.loading import install_command

    return install_command(entry.source.spec) if isinstance(entry.source, SpecSource) else None
