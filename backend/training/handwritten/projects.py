"""Nine small projects that people could have written: the ground of the hand-written tasks. Nobody trains on them.

A project is a dict from path to text; `apply` puts a variant (a seeded bug, say) over it.
"""

from __future__ import annotations

from k3agent.backend.training.handwritten.projects_layered import BILLING, LENDING, SENSORS
from k3agent.backend.training.handwritten.projects_tested import BANK, TEXTKIT

INVENTORY = {
    "README.md": "# Inventory\n\nKeeps track of parts in a small warehouse.\n\n## Usage\n\nRun `python -m inventory`.\n",
    "requirements.txt": "requests==2.31.0\nclick==8.1.7\n",
    "config.json": '{\n  "warehouse": "Bremen",\n  "low_stock_limit": 10,\n  "notify": false\n}\n',
    "inventory/__init__.py": "",
    "inventory/__main__.py": 'from inventory.report import stock_report\n\n\nif __name__ == "__main__":\n'
    '    print(stock_report({"bolt": 3, "nut": 40}))\n',
    "inventory/stock.py": '''"""Stock levels."""

LOW_STOCK_LIMIT = 10
MAX_SHELVES = 24


class OutOfStock(Exception):
    pass


def take(stock, part, amount):
    """Remove parts from the stock."""
    if stock.get(part, 0) < amount:
        raise OutOfStock(part)
    stock[part] = stock[part] - amount
    return stock[part]


def refill(stock, part, amount=1):
    stock[part] = stock.get(part, 0) + amount
    return stock[part]


def is_low(count):
    return count < LOW_STOCK_LIMIT


def low_parts(stock):
    return sorted(part for part, count in stock.items() if is_low(count))
''',
    "inventory/report.py": """from inventory.stock import low_parts


def stock_report(stock):
    lines = [f"{part}: {count}" for part, count in sorted(stock.items())]
    low = low_parts(stock)
    if low:
        lines.append("low: " + ", ".join(low))
    return "\\n".join(lines)


def total_parts(stock):
    return sum(stock.values())
""",
    "conftest.py": "",
    "tests/test_stock.py": """from inventory.stock import is_low, low_parts, refill, take


def test_take():
    assert take({"bolt": 5}, "bolt", 2) == 3


def test_refill():
    assert refill({}, "nut", 4) == 4


def test_is_low():
    assert is_low(9)
    assert not is_low(10)


def test_low_parts():
    assert low_parts({"nut": 2, "bolt": 1, "gear": 50}) == ["bolt", "nut"]
""",
    "tests/test_report.py": """from inventory.report import stock_report, total_parts


def test_total_parts():
    assert total_parts({"a": 2, "b": 3}) == 5


def test_report():
    assert stock_report({"b": 20, "a": 30}) == "a: 30\\nb: 20"
""",
}

WEATHER = {
    "pyproject.toml": '[project]\nname = "skycast"\nversion = "0.4.2"\nrequires-python = ">=3.9"\n',
    "settings.toml": '[api]\nurl = "http://localhost:9000"\ntimeout = 30\nretries = 3\n\n[display]\nunits = "metric"\n'
    "color = true\n",
    "src/skycast/__init__.py": '__version__ = "0.4.2"\n',
    "src/skycast/convert.py": """KELVIN_OFFSET = 273.15


def celsius_to_fahrenheit(value: float) -> float:
    return value * 9 / 5 + 32


def fahrenheit_to_celsius(value: float) -> float:
    return (value - 32) * 5 / 9


def kelvin_to_celsius(value: float) -> float:
    return value - KELVIN_OFFSET
""",
    "src/skycast/forecast.py": """from dataclasses import dataclass

from skycast.convert import celsius_to_fahrenheit

WINDY_FROM_KMH = 50


@dataclass
class Day:
    name: str
    high: float
    low: float
    wind_kmh: float = 0.0

    def average(self) -> float:
        return (self.high + self.low) / 2

    def is_windy(self) -> bool:
        return self.wind_kmh >= WINDY_FROM_KMH


def warmest(days: list[Day]) -> Day:
    return max(days, key=lambda day: day.high)


def describe(day: Day, fahrenheit: bool = False) -> str:
    high = celsius_to_fahrenheit(day.high) if fahrenheit else day.high
    text = f"{day.name}: {high:.0f}"
    if day.is_windy():
        text += " (windy)"
    return text
""",
    "src/skycast/cache.py": '''import time

CACHE_SECONDS = 600

_entries = {}


def remember(key, value, now=None):
    _entries[key] = (now if now is not None else time.time(), value)


def recall(key, now=None):
    """Return the cached value, or None when it is too old."""
    if key not in _entries:
        return None
    stored, value = _entries[key]
    now = now if now is not None else time.time()
    if now - stored > CACHE_SECONDS:
        return None
    return value
''',
    "tests/test_convert.py": """import sys

sys.path.insert(0, "src")

from skycast.convert import celsius_to_fahrenheit, fahrenheit_to_celsius


def test_freezing():
    assert celsius_to_fahrenheit(0) == 32


def test_boiling():
    assert fahrenheit_to_celsius(212) == 100
""",
    "docs/notes.md": "# Notes\n\n- [ ] add humidity\n- [x] cache answers\n- [ ] support imperial units\n",
}

NOTES = {
    "notes.py": '''#!/usr/bin/env python3
"""A notebook in one file."""
import json
import sys

from storage import load_notes, save_notes

DEFAULT_FILE = "notes.json"
VERSION = "1.2.0"


def add_note(notes, text, tags=()):
    note = {"id": len(notes) + 1, "text": text, "tags": list(tags)}
    notes.append(note)
    return note


def find_notes(notes, word):
    return [note for note in notes if word.lower() in note["text"].lower()]


def print_notes(notes):
    for note in notes:
        print(note["id"], note["text"])


def main(argv):
    notes = load_notes(DEFAULT_FILE)
    if argv[:1] == ["add"]:
        add_note(notes, " ".join(argv[1:]))
        save_notes(DEFAULT_FILE, notes)
    elif argv[:1] == ["find"]:
        print_notes(find_notes(notes, argv[1]))
    else:
        print_notes(notes)


if __name__ == "__main__":
    main(sys.argv[1:])
''',
    "storage.py": """import json
import os


def load_notes(path):
    if not os.path.exists(path):
        return []
    with open(path) as handle:
        return json.load(handle)


def save_notes(path, notes):
    with open(path, "w") as handle:
        json.dump(notes, handle, indent=2)
""",
    "hello.sh": "#!/bin/sh\necho hello from the shell\n",
    "todo.txt": "buy milk\ncall Anna\nfix the printer\n",
    "ideas/garden.txt": "tomatoes along the wall\nherbs in pots\n",
    "ideas/kitchen.txt": "new shelf for the pots\n",
    "test_notes.py": """import unittest

from notes import add_note, find_notes


class NotesTest(unittest.TestCase):
    def test_add(self):
        notes = []
        self.assertEqual(add_note(notes, "x")["id"], 1)

    def test_find(self):
        notes = [{"id": 1, "text": "Buy milk"}, {"id": 2, "text": "Sleep"}]
        self.assertEqual([n["id"] for n in find_notes(notes, "milk")], [1])


if __name__ == "__main__":
    unittest.main()
""",
}

SHOP_JS = {
    "package.json": '{\n  "name": "tinyshop",\n  "version": "2.0.1",\n  "scripts": {\n    "start": "node server.js"\n  },\n'
    '  "dependencies": {\n    "express": "^4.18.2"\n  }\n}\n',
    "server.js": """const { loadCart, cartTotal } = require("./lib/cart");
const { formatPrice } = require("./lib/format");

const PORT = 3000;

function handle(request) {
  const cart = loadCart(request.user);
  return formatPrice(cartTotal(cart));
}

module.exports = { handle, PORT };
""",
    "lib/cart.js": """const SHIPPING = 4.9;
const FREE_FROM = 50;

function loadCart(user) {
  return user.cart || [];
}

function cartTotal(cart) {
  let sum = 0;
  for (const item of cart) {
    sum += item.price * item.count;
  }
  return sum >= FREE_FROM ? sum : sum + SHIPPING;
}

module.exports = { loadCart, cartTotal };
""",
    "lib/format.js": """// money for people
function formatPrice(value) {
  return value.toFixed(2) + " EUR";
}

module.exports = { formatPrice };
""",
    "public/index.html": "<!doctype html>\n<html>\n  <head>\n    <title>Tiny Shop</title>\n  </head>\n  <body>\n"
    '    <h1 id="headline">Welcome</h1>\n  </body>\n</html>\n',
    "public/style.css": "body {\n  color: #222;\n  margin: 2rem;\n}\n\n#headline {\n  color: teal;\n}\n",
    ".env.example": "SHOP_DB=localhost\nSHOP_DEBUG=0\n",
    "docs/setup.md": "# Setup\n\nInstall Node 18, then run `npm start`.\n\nThe shop listens on port 3000.\n",
}

PROJECTS = {
    "inventory": INVENTORY,
    "weather": WEATHER,
    "notes": NOTES,
    "shop": SHOP_JS,
    "bank": BANK,
    "textkit": TEXTKIT,
    "billing": BILLING,
    "lending": LENDING,
    "sensors": SENSORS,
}
