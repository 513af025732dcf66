"""Kimi's own vocabulary, loaded once."""

from pathlib import Path

import pytest

from k3agent.backend.chat.tokenizer import Tokenizer

FOLDER = Path(__file__).resolve().parents[4].parent / "shared" / "fixtures" / "kimi-tokenizer"


@pytest.fixture(scope="session")
def kimi() -> Tokenizer:
    if not FOLDER.exists():
        pytest.skip("the fixtures folder is not beside the repository")
    return Tokenizer.from_dir(FOLDER)
