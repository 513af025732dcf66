"""What a running server can do, found by asking it: version, models, a tool call, reasoning, a cache hit.

Nothing of an answer is trusted: texts are cut and cleaned before they are shown, numbers must be numbers.
"""

import json
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx

LIMIT_S = 120.0
QUESTION_LIMIT_S = 400.0
"""Of one question with all its requests: a server that sends a byte now and then is not waited for."""
MAX_ANSWER_BYTES = 4 << 20
MAX_CHARS = 200
REPEATED_WORDS = 1_500
"""About 4,000 tokens of a prompt that nobody has sent before."""
TOOL = {
    "type": "function",
    "function": {
        "name": "add_numbers",
        "description": "Add two whole numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
}


# What an answer of another form than expected raises where it is read.
FORM_ERRORS = (
    *(ValueError, KeyError, TypeError, IndexError),
    *(AttributeError, RecursionError, OverflowError),
)


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was tried. `is_good` None: it says nothing for or against."""

    name: str
    is_good: bool | None
    text: str

    def __str__(self) -> str:
        mark = {True: "ok  ", False: "FAIL", None: "-   "}[self.is_good]
        return f"{mark} {self.name}: {self.text}"


def plain(value: object) -> str:
    """A text of the server as it may be shown."""
    text = re.sub(r"[^\x20-\x7e]+", " ", str(value)).strip()
    return text if len(text) <= MAX_CHARS else f"{text[:MAX_CHARS]}..."


class Probe:
    """Questions to one server. `base_url` ends with /v1."""

    def __init__(self, base_url: str, key: str | None, model: str | None, client: httpx.Client) -> None:
        self._base, self._root = base_url.rstrip("/"), base_url.rstrip("/").removesuffix("/v1")
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._client, self.model = client, model

    def findings(self) -> Iterator[Finding]:
        """Each as soon as it is known; a server that lists no models, or never ends an answer, ends it."""
        questions = {
            "version": self._version,
            "models": self._models,
            "tool call": self._tool_call,
            "reasoning": self._reasoning,
            "prefix cache": self._cache,
        }
        for name, question in questions.items():
            found = self._in_time(name, question)
            yield found or Finding(name, is_good=False, text=f"no end within {QUESTION_LIMIT_S:.0f} s")
            if found is None or (name == "models" and not found.is_good):
                return

    def _in_time(self, name: str, question: Callable[[], Finding]) -> Finding | None:
        found: list[Finding] = []
        # A thread that dies with the process: limits of the client start anew with each byte.
        asking = threading.Thread(target=lambda: found.append(self._tried(name, question)), daemon=True)
        asking.start()
        asking.join(QUESTION_LIMIT_S)
        return found[0] if found else None

    def _tried(self, name: str, question: Callable[[], Finding]) -> Finding:
        try:
            return question()
        except httpx.HTTPStatusError as error:
            said = plain(error)
            return Finding(name, is_good=False, text=f"status {error.response.status_code}: {said}")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            return Finding(name, is_good=False, text=f"no answer: {plain(error) or type(error).__name__}")
        except FORM_ERRORS as error:
            return Finding(
                name, is_good=False, text=f"an answer of another form than expected ({plain(error)})"
            )

    def _get(self, url: str) -> Any:
        return json.loads(self._answer("GET", url))

    def _answer(self, method: str, url: str, body: object = None) -> str:
        """Raises ValueError for an answer that is too long, HTTPStatusError for one with another status."""
        with self._client.stream(method, url, json=body, headers=self._headers) as answer:
            data = bytearray()
            for piece in answer.iter_bytes():
                data += piece
                if len(data) > MAX_ANSWER_BYTES:
                    raise ValueError(f"more than {MAX_ANSWER_BYTES >> 20} MB")
            text = data.decode("utf-8", "replace")
            if not answer.is_success:
                raise httpx.HTTPStatusError(text[: 2 * MAX_CHARS], request=answer.request, response=answer)
            return text

    def _version(self) -> Finding:
        for engine, path, read in _VERSIONS:
            try:
                found = read(self._get(f"{self._root}{path}"))
            except (httpx.HTTPStatusError, *FORM_ERRORS):
                continue
            return Finding("version", is_good=None, text=f"{engine} {plain(found)}")
        return Finding("version", is_good=None, text="the server does not say")

    def _models(self) -> Finding:
        entries = [entry for entry in self._get(f"{self._base}/models")["data"] if isinstance(entry, dict)]
        names = [str(entry["id"]) for entry in entries]
        if not names:
            return Finding("models", is_good=False, text="the server lists none")
        if self.model is None:
            self.model = names[0]
        elif self.model not in names:
            shown = ", ".join(map(plain, names[:5]))
            return Finding("models", is_good=False, text=f"no {self.model!r} among {shown}")
        entry = entries[names.index(self.model)]
        window = entry.get("max_model_len") or entry.get("context_length") or self._window()
        size = (
            f"a window of {window:,} tokens"
            if isinstance(window, int) and 0 < window < 1 << 40
            else "a window that it does not tell"
        )
        return Finding("models", is_good=True, text=f"{plain(self.model)} with {size}")

    def _window(self) -> int | None:
        """llama.cpp and Ollama tell it elsewhere."""
        try:
            found = self._get(f"{self._root}/props")["default_generation_settings"]["n_ctx"]
            return found if isinstance(found, int) else None
        except (httpx.HTTPError, *FORM_ERRORS):
            pass
        try:
            shown = json.loads(self._answer("POST", f"{self._root}/api/show", {"model": self.model}))
            sizes = [v for k, v in shown["model_info"].items() if k.endswith(".context_length")]
            return sizes[0] if sizes and isinstance(sizes[0], int) else None
        except (httpx.HTTPError, *FORM_ERRORS):
            return None

    def _ask(self, text: str, **more: Any) -> dict[str, Any]:
        body = {
            "model": self.model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": 512,
            **more,
        }
        found = json.loads(self._answer("POST", f"{self._base}/chat/completions", body))
        if not isinstance(found, dict):
            raise TypeError("no object")
        return found

    def _tool_call(self) -> Finding:
        message = self._ask("Use the tool to add 2 and 3.", tools=[TOOL])["choices"][0]["message"]
        calls = message.get("tool_calls") or []
        if not calls:
            said = plain(message.get("content") or "")
            hint = "its calls are text, which k3agent reads; a tool parser of the server is better"
            if "add_numbers" in said:
                return Finding("tool call", is_good=False, text=hint)
            return Finding("tool call", is_good=False, text=f"none; the model said {said[:80]!r}")
        call = calls[0]["function"]
        arguments = json.loads(call["arguments"])
        is_right = call["name"] == "add_numbers" and isinstance(arguments, dict)
        return Finding(
            "tool call", is_good=is_right, text=f"{plain(call['name'])}({plain(call['arguments'])})"
        )

    def _reasoning(self) -> Finding:
        message = self._ask("What is 17 times 23?")["choices"][0]["message"]
        for field in ("reasoning", "reasoning_content"):
            if message.get(field):
                return Finding("reasoning", is_good=True, text=f"in the field `{field}`, kept and sent back")
        if "<think>" in str(message.get("content")):
            text = "inside the text: a reasoning parser of the server would tell it apart"
            return Finding("reasoning", is_good=False, text=text)
        return Finding("reasoning", is_good=None, text="none was shown")

    def _cache(self) -> Finding:
        prompt = f"{uuid.uuid4()} " + " ".join(f"word{number % 97}" for number in range(REPEATED_WORDS))
        times, usages = [], []
        for _ in range(2):
            begun = time.monotonic()
            usages.append(self._ask(prompt, max_tokens=1)["usage"])
            times.append(time.monotonic() - begun)
        details = usages[1].get("prompt_tokens_details") or {}
        cached, total = details.get("cached_tokens"), int(usages[1]["prompt_tokens"])
        speed = f"{times[0]:.2f} s, then {times[1]:.2f} s"
        if not isinstance(cached, int):
            return Finding(
                "prefix cache", is_good=None, text=f"the server does not say how much it reused ({speed})"
            )
        if not cached:
            text = f"a repeated prompt of {total:,} tokens was read anew ({speed}){self._unit()}"
            return Finding("prefix cache", is_good=False, text=text)
        text = f"{cached:,} of {total:,} tokens of a repeated prompt reused ({speed}){self._unit()}"
        return Finding("prefix cache", is_good=True, text=text)

    def _unit(self) -> str:
        """The shortest prefix that vLLM can reuse, if it tells."""
        try:
            text = self._answer("GET", f"{self._root}/metrics")
        except (httpx.HTTPError, ValueError):
            return ""
        found = re.search(r"vllm:cache_config_info\{([^}]{0,4000})\}", text)
        sizes = re.findall(r'(?:^|,)(?:mamba_)?block_size="(\d{1,7})"', found[1]) if found else []
        if not sizes:
            return ""
        return f"; prompts below {max(map(int, sizes)):,} tokens are never reused"


_VERSIONS: tuple[tuple[str, str, Callable[[Any], object]], ...] = (
    ("vLLM", "/version", lambda said: said["version"]),
    ("SGLang", "/server_info", lambda said: said["version"]),
    ("llama.cpp", "/props", lambda said: said["build_info"]),
    ("Ollama", "/api/version", lambda said: said["version"]),
    ("k3agent", "/health", lambda said: said["version"]),
)


def probe(base_url: str, key: str | None, model: str | None) -> Iterator[Finding]:
    """Ask the server at `base_url`; blocks while it answers."""
    with httpx.Client(timeout=LIMIT_S, trust_env=False, follow_redirects=False) as client:
        yield from Probe(base_url, key, model, client).findings()
