"""The oracle's answers in other languages: sentence by sentence, what it names stays as it is."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from k3agent.backend.training.episodes.session import Check, Outcome, Plan, Report, Session

LANGUAGES = ("german", "chinese")
CODE = r"(?:``.+?``|`[^`\n]+`)"
PLACES = {
    **dict.fromkeys("abcdeg", rf"{CODE}(?:(?:, | and ){CODE})*(?: and \d+ more)?"),
    **dict.fromkeys("nm", r"\d+"),
    **dict.fromkeys("qr", r"\"[^\n]*?\""),
    "s": r"[^\n]+?",
    "t": r"[^\n]+",
    "l": r"(?:\n- .*)+(?:\nand \d+ more.*)?",
    "f": r"\n```(?:diff)?\n.*\n```",
    "w": r"[\w.*]+",
}
"""What a place in a sentence may hold."""
STOPS = r"(?=$| (?:It|Its|There|The|Nothing|Similar|Which|Fixed|All) )"
"""What follows free words: the end, or one of the oracle's own sentences."""
HINTS = {
    "not": r"\b(?:nicht|kein\w*|nichts|nirgends)\b|没有|不|无法|别处",
    "already": r"\b(?:schon|bereits)\b|已经",
    "files": r"\bDateien\b|文件",
    "new": r"\bneu\b|新文件",
    "clean": r"\bsauber\b|干净",
    "pass": r"\bbestehen\b|\bbestanden\b|通过",
    "fail": r"\bfehl\b|\bfehlgeschlagen\b|失败",
    "may not": r"\bdarf\b.*\b(?:nicht|keine)\b|不能",
    "could not run the tests": r"konnte die Tests nicht|无法运行测试",
    "could not": r"\bkonnte\b.*\bnicht\b|无法",
    "?": r"？",
}
"""What checkers look for in English answers, and the same in the others."""
MARKS = {
    r" \(line (\d+)\)$": {"german": r" (Zeile \1)", "chinese": r"（第 \1 行）"},
    r" \(new\)$": {"german": " (neu)", "chinese": "（新文件）"},
    r" \(current\)$": {"german": " (aktuell)", "chinese": "（当前）"},
}
"""What may stand behind an entry of a list."""
SPOKEN = {
    "german": re.compile(
        r"\b(?:der|die|das|ist|sind|es|gibt|in|im|an|auf|wurde|steht|heißt|Zeile|Dateien?|nicht|liegt|liegen"
        r"|alle|behoben|ich|was|hallo|hier|definiert|gern)\b",
        re.IGNORECASE,
    ),
    "chinese": re.compile(r"[\u4e00-\u9fff]|：\n"),
}


@cache
def _rules() -> tuple[tuple[re.Pattern[str], dict[str, str]], ...]:
    """(pattern of the English sentence, the others by language); longer sentences first."""
    text = (Path(__file__).parent / "answers.txt").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#"))
    found: list[tuple[str, dict[str, str]]] = []
    for block in lines.strip().split("\n\n"):
        english, *others = block.strip().split("\n")
        found.append((english, dict(zip(LANGUAGES, others, strict=True))))
    found.sort(key=lambda rule: -len(rule[0]))
    return tuple((re.compile(_pattern(english), re.DOTALL), others) for english, others in found)


def _pattern(english: str) -> str:
    parts = re.split(r"\{(\w)\}", english)
    texts = [
        re.escape(part) if at % 2 == 0 else f"(?P<{part}>{PLACES[part]})" for at, part in enumerate(parts)
    ]
    return "".join(texts) + (STOPS if english.endswith("{s}") else "")


def translated(answer: str, language: str) -> str:
    """An answer in the language; '' where it has a sentence that is not known."""
    out: list[str] = []
    rest = answer.strip()
    while rest:
        found = next(
            ((match, others) for pattern, others in _rules() if (match := _whole(pattern, rest))), None
        )
        if found is None:
            return ""
        match, others = found
        names = {key: _joined(value, language) for key, value in match.groupdict().items()}
        out.append(re.sub(r"\{(\w)\}", lambda place, known=names: known[place[1]], others[language]))
        gap = rest[match.end() : match.end() + 1]
        rest = rest[match.end() :].lstrip()
        is_joined = not rest or (language == "chinese" and not out[-1][-1:].isascii())
        out.append("\n" if gap == "\n" else "" if is_joined else " ")
    return "".join(out).strip()


def _whole(pattern: re.Pattern[str], text: str) -> re.Match[str] | None:
    """The sentence at the start of a text, if the text ends or goes on with another one behind it."""
    match = pattern.match(text)
    return match if match and (match.end() == len(text) or text[match.end()] in " \n") else None


def _joined(names: str, language: str) -> str:
    """A list of names with the language's words between them."""
    more, both = {"german": (r"und \1 weitere", "und"), "chinese": (r"等共 \1 个以上", "和")}[language]
    if names.startswith("\n- "):
        for pattern, others in MARKS.items():
            names = re.sub(pattern, others[language], names, flags=re.MULTILINE)
        return names
    if not names.startswith("`"):
        return names
    names = re.sub(r"\band (\d+) more$", more, names)
    return re.sub(r"` and `", f"` {both} `", names)


def hinted(outcome: Outcome) -> Outcome:
    """The outcome with the English words that checkers look for behind the answer."""
    words = [word for word, pattern in HINTS.items() if re.search(pattern, outcome.answer, re.IGNORECASE)]
    return replace(outcome, answer=" ".join([outcome.answer, *words]))


def in_language(plan: Plan, language: str, family: str, prompt: str) -> Plan:
    """The same task asked for and answered in another language; thoughts stay English."""

    def play(session: Session) -> tuple[str, str]:
        try:
            think, answer = plan.play(session)
        except Report as report:
            think, answer = report.think, report.answer
        whole = translated(" ".join([*session.notes, answer]), language)
        session.notes.clear()
        return think, whole

    return replace(
        plan, family=family, prompt=prompt, play=play, check=spoken(plan.check, language), subject=None
    )


def spoken(check: Check, language: str) -> Check:
    """The check, and that the answer is in the language."""

    def both(outcome: Outcome) -> str | None:
        if not SPOKEN[language].search(re.sub(r"`[^`]*`", "", outcome.answer)):
            return f"the answer is not {language}"
        return check(hinted(outcome))

    return both
