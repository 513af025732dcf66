"""What the user and a trusted repository add to the agent: hooks, commands and skills, read at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from k3agent.agent.commands import CustomCommand, load_commands
from k3agent.agent.hooks import with_scripts
from k3agent.agent.skills import Skill, load_skills
from k3agent.config.hookfiles import FILE_NAME, Hook, load_hooks
from k3agent.config.places import find_places


@dataclass(frozen=True, slots=True, kw_only=True)
class Extensions:
    """`project`: the workspace that they were read for; `warnings`: what was found and does not count, in
    words for people.
    """

    project: Path | None = None
    hooks: tuple[Hook, ...] = ()
    commands: Mapping[str, CustomCommand] = field(default_factory=dict)
    skills: tuple[Skill, ...] = ()
    warnings: tuple[str, ...] = ()


NO_EXTENSIONS = Extensions()


def load_extensions(
    cwd: Path, environ: Mapping[str, str], home: Path, *, has_hooks: bool = True
) -> Extensions:
    """Raises ConfigError for a hooks.json that cannot be understood. `home`: the data folder."""
    cwd = cwd.resolve()
    places = find_places(cwd, environ, home)
    # Hooks of other agents lie inside their settings, which are not k3agent's.
    files = [path for path in places.find(FILE_NAME) if path.parent.name != ".claude"] if has_hooks else []
    hooks, warnings = load_hooks(files)
    commands = load_commands(places.find("commands"), warnings)
    skills = load_skills(places.find("skills"), warnings)
    if places.untrusted:
        text = f"{', '.join(map(str, places.untrusted))}: not used."
        warnings.insert(0, f"{text} Look at it, then trust it with `k3agent config trust`.")
    return Extensions(
        project=cwd,
        hooks=tuple(with_scripts(hook, cwd, environ.get("HOME", "")) for hook in hooks),
        commands=commands,
        skills=tuple(skills),
        warnings=tuple(warnings),
    )
