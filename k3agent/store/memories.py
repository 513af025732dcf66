"""Facts that outlast a session: of one repository, or of the user everywhere."""

from __future__ import annotations

from dataclasses import dataclass

from k3agent.errors import StoreError
from k3agent.store.database import transaction
from k3agent.store.journal import Journal, now

# The place of what holds everywhere.
EVERYWHERE = ""
MAX_CHARS = 1000
MAX_FACTS = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """`root`: the repository that it is about, or EVERYWHERE. `by`: user or model."""

    id: int
    root: str
    text: str
    by: str
    created_at: str


class MemoryRows(Journal):
    """A base of `SessionStore`."""

    def add_memory(self, root: str, text: str, by: str, session_id: str = "") -> Memory:
        """Keep a fact; one that is known already stays as it is. Raises StoreError for none, a long one, or
        too many.
        """
        text = " ".join(str(self.mask(text)).split())
        if not text or len(text) > MAX_CHARS:
            raise StoreError(f"a fact has 1 to {MAX_CHARS} characters, this one has {len(text)}")
        known = self.memories(root)
        same = next((memory for memory in known if memory.root == root and memory.text == text), None)
        if same is not None:
            return same
        if sum(memory.root == root for memory in known) >= MAX_FACTS:
            raise StoreError(f"{MAX_FACTS} facts are kept already; remove some with `k3agent memory rm`")
        with transaction(self._db) as db:
            row = db.execute(
                "INSERT INTO memories (root, text, by, session_id, created_at)"
                " VALUES (?,?,?,?,?) RETURNING id",
                (root, text, by, session_id, now().isoformat()),
            ).fetchone()
        return self.memory(row[0])

    def memories(self, root: str | None) -> list[Memory]:
        """What holds in this repository, with what holds everywhere; None: all of them. Oldest first."""
        rows = self._all(
            "SELECT id, root, text, by, created_at FROM memories WHERE ? OR root IN (?, ?) ORDER BY id",
            (root is None, root, EVERYWHERE),
        )
        return [Memory(id=row[0], root=row[1], text=row[2], by=row[3], created_at=row[4]) for row in rows]

    def memory(self, number: int) -> Memory:
        """Raises StoreError for an unknown number."""
        found = next((memory for memory in self.memories(None) if memory.id == number), None)
        if found is None:
            raise StoreError(f"there is no memory {number}; `k3agent memory list --all` shows them")
        return found

    def change_memory(self, number: int, text: str) -> None:
        """Other words for it. Raises StoreError for an unknown number."""
        text = " ".join(str(self.mask(text)).split())
        if not text or len(text) > MAX_CHARS:
            raise StoreError(f"a fact has 1 to {MAX_CHARS} characters, this one has {len(text)}")
        self.memory(number)
        with transaction(self._db) as db:
            db.execute("UPDATE memories SET text = ?, by = 'user' WHERE id = ?", (text, number))

    def remove_memory(self, number: int) -> Memory:
        """Forget it. Raises StoreError for an unknown number."""
        memory = self.memory(number)
        with transaction(self._db) as db:
            db.execute("DELETE FROM memories WHERE id = ?", (number,))
        return memory
