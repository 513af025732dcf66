"""Makes the picture of the terminal UI in the README: the real app, a scripted model, real tools.

`python scripts/tui_picture.py [FILE.svg] [--theme NAME] [--size 110x44]`
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
import tempfile
import time
from pathlib import Path

from k3agent.config.settings import Settings
from k3agent.providers.base import ModelInfo, Prices
from k3agent.providers.scripted import ScriptedCall, ScriptedClient, Step
from k3agent.tui.app import K3App
from k3agent.tui.start import UiOptions

PATIENCE_S = 60.0
BUG = '''def load(path):
    """The settings in the file."""
    with open(path) as file:
        lines = file.read().split("\\n")
    return dict(line.split("=") for line in lines)
'''
TEST = """import unittest
from settings import load


class LoadTest(unittest.TestCase):
    def test_values_may_hold_an_equals_sign(self):
        with open("app.env", "w") as file:
            file.write("name=demo\\nquery=a=b\\n")
        self.assertEqual(load("app.env"), {"name": "demo", "query": "a=b"})
"""


def call(name: str, **arguments: object) -> ScriptedCall:
    return ScriptedCall(name=name, arguments=arguments)


SCRIPT = [
    Step(
        reasoning="The test fails on a value with an equals sign. Run it, then look at load().",
        calls=(
            call("todo", items=[
                {"text": "See the test fail", "status": "active"},
                {"text": "Split at the first equals sign only", "status": "pending"},
                {"text": "Run the tests again", "status": "pending"},
            ]),
            call("shell", command="python -m unittest 2>&1 | tail -6"),
        ),
    ),
    Step(
        text="`load` splits at **every** `=` and chokes on the empty last line. Two small changes mend both.",
        reasoning="Use partition and skip empty lines.",
        calls=(
            call(
                "edit", path="settings.py",
                old='        lines = file.read().split("\\n")\n'
                '    return dict(line.split("=") for line in lines)',
                new='        lines = filter(None, file.read().split("\\n"))\n'
                '    return dict(line.split("=", 1) for line in lines)',
            ),
        ),
    ),
    Step(calls=(call("todo", items=[
        {"text": "See the test fail", "status": "done"},
        {"text": "Split at the first equals sign only", "status": "done"},
        {"text": "Run the tests again", "status": "active"},
    ]), call("shell", command="python -m unittest && git commit -am 'load: values may hold ='"),)),
]  # fmt: skip


async def picture(theme: str, size: tuple[int, int]) -> str:
    """The screen at the moment at which it asks, as SVG."""
    with tempfile.TemporaryDirectory(prefix="k3agent-picture-") as folder:
        root = Path(folder)
        work = root / "demo"
        work.mkdir()
        (work / "settings.py").write_text(BUG)
        (work / "test_settings.py").write_text(TEST)
        info = ModelInfo(
            provider="moonshot", model="kimi-k3", base_url="",
            context_window=262_144, max_output_tokens=32_000,
            prices=Prices(input=1.0, cached_input=0.1, output=4.0), why="MOONSHOT_API_KEY is set",
        )  # fmt: skip
        options = UiOptions(
            cwd=work, environ=dict(os.environ, HOME=str(root)), home=root / "home", flags={},
            allow=("shell(python -m unittest:*)", "shell(tail:*)", "edit(./**)"),
        )  # fmt: skip
        app = K3App(options, Settings(ui_theme=theme))
        app.make_client = lambda: ScriptedClient(SCRIPT, info=info)
        async with app.run_test(size=size) as pilot:
            app.chat.say("The test of load() fails. Find out why and mend it.")
            deadline = time.monotonic() + PATIENCE_S
            while not app.chat.panel.is_armed:
                if time.monotonic() > deadline:
                    raise TimeoutError("the UI did not ask within a minute")
                await pilot.pause(0.1)
            await pilot.pause(0.3)
            svg = app.export_screenshot(title="k3agent").replace(str(work), "~/demo")
            await app.chat.shut_down()
    # The fonts of the reader's system will do: nothing is to be fetched for a picture.
    return re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=Path("docs/images/tui.svg"))
    parser.add_argument("--theme", default="dark")
    parser.add_argument("--size", default="110x44", metavar="COLUMNSxROWS")
    args = parser.parse_args()
    columns, rows = map(int, args.size.split("x"))
    args.file.write_text(asyncio.run(picture(args.theme, (columns, rows))), encoding="utf-8")
    print(args.file)


if __name__ == "__main__":
    main()
