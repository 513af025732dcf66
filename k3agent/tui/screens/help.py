"""All keys and commands, with the user's own keys in their places."""

from __future__ import annotations

from rich.text import Text

from k3agent.tui.commands import COMMANDS
from k3agent.tui.keymap import GROUPS, keys_of
from k3agent.tui.screens.dialog import TextScreen


class HelpScreen(TextScreen):
    def __init__(self) -> None:
        super().__init__("Keys and commands", self._text)

    def _text(self) -> Text:
        palette = self.app.palette
        head, key, words = (palette.style("accent", bold=True), palette.style("warn"), palette.style("text"))
        text = Text()
        for title, keys in GROUPS.items():
            text.append(f"{title}\n", head)
            for entry in keys:
                text.append(f"  {keys_of(entry, self.app.own_keys):<26} ", key)
                text.append(f"{entry.help}\n", words)
            text.append("\n")
        text.append("Commands\n", head)
        for name, command in COMMANDS.items():
            text.append(f"  {'/' + name:<26} ", key)
            text.append(f"{command.help}{f'  ({command.takes})' if command.takes else ''}\n", words)
        text.append("\nIn the prompt\n", head)
        for sign, what in (
            ("@", "a file of the workspace, ignore files respected"),
            ("!", "a shell command of your own; the model does not see it"),
            ("@picture.png", "sends the image along"),
            ("\\ and Enter", "a new line, on terminals without Shift+Enter"),
        ):
            text.append(f"  {sign:<26} ", key)
            text.append(f"{what}\n", words)
        text.append("\nWith the mouse\n", head)
        for sign, what in (
            ("click on a block", "unfolds or folds it"),
            ("mark, then Ctrl+C", "copies what is marked; Shift and mark: as the terminal does it"),
            ("click on a link", "opens it, where the terminal can; often with Ctrl or Shift"),
        ):
            text.append(f"  {sign:<26} ", key)
            text.append(f"{what}\n", words)
        text.append(f"\nYour own keys: {self.app.keymap_path}\n", palette.style("dim"))
        return text
