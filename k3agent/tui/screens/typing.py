"""The part of the chat screen around the prompt: completion, commands, shell mode, images, the editor."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from textual import work

from k3agent.agent.commands import called_name
from k3agent.errors import K3AgentError, did_you_mean
from k3agent.safety.paths import is_file
from k3agent.tui.commands import ALIASES, COMMANDS, Command, command_candidates, meant_by
from k3agent.tui.driver import image_part, shell_environ
from k3agent.tui.screens.answers import AnsweringChat
from k3agent.tui.widgets.completion import Candidate, CompletionList
from k3agent.tui.widgets.message import UserBlock
from k3agent.tui.widgets.prompt import Prompt
from k3agent.tui.widgets.toolcall import ToolBlock

if TYPE_CHECKING:
    from k3agent.agent.commands import CustomCommand

MAX_SHELL_BYTES = 200_000
MENTION = re.compile(r'@(?:"([^"\n]+)"|([^\s"]+))')
IMAGE = re.compile(r"\.(png|jpe?g|gif|webp|bmp)$", re.IGNORECASE)


class TypingChat(AnsweringChat):
    """`run_command` is the keys' part: most commands are actions that have a key, too."""

    def __init__(self) -> None:
        super().__init__()
        self._images: list[Path] = []
        #: the word that the completion list is for
        self._offered_for = ""
        self.shell_process: asyncio.subprocess.Process | None = None

    def run_command(self, command: Command, rest: str) -> None:
        raise NotImplementedError

    def on_prompt_submitted(self, event: Prompt.Submitted) -> None:
        self.completion.close()
        text = event.text
        if self.take_denial(text.strip()):
            return
        question = self.question
        if question is not None and self.panel.is_armed:
            self.reply(question, text)
            return
        if text.startswith("!") and text[1:].strip():
            self._shell(text[1:].strip())
            return
        if text.startswith("/"):
            name = re.split(r"\s", text[1:], maxsplit=1)[0]
            rest = text[1 + len(name) :].strip()
            meant = meant_by(name, self._custom, is_exact=bool(rest))
            if len(meant) == 1 and meant[0] in COMMANDS:
                self.run_command(COMMANDS[meant[0]], rest)
                return
            if len(meant) == 1 and meant[0] != name:
                text = f"/{meant[0]}"
            elif not meant and called_name(text):
                near = did_you_mean(f"/{name}", [f"/{one}" for one in (*COMMANDS, *ALIASES, *self._custom)])
                self.notice(f"unknown command /{name}.{near} Type / to see all.", "warning")
                return
            elif len(meant) > 1:
                self.notice(f"/{name} may be {', '.join(f'/{one}' for one in meant)}", "warning")
                return
        self.say(text, is_steer=event.is_steer)

    def say(self, text: str, *, is_steer: bool = False) -> None:
        """A prompt of the user: now, into the running turn, or after it."""
        try:
            images = [image_part(path) for path in (*self.take_images(), *self._named_images(text))]
        except (OSError, K3AgentError) as error:
            self.notice(str(error), "error")
            return
        self.transcript.to_end()
        if is_steer and not images and self.driver.steer(text):
            waiting = UserBlock(text)
            self.presenter.waiting.append(waiting)
            self.transcript.add(waiting)
            self.presenter.flush()
            return
        self.driver.submit(text, images)
        self.show_queue()

    def _named_images(self, text: str) -> list[Path]:
        """Image files named after `@`, or alone in the prompt (a file dropped on the terminal)."""
        # What ends a sentence is no part of the name.
        names = [hit[1] or hit[2].rstrip(".,;:!?)") for hit in MENTION.finditer(text)]
        alone = text.strip().strip("'\"").removeprefix("file://")
        if "\n" not in alone and alone.startswith(("/", "~")):
            names.append(alone)
        paths = [self.app.options.cwd / Path(name).expanduser() for name in names if IMAGE.search(name)]
        return [path for path in dict.fromkeys(paths) if is_file(path)]

    def add_image(self, path: Path) -> None:
        self._images = [*self._images, path]
        self.notice(f"{path.name} goes with the next prompt")

    def take_images(self) -> list[Path]:
        """Images that belong to the prompt: from the command line, once."""
        images, self._images = list(self._images), []
        return images

    # --- completion ---

    @property
    def _custom(self) -> Mapping[str, CustomCommand]:
        """Commands from files; none while another process runs the session."""
        return {} if self.driver.own is None else self.driver.own.commands

    def take_key(self, key: str) -> bool:
        """Keys of the open completion list."""
        if not self.completion.is_shown or not self._is_list_fresh():
            return False
        match key:
            case "up" | "ctrl+p":
                self.completion.move(-1)
            case "down" | "ctrl+n":
                self.completion.move(1)
            case "escape":
                self.completion.close()
            case "enter" | "tab":
                return self._take_candidate(key)
            case _:
                return False
        return True

    def _is_list_fresh(self) -> bool:
        """Whether the list is for what is typed. Keys can be faster than the list: what was found for an
        earlier word must never be taken for a later one.
        """
        word = self.prompt.current_word()
        if word != self._offered_for:
            self._offer(word, command_candidates(word[1:], self._custom) if word.startswith("/") else [])
        return self.completion.is_shown

    def _offer(self, word: str, candidates: list[Candidate]) -> None:
        self._offered_for = word
        self.completion.offer(candidates)

    def _take_candidate(self, key: str) -> bool:
        candidate, is_picked = self.completion.current, self.completion.is_picked
        self.completion.close()
        if candidate is None:
            return False
        # Sent as it is written: what only the list puts first, say for words in its help, never runs unasked.
        if key == "enter" and candidate.value.startswith("/") and not is_picked:
            return False
        self.prompt.complete(candidate.value)
        return not (key == "enter" and candidate.value.startswith("/"))

    def on_completion_list_chosen(self, event: CompletionList.Chosen) -> None:
        self.completion.close()
        self.prompt.complete(event.candidate.value)
        self.prompt.focus()

    def on_prompt_completing(self, event: Prompt.Completing) -> None:
        word = event.word
        if word != self.prompt.current_word():
            # Typed on since; the newer word has a message of its own.
            return
        if word.startswith("/"):
            if word == self._offered_for and self.completion.is_shown:
                # A key was faster than this message; what it picked stays.
                return
            self._offer(word, command_candidates(word[1:], self._custom))
        elif word.startswith("@"):
            self._find_files(word[1:])
        else:
            self.completion.close()

    @work(exclusive=True, group="files")
    async def _find_files(self, word: str) -> None:
        """The newest word wins: an older search is given up."""
        index = self.index
        if index.num_files or not index.is_stale:
            self._offer(f"@{word}", await asyncio.to_thread(index.find, word))
        if index.is_stale:
            await asyncio.to_thread(index.refresh)
            self._offer(f"@{word}", await asyncio.to_thread(index.find, word))

    # --- shell mode ---

    @work(group="shell")
    async def _shell(self, command: str) -> None:
        """A command of the user's own: run here, shown here; the model gets nothing of it."""
        block = ToolBlock("", "shell", summary=f"! {command}")
        block.start()
        self.presenter.add(block)
        self.transcript.to_end()
        started = time.monotonic()
        process = await asyncio.create_subprocess_exec(
            "bash", "-c", command, cwd=self.app.options.cwd, env=shell_environ(self.app.options),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        self.shell_process = process
        assert process.stdout is not None
        output = b""
        while chunk := await process.stdout.read(8192):
            output = (output + chunk)[-MAX_SHELL_BYTES:]
            block.output = output.decode("utf-8", "replace")
            self.presenter.touch(block)
        code = await process.wait()
        self.shell_process = None
        text = output.decode("utf-8", "replace") + (f"\n[exit code {code}]" if code else "")
        block.end("failed" if code else "done", text or "(no output)", time.monotonic() - started)
        self.presenter.touch(block)

    def stop_shell(self) -> bool:
        """End the user's own command; False when none runs."""
        process = self.shell_process
        if process is None or process.returncode is not None:
            return False
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 15)
        return True

    async def end_shell(self) -> None:
        """The app ends: so does the user's own command, with all that it has started."""
        process = self.shell_process
        if process is not None and process.returncode is None:
            from k3agent.tools.support.processes import end_session  # lazy: only when one runs

            await end_session(process.pid)

    # --- the editor ---

    def on_prompt_editor_asked(self) -> None:
        self.edit_in_editor()

    def edit_in_editor(self) -> None:
        """The prompt in $VISUAL or $EDITOR; the screen is the editor's until it ends."""
        from textual.app import SuspendNotSupported

        from k3agent.tui.app import editor_of

        prompt = self.prompt
        handle, name = tempfile.mkstemp(suffix=".md", prefix="k3agent-prompt-")
        path = Path(name)
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(prompt.pastes.unfold(prompt.text))
            argv = [*shlex.split(editor_of(dict(self.app.options.environ))), name]
            with self.app.suspend():
                subprocess.run(argv, cwd=self.app.options.cwd, check=False)
            text = path.read_text(encoding="utf-8", errors="replace").rstrip("\n")
        except (OSError, ValueError, SuspendNotSupported) as error:
            self.notice(f"the editor cannot be started: {error}. Set $EDITOR.", "error")
            return
        finally:
            path.unlink(missing_ok=True)
        prompt.clear_all()
        prompt.text = text
        prompt.move_cursor(prompt.document.end)
        self.app.refresh()
