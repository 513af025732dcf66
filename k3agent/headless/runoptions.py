"""A headless run as the command line gives it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from k3agent.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`settings` holds what may also come from files."""

    settings: Settings
    environ: Mapping[str, str]
    home: Path
    cwd: Path
    prompt: str | None = None
    with_stdin: bool = False
    output_format: str = "text"
    input_format: str = "text"
    is_partial: bool = False
    resume_id: str | None = None
    continues_newest: bool = False
    forks: bool = False
    session_id: str | None = None
    is_ephemeral: bool = False
    images: tuple[Path, ...] = ()
    extra_dirs: tuple[Path, ...] = ()
    answer_file: Path | None = None
    early_signals: Sequence[int] = ()
    schema_file: Path | None = None
    receipt_file: Path | None = None
    goals: tuple[str, ...] = ()
    start_at: datetime | None = None

    @property
    def is_unfinished_work(self) -> bool:
        """Nothing new is asked: an earlier run is to be finished."""
        is_new = self.prompt is not None or self.with_stdin or self.input_format != "text" or self.goals
        return not is_new and (self.resume_id is not None or self.continues_newest)
