"""What the server tells of the weights that it serves."""

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
from k3agent.backend.serve import agent_facts


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ({}, None),
        ({"k3agent": {}}, {"profile": "compact", "instructions": False}),
        ({"k3agent": {"instructions": True}}, {"profile": "compact", "instructions": True}),
    ],
)
def test_weights_of_the_training_here_want_the_compact_profile(
    tmp_path: Path, config: dict, facts: dict | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert agent_facts(tmp_path) == facts
