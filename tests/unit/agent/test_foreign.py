"""What of the configuration of servers is secret, and what a session without them costs."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
from support.agents import COMPACT, DONE, ReplayClient, options, start, step

from k3agent.agent.foreign import brief_of, secret_environ
from k3agent.agent.masking import Masker
from k3agent.events import Noticed
from k3agent.prompts.loader import load
from k3agent.types import ServerSpec


def test_only_secret_values_of_a_configuration_are_masked(tmp_path: Path) -> None:
    server = ServerSpec(
        name="srv",
        url="https://example.org",
        env={"SRV_API_KEY": "kq72mfpw91xz", "REGION": "eu-west-one"},
        headers={
            "Authorization": "Bearer zz81kdmw02pq",
            "X-Api-Key": "yy55qpwm73nd",
            "Accept-Language": "en-GB-variant",
        },
    )
    told = dataclasses.replace(options(tmp_path, ReplayClient([step(text="x")])), servers=(server,))
    masker = Masker(secret_environ(told))
    text = "kq72mfpw91xz zz81kdmw02pq yy55qpwm73nd"
    assert not any(secret in masker.mask(text) for secret in text.split())
    assert masker.mask("eu-west-one en-GB-variant") == "eu-west-one en-GB-variant"


def test_people_are_told_of_late_tools_in_a_few_words() -> None:
    text = load("mcp/late").replace("{server}", "git") + "\n\npush\nPushes."
    assert brief_of(text) == "Tools of the MCP server git are there now"
    assert brief_of("Something else (in brackets)") == ""


def test_without_servers_nothing_of_them_is_imported() -> None:
    code = (
        "import sys, os; from pathlib import Path; from k3agent.agent import session, foreign;"
        "from k3agent.config.settings import Settings;"
        "foreign.servers_of(Settings(), {'HOME': '/nowhere'}, Path('/'), Path('/nowhere'));"
        "loaded = [n for n in sys.modules if n.startswith(('k3agent.tools.mcp', 'mcp', 'acp', 'httpx'))];"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


@pytest.mark.parametrize("asks", [True, False])
async def test_the_small_model_tells_of_servers_only_where_they_were_asked_for(
    tmp_path: Path, asks: bool
) -> None:
    server = ServerSpec(name="time", command="no-such-program")
    more = {"servers": (server,), "server_warnings": (".mcp.json is not obeyed",), "asks_for_servers": asks}
    run = await start(tmp_path, [DONE], info=COMPACT, **more)
    await run.session.submit("go")
    told = [event.text for event in run.of(Noticed)]
    assert any("MCP servers are not used" in text for text in told) is asks
    assert not any("not obeyed" in text for text in told)
    await run.session.aclose()
