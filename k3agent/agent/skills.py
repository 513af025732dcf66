"""Skills: folders with a `SKILL.md` that tells how a kind of work is done. The model is told their names and
what they are for; the text comes when it asks for it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from k3agent.agent.commands import MAX_FILE_BYTES, read_bounded
from k3agent.config.frontmatter import split
from k3agent.safety.fencing import fence
from k3agent.safety.paths import is_file
from k3agent.safety.visible import reveal

NAME = "SKILL.md"
MAX_SKILLS = 200
MAX_ENTRIES = 2000
MAX_DESCRIPTION = 1024
MIN_DESCRIPTION = 40
MAX_LISTED_FILES = 50
MAX_FOLDERS = 100
HEAD = """# Skills

Texts of the user's about how a kind of work is done, by name. When one fits the work, load it with the \
tool skill before you begin, and follow it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skill:
    """`text`: what stands below the front matter, as it was when k3agent started."""

    name: str
    description: str
    text: str
    folder: Path

    @property
    def loaded(self) -> str:
        """What the model gets: the text, and what else lies in the folder."""
        files = _files_of(self.folder)
        listed = f"\n\nFiles of this skill, in {self.folder}: {', '.join(files)}" if files else ""
        return f"Skill {self.name}, from {self.folder / NAME}:\n\n{reveal(self.text)}{listed}"


def _files_of(folder: Path) -> list[str]:
    """What lies in the folder beside the text. A look at a few folders: it may be a whole repository."""
    files: list[str] = []
    for num_folders, (place, folders, names) in enumerate(os.walk(folder)):
        folders[:] = sorted(name for name in folders if not name.startswith("."))[:MAX_LISTED_FILES]
        inside = Path(place).relative_to(folder)
        files += [str(inside / name) for name in sorted(names)[: MAX_LISTED_FILES + 2] if name != NAME]
        if len(files) > MAX_LISTED_FILES or num_folders >= MAX_FOLDERS:
            return [*files[:MAX_LISTED_FILES], "and more"]
    return files


def load_skills(folders: Sequence[Path], warnings: list[str]) -> list[Skill]:
    """By name; of two with one name that of the later folder counts."""
    found: dict[str, Skill] = {}
    for folder in folders:
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            continue
        for entry in entries[:MAX_ENTRIES]:
            if not is_file(entry / NAME):
                continue
            skill = _skill(entry, warnings)
            if skill is not None:
                found[skill.name] = skill
    names = sorted(found)
    if len(names) > MAX_SKILLS:
        warnings.append(f"{len(names)} skills: only the first {MAX_SKILLS} by name are used")
    return [found[name] for name in names[:MAX_SKILLS]]


def _skill(folder: Path, warnings: list[str]) -> Skill | None:
    text = read_bounded(folder / NAME)
    if text is None:
        warnings.append(f"{folder / NAME} is not used: unreadable, or more than {MAX_FILE_BYTES} bytes")
        return None
    front, body = split(text)
    name = " ".join((front.get("name") or folder.name).split())[:64]
    description = " ".join(front.get("description", "").split())[:MAX_DESCRIPTION]
    if not description or not body:
        warnings.append(
            f"{folder / NAME} is not used: it needs a `description:` between --- lines, and a text"
        )
        return None
    return Skill(name=name, description=description, text=body, folder=folder)


def render_skills(skills: Sequence[Skill], num_chars: int) -> str:
    """The part of the system prompt that names them, in about `num_chars`; the same bytes for the same
    skills. Descriptions give way first, then names.
    """
    if not skills:
        return ""
    most = MAX_DESCRIPTION
    while most > MIN_DESCRIPTION and len(_listed(skills, most)) > num_chars:
        most = max(MIN_DESCRIPTION, most * 3 // 4)
    shown = list(skills)
    while len(shown) > 1 and len(_listed(shown, most)) > num_chars:
        shown.pop()
    left = len(skills) - len(shown)
    text = _listed(shown, most) + (f"\n- and {left} more; the tool tells their names" if left else "")
    return f"{HEAD}\n\n{fence(text, 'the skills of this session')}"


def _listed(skills: Sequence[Skill], most: int) -> str:
    return "\n".join(f"- {reveal(skill.name)}: {_cut(reveal(skill.description), most)}" for skill in skills)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
