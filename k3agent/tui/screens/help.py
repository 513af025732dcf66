"""All keys and commands, with the user's own keys in their places."""

from __future__ import annotations

from collections.abc import Iterable

from rich.table import Table
from rich.text import Text

from k3agent.tui.commands import COMMANDS
from k3agent.tui.keymap import GROUPS, MODE_HELP, keys_of
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import TextScreen

IN_PROMPT = (
    ("@", "a file of the workspace, ignore files respected"),
    ("@picture.png", "sends the image along"),
    ("!", "a shell command of your own; the model does not see it"),
    ("\\ and Enter", "a new line, on terminals without Shift+Enter"),
)
WITH_MOUSE = (
    ("click on a block", "unfolds or folds it"),
    ("mark, then Ctrl+C", "copies what is marked; with Shift the terminal marks"),
    ("click on a link", "opens it, where the terminal can; often with Ctrl or Shift"),
)


class HelpScreen(TextScreen):
    def __init__(self) -> None:
        super().__init__("Keys and commands", self._table)

    def _table(self) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column()
        for title, keys in GROUPS.items():
            self._add(table, title, ((keys_of(key, self.app.own_keys), key.help) for key in keys))
        commands = (
            (f"/{name}", f"{command.help}{f'  ({command.takes})' if command.takes else ''}")
            for name, command in COMMANDS.items()
        )
        self._add(table, "Commands", commands)
        own = None if self.app.driver is None else self.app.driver.own
        if own is not None and own.commands:
            rows = [(f"/{name}", safe_line(command.description)) for name, command in own.commands.items()]
            self._add(table, "Commands from files", rows)
        self._add(table, "Permission modes (Shift+Tab)", MODE_HELP.items())
        self._add(table, "In the prompt", IN_PROMPT)
        self._add(table, "With the mouse", WITH_MOUSE)
        self._add(table, "Your own keys", (("keys.toml", str(self.app.keymap_path)),))
        return table

    def _add(self, table: Table, title: str, rows: Iterable[tuple[str, str]]) -> None:
        palette = self.app.palette
        if table.row_count:
            table.add_row("", "")
        table.add_row(Text(title, palette.style("accent", bold=True)), "")
        for key, what in rows:
            table.add_row(Text(f"  {key}", palette.style("warn")), Text(what, palette.style("text")))
