"""A .gitignore for a language: the usual lines, where there is none yet."""

from k3agent.backend.training.episodes import checks
from k3agent.backend.training.episodes.editing import failed
from k3agent.backend.training.episodes.policy import WINDOW, quoted, read_view
from k3agent.backend.training.episodes.registry import Setting, goal
from k3agent.backend.training.episodes.session import Check, Plan, Report, Session

USUAL: dict[str, tuple[str, ...]] = {
    "python": ("__pycache__/", "*.pyc", ".venv/", "*.egg-info/", "dist/", ".pytest_cache/"),
    "node": ("node_modules/", "dist/", "coverage/", "*.log", ".env"),
    "go": ("bin/", "*.exe", "*.test", "*.out"),
    "rust": ("target/", "*.pdb"),
    "java": ("target/", "build/", "*.class", "*.jar", "*.log"),
    "c": ("build/", "*.o", "*.a", "*.so", "*.out"),
}
SAID: dict[str, tuple[str, ...]] = {
    "python": ("Python", "python", "Python", "python", "py"),
    "node": ("node", "Node", "Node.js", "node.js", "JavaScript", "javascript", "npm", "TypeScript"),
    "go": ("Go", "go", "golang", "Golang"),
    "rust": ("Rust", "rust", "cargo"),
    "java": ("Java", "java", "Maven"),
    "c": ("C", "C++", "cpp", "c++"),
}
"""How people call what the lines are for."""
THERE_SHARE = 0.2
"""Of the projects, those that have a .gitignore."""


def _play(session: Session, said: str) -> tuple[str, str]:
    """Look whether there is one, write it, name the lines."""
    result = session.call("read", f"A .gitignore for {said}. Is there one?", path=".gitignore", limit=WINDOW)
    if not result.is_error:
        rows = [text for _, text in read_view(result, ".gitignore").lines if text.strip()]
        raise Report(
            "There is one.",
            f"There is a `.gitignore` already: {quoted(rows)}. Nothing was changed. Which lines shall I add?",
        )
    kind = next(kind for kind, names in SAID.items() if said in names)
    text = "\n".join(USUAL[kind]) + "\n"
    made = session.call("write", "None. Write the usual lines.", path=".gitignore", content=text)
    if made.is_error:
        raise failed(".gitignore", made, "create")
    return "Created.", f"Created `.gitignore` for {said}: {quoted(list(USUAL[kind]), 8)}."


@goal("gitignore_for", "create", 1.2, level=1)
def gitignore_for(ctx: Setting) -> Plan | None:
    """Create a .gitignore with the usual lines of a language."""
    kind = ctx.rng.choice(("python", "python", "node", "node", "go", "rust", "java", "c"))
    said = ctx.rng.choice(SAID[kind])
    is_there = ctx.rng.random() < THERE_SHARE
    old = "\n".join(ctx.rng.sample(("*.log", "build/", ".env", "*.tmp", ".idea/", ".DS_Store"), 2)) + "\n"

    def prepare(files: dict[str, str]) -> None:
        files.pop(".gitignore", None)
        if is_there:
            files[".gitignore"] = old

    check: Check = checks.writes({".gitignore": "\n".join(USUAL[kind])})
    if is_there:
        check = checks.declines(*old.split())
    slots = {"language": said}
    return Plan(
        "gitignore_for", "create", slots, lambda s: _play(s, said), check, prepare=prepare, alone=True
    )
