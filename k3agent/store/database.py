"""Opens the one SQLite file, and locks sessions.

WAL lets readers look while a session writes; `synchronous=FULL` makes a committed message survive a power
cut. A session's lock is an advisory lock on a file of its own: the kernel drops it when the process dies,
however it dies.
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from k3agent.errors import SessionInUseError, StoreError
from k3agent.safety.visible import clean
from k3agent.store import migrations

FILE_NAME = "k3agent.db"
LOCK_PATIENCE_S = 0.5
BUSY_TIMEOUT_S = 30.0
MAX_REASON = 200
# In a damaged file SQLite's own words may quote bytes that are no text.
FAILURES = (sqlite3.Error, UnicodeError)


def open_database(home: Path) -> sqlite3.Connection:
    """The database of the data folder `home`, made or brought up to date if need be. Files are 0600.

    Raises StoreError when the file is not a database, is newer than this program, or cannot be written.
    """
    path = home / FILE_NAME
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        _make(path)
        connection = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        connection.text_factory = _text
    except (OSError, sqlite3.Error) as error:
        raise StoreError(
            f"cannot open the session store {path}: {error}; make the folder writable, or name another one in"
            " K3AGENT_HOME"
        ) from error
    try:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA foreign_keys=ON")
        migrations.upgrade(connection, path)
    except FAILURES as error:
        connection.close()
        raise store_error("used", error, path) from error
    except StoreError:
        connection.close()
        raise
    return connection


def _make(path: Path) -> None:
    """An empty file for the owner alone: SQLite gives the -wal and -shm files the mode of the database.

    A file that is there is left alone. Closing any descriptor of it would drop all locks that this process
    holds on it through another connection; the next process would then take the log of a living writer for
    its own, and delete it. Source: sqlite.org, "How To Corrupt An SQLite Database File", section 2.2.
    """
    if not path.exists():
        with suppress(FileExistsError):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))


def find_damage(path: Path) -> str:
    """What is wrong with the database file, in words, or ''. It is read as a whole and not changed."""
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as connection:
            said = [str(row[0]) for row in connection.execute("PRAGMA quick_check(3)")]
            version = int(connection.execute("PRAGMA user_version").fetchone()[0])
            tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master")}
    except FAILURES as error:
        return f"it cannot be read as a database ({_reason(error)})"
    if said != ["ok"]:
        return f"it is damaged ({'; '.join(said)})"
    if version > migrations.VERSION:
        return f"it was written by a newer k3agent (version {version}, this one knows {migrations.VERSION})"
    if version and "messages" not in tables:
        return "it holds no sessions: another program wrote it"
    return ""


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """All or nothing. IMMEDIATE: the write lock is taken first, so that no upgrade from a read can fail."""
    try:
        connection.execute("BEGIN IMMEDIATE")
    except FAILURES as error:
        raise _write_error(connection, error) from error
    try:
        yield connection
        connection.execute("COMMIT")
    except FAILURES as error:
        _roll_back(connection)
        raise _write_error(connection, error) from error
    except BaseException:
        _roll_back(connection)
        raise


def store_error(what: str, error: Exception, path: Path) -> StoreError:
    """The store `path` cannot be `what` (read, used), with the reason and the remedy."""
    return StoreError(f"the session store {path} cannot be {what}: {_reason(error)}; {_remedy(error, path)}")


def path_of(connection: sqlite3.Connection) -> Path:
    """The file of an open database."""
    try:
        return Path(connection.execute("PRAGMA database_list").fetchone()[2])
    except FAILURES:
        return Path(FILE_NAME)


def _text(raw: bytes) -> str:
    """Bytes that are no UTF-8 come from a damaged file. Their escapes stand for them where text is only
    shown, and are no JSON, so that nothing stored as such is taken for whole.
    """
    return raw.decode("utf-8", "backslashreplace")


def _reason(error: Exception) -> str:
    return shortened("it holds bytes that are no text" if isinstance(error, UnicodeError) else str(error))


def shortened(reason: str) -> str:
    """What an error says of a damaged file, which may quote any part of it, fit for a terminal."""
    text = clean(reason)
    return text if len(text) <= MAX_REASON else f"{text[:MAX_REASON]}…"


def _remedy(error: Exception, path: Path) -> str:
    name = getattr(error, "sqlite_errorname", "")
    if name == "SQLITE_FULL":
        return f"free some space for {path.parent}, or name another folder in K3AGENT_HOME"
    if name.startswith("SQLITE_IOERR"):
        return "the disk did not take it: look at the log of the system, then run `k3agent doctor`"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return f"make the files in {path.parent} writable, or name another folder in K3AGENT_HOME"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return "another program holds it: end that one, or try again"
    return (
        "move it away to start a new one, nothing deletes it; `sqlite3 FILE .recover` saves what is left of a"
        " damaged one"
    )


def _write_error(connection: sqlite3.Connection, error: Exception) -> StoreError:
    return store_error("written", error, path_of(connection))


def _roll_back(connection: sqlite3.Connection) -> None:
    if connection.in_transaction:
        connection.execute("ROLLBACK")


def _lock(fd: int) -> None:
    """Take the lock, or raise OSError. A child that a killed process was just forking holds it for a moment
    longer, until it runs its own program.
    """
    end = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            return fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > end:
                raise
            time.sleep(0.02)


class SessionLock:
    """Held by the one process that may write to a session. Taken when built; freed by `release` or by
    death.
    """

    def __init__(self, home: Path, session_id: str) -> None:
        folder = home / "locks"
        self.path = folder / f"{session_id}.lock"
        self._fd: int | None = None
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
        except OSError as error:
            raise StoreError(f"cannot lock session {session_id}: {error}; look at {folder}") from error
        try:
            _lock(fd)
        except OSError as error:
            holder = os.pread(fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(fd)
            raise SessionInUseError(session_id, holder) from error
        os.ftruncate(fd, 0)
        os.pwrite(fd, str(os.getpid()).encode(), 0)
        self._fd = fd

    def release(self) -> None:
        """Idempotent. The file stays: removing it would let two processes lock two different files."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
