"""Settings of the UI: chosen here, kept in the user's configuration, effective at once."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from rich.text import Text

from k3agent.config.paths import user_config
from k3agent.config.settings import IMAGES, NOTIFY, SPECS, THEMES
from k3agent.errors import K3AgentError
from k3agent.tui.safe import safe_line
from k3agent.tui.screens.dialog import ListScreen

CHOICES = {
    "ui.theme": THEMES,
    "ui.images": IMAGES,
    "ui.notify": NOTIFY,
    "ui.screen_reader": ("off", "on"),
    "permission_mode": ("default", "accept-edits", "auto", "plan"),
}


class SettingsScreen(ListScreen):
    heading = "Settings"
    hint = "Enter takes the next value and keeps it · Esc closes"

    def entries(self, words: str) -> Sequence[tuple[str, Text]]:
        palette = self.app.palette
        found: list[tuple[str, Text]] = []
        for key, choices in CHOICES.items():
            if words.lower() not in key:
                continue
            text = Text(no_wrap=True)
            text.append(f"{key:<18} ", palette.style("text"))
            now = self._value(key)
            for choice in choices:
                style = palette.style("accent", bold=True) if choice == now else palette.style("faint")
                text.append(f" {choice} ", style)
            found.append((key, text))
        return found

    def describe(self, entry: str) -> Text:
        settings = self.app.settings
        text = Text(f"{SPECS[entry].metadata['help']}\n\n", self.app.palette.style("text"))
        text.append(f"now from: {settings.origin(entry)}\n", self.app.palette.style("dim"))
        text.append(f"kept in: {user_config(self.app.options.environ)}\n", self.app.palette.style("dim"))
        text.append("Everything else: k3agent config list", self.app.palette.style("dim"))
        return text

    def _value(self, key: str) -> str:
        return str(self.app.settings.get(key) or CHOICES[key][0])

    def take(self, entry: str) -> None:
        from k3agent.config.edit import set_value  # lazy: tomlkit, only for a change

        choices = CHOICES[entry]
        now = self._value(entry)
        value = choices[(choices.index(now) + 1) % len(choices)] if now in choices else choices[0]
        path = user_config(self.app.options.environ)
        try:
            set_value(path, entry, value)
        except (K3AgentError, OSError) as error:
            self.app.notify(safe_line(str(error)), severity="error", markup=False)
            return
        origins = {**self.app.settings.origins, entry: str(path)}
        self.app.settings = dataclasses.replace(
            self.app.settings, **{entry.replace(".", "_"): value}, origins=origins
        )
        self.app.apply_settings()
        self.refill(entry)
