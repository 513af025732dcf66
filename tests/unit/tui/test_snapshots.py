"""The look of a conversation as plain text at three widths. `K3AGENT_WRITE_SNAPSHOTS=1` writes them anew."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from k3agent.tui.theme import PALETTES
from k3agent.tui.widgets.answer import AnswerBlock
from k3agent.tui.widgets.approval import ApprovalPanel, Request
from k3agent.tui.widgets.block import Block, strip_of
from k3agent.tui.widgets.message import DraftBlock, NoticeBlock, TurnEndBlock, UserBlock, WelcomeBlock
from k3agent.tui.widgets.reasoning import ReasoningBlock
from k3agent.tui.widgets.toolcall import ToolBlock
from k3agent.types import ImagePart

FOLDER = Path(__file__).with_name("snapshots")
IMAGE = ImagePart(mime="image/png", data=bytes(48_200))
DARK = PALETTES["dark"]
ANSWER = """## Änderungen 変更点

Der Lader liest **zuerst** die Datei, dann die Umgebung; siehe `load_settings`. 設定は後のものが優先されます。
عربي وعبري: שלום עולם. Family: 👩‍👩‍👧‍👦, flag: 🇩🇪, accent: e\u0301.

1. A first step with a rather long line that has to be wrapped somewhere on narrow screens
2. A second one
   - with an inner point

```python
def load(path: str) -> dict[str, int]:
    return {}  # コメント
```

| name | 意味 |
|---|---|
| `max_turns` | model calls of one run |

> Quoted words.

See [the docs](https://example.org/docs).
"""
PREVIEW = (
    "@@ line 98 @@\n y = 0\n-x = 1\n+x = 2  # 変更\n+z = 3\n end = 1\n@@ line 120 @@\n-last = 1\n+last = 2"
)
DIFF = """Edited loader.py (1 replacement).
@@ line 41 @@
     first = 1
-    old = '古い'
+    new = '新しい'
     last = 2"""


def tool(
    name: str, summary: str, state: str, output: str, seconds: float = 0.0, **arguments: object
) -> ToolBlock:
    block = ToolBlock("c", name, json.dumps(arguments), summary)
    block.end(state, output, seconds)
    return block


def conversation() -> list[Block]:
    numbers = "\n".join(f"tests/test_{number}.py ...." for number in range(20))
    return [
        WelcomeBlock([("", "k3agent"), ("model", "kimi-k3 from moonshot: MOONSHOT_API_KEY is set")]),
        UserBlock("Why is the loader slow? 読み込みが遅い。", images=[IMAGE], draws_images=False),
        ReasoningBlock("Look at the loader first.", seconds=12),
        tool("shell", "$ pytest -q", "done", f"{numbers}\n20 passed\n[exit code 0]", 3.4),
        tool("read", "read loader.py", "done", "1: x\n2: y"),
        tool("edit", "edit loader.py", "done", DIFF, path="loader.py"),
        tool("shell", "$ rm -rf build", "denied", "permission denied: the user said deny", 0.2),
        tool("shell", "$ make", "failed", "make: *** No targets.  Stop.\n[exit code 2]", 0.3),
        AnswerBlock(ANSWER),
        NoticeBlock("context compacted (size): 180k to 24.0k tokens"),
        DraftBlock("half an answer"),
        TurnEndBlock("done · 3 steps · 12.3k in (92 % cached) · 1.2k out · $0.0123 · 14 s"),
        TurnEndBlock("provider · 1 s", "the key is wrong: set MOONSHOT_API_KEY", "error"),
    ]


def check(name: str, shown: str) -> None:
    path = FOLDER / f"{name}.txt"
    if os.environ.get("K3AGENT_WRITE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_a_conversation(width: int) -> None:
    strips = [strip for block in conversation() for strip in block.lines(width, DARK)]
    assert all(strip.cell_length == width for strip in strips)
    check(f"conversation-{width}", "\n".join(strip.text.rstrip() for strip in strips) + "\n")


@pytest.mark.parametrize("width", [40, 80, 200])
def test_questions(width: int) -> None:
    panel = ApprovalPanel(DARK)
    panel.is_armed = True
    edit = {"path": "a.py", "old": "x = 1", "new": "x = 2  # 変更"}
    shell = json.dumps({"command": "cd src &&\nmake -j4"})
    requests = [
        Request("1", "shell", "$ make", "`make` needs approval", shell, ("shell(make:*)",)),
        Request("2", "edit", "edit a.py", "it would write a.py", json.dumps(edit), preview=PREVIEW),
        Request("3", "ask", "Which colour? 何色？", "red\nblue"),
        Request("4", "plan", "1. look", ""),
    ]
    rows = []
    for request in requests:
        scrolls, stays = panel.rows(request, width)
        rows += [*scrolls, *stays, []]
    strips = [strip_of(row, width, DARK.style("text")) for row in rows]
    check(f"questions-{width}", "\n".join(strip.text.rstrip() for strip in strips) + "\n")
