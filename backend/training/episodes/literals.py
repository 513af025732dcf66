"""Values as programs and settings have them: versions, dates, paths, addresses, odd numbers, tuples."""

import random
import re
from collections.abc import Callable

from k3agent.backend.training.episodes.words import Words

Maker = Callable[[random.Random, Words], str]


def version(rng: random.Random, words: Words) -> str:
    """A version: two to four numbers, with a prefix or a suffix now and then."""
    number = rng.randint
    plain = f"{number(0, 12)}.{number(0, 30)}.{number(0, 20)}"
    return rng.choice(
        (
            plain,
            plain,
            f"{number(0, 9)}.{number(0, 9)}.0",
            f"{number(0, 4)}.{number(0, 20)}",
            f"v{number(1, 9)}.{number(0, 9)}",
            f"v{plain}",
            f"{number(1, 9)}.0.0-{rng.choice(('rc', 'beta', 'alpha'))}.{number(1, 5)}",
            f"{plain}{rng.choice(('rc1', 'b2', '.dev0', '.post1', '-SNAPSHOT', '+build.7'))}",
            f"20{number(20, 29)}.{number(1, 12)}.{number(0, 9)}",
            f"{plain}.{number(0, 99)}",
        )
    )


def date(rng: random.Random, words: Words) -> str:
    """A day or a time, in one of the usual forms."""
    year, month, day = rng.randint(1999, 2032), rng.randint(1, 12), rng.randint(1, 28)
    return rng.choice(
        (
            f"{year}-{month:02}-{day:02}",
            f"{year}-{month:02}-{day:02}",
            f"{day:02}.{month:02}.{year}",
            f"{month:02}/{day:02}/{year}",
            f"{year}-{month:02}",
            f"{year}-{month:02}-{day:02}T{rng.randint(0, 23):02}:00:00Z",
            f"{rng.randint(0, 23):02}:{rng.choice((0, 15, 30, 45)):02}",
        )
    )


def address(rng: random.Random, words: Words) -> str:
    """An internet address, a host with a port, or an e-mail address."""
    end = rng.choice(("com", "org", "io", "net", "example.com", "dev"))
    host = f"{words.noun()}.{end}"
    number = ".".join(str(rng.randint(0, 255)) for _ in range(4))
    return rng.choice(
        (
            number,
            f"10.0.{rng.randint(0, 9)}.{rng.randint(1, 254)}",
            f"{number}:{rng.randint(80, 9999)}",
            f"{host}:{rng.randint(80, 9999)}",
            f"https://{host}/{words.noun()}/v{rng.randint(1, 4)}",
            f"http://{host}:{rng.choice((3000, 8000, 8080))}",
            f"https://{words.noun()}.{host}",
            f"https://{host}/{words.noun()}/{words.noun()}?{words.noun()}={words.noun()[:4]}",
            f"https://{host}/?{words.noun()}={rng.randint(1, 99)}&{words.noun()}=1#{words.noun()}",
            f"{words.noun()}@{host}",
            f"{words.adjective()}.{words.noun()}@{host}",
            f"redis://localhost:{rng.randint(6000, 7000)}/{rng.randint(0, 9)}",
        )
    )


def place(rng: random.Random, words: Words) -> str:
    """A path or a file name."""
    file = f"{words.noun()}.{rng.choice(('log', 'txt', 'json', 'tar.gz', 'db', 'py', 'conf', 'csv'))}"
    return rng.choice(
        (
            f"/var/log/{file}",
            f"/etc/{words.noun()}/{file}",
            f"./{words.noun()}/{file}",
            f"../{words.noun()}",
            f"~/{words.noun()}/{file}",
            f"{words.noun()}/{words.noun()}/",
            f"/{words.noun()}/{words.noun()}-{rng.randint(1, 9)}",
            f"{words.noun()}_{rng.randint(2001, 2030)}.{rng.choice(('csv', 'sqlite3', 'bak'))}",
            file,
        )
    )


def tag(rng: random.Random, words: Words) -> str:
    """A short text with signs in it: sizes, durations, images, colours, codes."""
    base = rng.choice(("python", "node", "nginx", "postgres", words.noun()))
    return rng.choice(
        (
            f"{rng.randint(1, 512)}{rng.choice(('MB', 'GB', 'KB', 'MiB', 'k', 'm'))}",
            f"{rng.randint(1, 90)}{rng.choice(('s', 'ms', 'min', 'h', 'd'))}",
            f"{base}:{rng.randint(3, 20)}.{rng.randint(0, 12)}-{rng.choice(('slim', 'alpine', 'dev'))}",
            f"#{rng.randrange(16**6):06x}",
            f"{rng.choice(('en', 'de', 'fr', 'pt'))}_{rng.choice(('US', 'DE', 'CH', 'BR'))}",
            f"{words.noun()}-{words.noun()}-{rng.randint(1, 99)}",
            f"{words.noun().upper()}-{rng.randint(100, 9999)}",
            f"{words.noun()}.{words.noun()}.{words.noun()}",
            f"{words.noun()}/{words.noun()}",
            f"{rng.randint(1, 99)}%",
            f"utf-{rng.choice((8, 16))}",
        )
    )


def sentence(rng: random.Random, words: Words) -> str:
    """A text of some words, as shown to people."""
    noun, other = words.noun(), words.noun()
    return rng.choice(
        (
            f"{words.adjective()} {noun}",
            f"{noun.capitalize()} not found",
            f"Hello, {noun}!",
            f"the {noun} is {words.adjective()}",
            f"Welcome to the {noun} {other}",
            f"{noun} & {other}",
            f"{words.verb()} {noun}, then {words.verb()} {other}",
            f"{noun.capitalize()}: {words.adjective()} ({rng.randint(1, 99)})",
            f"don't {words.verb()} the {noun}",
        )
    )


def odd_text(rng: random.Random, words: Words) -> str:
    """Any text with dots, dashes, slashes or spaces."""
    makers = (version, version, version, date, address, address, place, tag, sentence)
    return rng.choice(makers)(rng, words)


def like_text(rng: random.Random, words: Words, old: str) -> str:
    """A text of the kind of another: a version for a version, an address for an address."""
    if re.fullmatch(r"v?\d+(\.\d+)+([-+.]?[a-zA-Z]+[.\w]*)?", old):
        return near_version(rng, words, old)
    if re.fullmatch(r"[\d:/.-]+", old):
        return date(rng, words)
    if "@" in old or "://" in old:
        return address(rng, words)
    if "/" in old:
        return place(rng, words)
    return odd_text(rng, words)


def near_version(rng: random.Random, words: Words, old: str) -> str:
    """The next version, or another that begins alike."""
    numbers = re.findall(r"\d+", old)
    mark = "v" if old.startswith("v") else ""
    if rng.random() < 0.4 or len(numbers) < 2:
        return version(rng, words)
    at = rng.randrange(min(3, len(numbers)))
    raised = [*numbers[:at], str(int(numbers[at]) + 1), *("0" for _ in numbers[at + 1 :])]
    if rng.random() < 0.25:
        raised.append(str(rng.randint(0, 9)))
    return mark + ".".join(raised)


def odd_number(rng: random.Random) -> str:
    """A number as Python has them: grouped, with an exponent, negative, in another base, a product."""
    number = rng.randint
    if rng.random() < 0.5:
        return small_number(rng)
    return rng.choice(
        (
            f"{number(1, 9)}_{number(0, 999):03}_000",
            f"1e-{number(1, 9)}",
            f"{number(1, 9)}e{number(2, 9)}",
            f"{number(1, 9)}.5e-{number(2, 6)}",
            f"{number(1, 30)} * 1024 * 1024",
            f"60 * 60 * {number(2, 48)}",
            f"2 ** {number(4, 20)}",
        )
    )


def small_number(rng: random.Random) -> str:
    """An odd number that a loop can run to."""
    number = rng.randint
    return rng.choice(
        (
            f"{number(1, 20)}_000",
            f"-{number(1, 99)}",
            f"-{number(0, 9)}.{number(1, 9)}",
            f"0x{rng.randrange(256):02X}",
            f"0x{rng.randrange(4096):03x}",
            f"0.{number(1, 999):03}",
            f"{number(10, 999)}.{number(0, 99):02}",
            f"{rng.choice((2, 4, 8, 16))} * 1024",
            f"60 * {number(2, 90)}",
        )
    )


def odd_code(rng: random.Random, words: Words, quote: str) -> str:
    """A Python value that is neither a plain number nor a text: a tuple, a list, a table, None."""
    number = rng.randint

    def text() -> str:
        return f"{quote}{words.noun()}{quote}"

    return rng.choice(
        (
            f"({number(0, 99)}, {number(0, 99)})",
            f"({number(0, 255)}, {number(0, 255)}, {number(0, 255)})",
            f"({text()}, {text()})",
            f"({text()}, {number(0, 99)})",
            f"[{number(0, 9)}.{number(1, 9)}, {number(0, 9)}.{number(1, 9)}]",
            f"[{text()}, {text()}, {text()}]",
            f"{{{text()}: {number(0, 99)}, {text()}: {number(0, 99)}}}",
            "None",
            "None",
            "[]",
            f"{{{text()}, {text()}}}",
        )
    )
