"""A hundred tasks written by hand in the words people use. Nobody trains on them; see `checks` for how they are judged."""

from __future__ import annotations

from k3agent.backend.training.handwritten.checks import (
    Check,
    all_of,
    contains,
    created,
    created_json,
    evaluates,
    honest,
    moved,
    removed,
    renamed,
    replaced,
    says,
    says_any,
)

STOCK, REPORT = "inventory/stock.py", "inventory/report.py"
ACCOUNT, INTEREST = "bank/account.py", "bank/interest.py"
WORDS, SHAPES = "textkit/words.py", "textkit/shapes.py"
CONVERT, FORECAST, CACHE = "src/skycast/convert.py", "src/skycast/forecast.py", "src/skycast/cache.py"

# (family, project, prompt, check)
Row = tuple[str, str, str, Check]

LOOKING: list[Row] = [
    ("list", "inventory", "What files are in the inventory folder?", says("stock.py", "report.py")),
    ("list", "notes", "show me what's in here", says("notes.py", "storage.py", "hello.sh")),
    (
        "list",
        "shop",
        "Which JavaScript files does this project have?",
        says("server.js", "cart.js", "format.js"),
    ),
    ("list", "notes", "list everything under ideas/", says("garden.txt", "kitchen.txt")),
    (
        "list",
        "bank",
        "How many python files are in the bank package? Name them.",
        says("account.py", "errors.py", "interest.py", "audit.py"),
    ),
    ("find", "shop", "where do I find the stylesheet", says("public/style.css")),
    ("find", "weather", "is there a file for caching? give me its path", says("cache.py")),
    ("find", "notes", "which file mentions tomatoes?", says("ideas/garden.txt")),
    ("find", "bank", "Find the file test_interest.py for me.", says("tests/test_interest.py")),
    ("find", "inventory", "Which file contains the word Bremen?", says("config.json")),
    ("where", "inventory", "where is refill defined?", says("inventory/stock.py")),
    ("where", "bank", "In which file does the class InsufficientFunds live?", says("bank/errors.py")),
    ("where", "textkit", "Where's the is_palindrome function?", says("textkit/shapes.py")),
    ("where", "weather", "which module defines CACHE_SECONDS", says("cache.py")),
    ("where", "bank", "Where is OVERDRAFT_LIMIT used?", says("account.py", "audit.py")),
    ("where", "shop", "where's cartTotal implemented?", says("lib/cart.js")),
    ("where", "weather", "Who calls celsius_to_fahrenheit?", says("forecast.py")),
    ("where", "notes", "Find the definition of load_notes.", says("storage.py")),
    (
        "explain",
        "textkit",
        "What does the function initials do?",
        all_of(says_any("first", "upper", "initial"), honest),
    ),
    ("explain", "bank", "What is MONTHLY_FEE set to?", says("3.5")),
    ("explain", "weather", "what's the timeout in settings.toml", says("30")),
    ("explain", "inventory", "Show me the code of is_low.", says("LOW_STOCK_LIMIT")),
    ("explain", "inventory", "What exception does take raise?", says("OutOfStock")),
    ("explain", "shop", "What port does the server listen on?", says("3000")),
    (
        "explain",
        "textkit",
        "Show the first three lines of data/sample.csv",
        says("name,age", "Anna,31", "Bob,27"),
    ),
    ("explain", "bank", "which arguments does yearly_interest take?", says("balance", "years", "loyal")),
    ("explain", "weather", "Which version is in pyproject.toml?", says("0.4.2")),
    ("explain", "notes", "print todo.txt", says("buy milk", "call Anna", "fix the printer")),
]

CHANGING: list[Row] = [
    (
        "setvalue",
        "inventory",
        "Set MAX_SHELVES to 36.",
        replaced(STOCK, ("MAX_SHELVES = 24", "MAX_SHELVES = 36")),
    ),
    (
        "setvalue",
        "weather",
        "cache entries should live 900 seconds, change CACHE_SECONDS accordingly",
        replaced(CACHE, ("CACHE_SECONDS = 600", "CACHE_SECONDS = 900")),
    ),
    (
        "setvalue",
        "bank",
        "Change the overdraft limit from 500 to 750.",
        replaced(ACCOUNT, ("OVERDRAFT_LIMIT = 500", "OVERDRAFT_LIMIT = 750")),
    ),
    (
        "setvalue",
        "weather",
        "In settings.toml put retries at 5",
        replaced("settings.toml", ("retries = 3", "retries = 5")),
    ),
    (
        "setvalue",
        "inventory",
        "turn on notify in config.json",
        replaced("config.json", ('"notify": false', '"notify": true')),
    ),
    (
        "setvalue",
        "shop",
        "Make the server use port 8080",
        replaced("server.js", ("PORT = 3000", "PORT = 8080")),
    ),
    (
        "setvalue",
        "notes",
        "bump VERSION to 1.3.0",
        replaced("notes.py", ('VERSION = "1.2.0"', 'VERSION = "1.3.0"')),
    ),
    (
        "setvalue",
        "shop",
        "shipping should cost 5.9 now (SHIPPING in lib/cart.js)",
        replaced("lib/cart.js", ("SHIPPING = 4.9", "SHIPPING = 5.9")),
    ),
    (
        "setvalue",
        "weather",
        "Please update WINDY_FROM_KMH so that it's 60 instead of 50.",
        replaced(FORECAST, ("WINDY_FROM_KMH = 50", "WINDY_FROM_KMH = 60")),
    ),
    (
        "setvalue",
        "inventory",
        "the warehouse in config.json is Hamburg, not Bremen",
        replaced("config.json", ("Bremen", "Hamburg")),
    ),
    (
        "setvalue",
        "weather",
        "set color to false in the settings",
        replaced("settings.toml", ("color = true", "color = false")),
    ),
    (
        "setvalue",
        "bank",
        "BASE_RATE must be 0.03",
        replaced(INTEREST, ("BASE_RATE = 0.02", "BASE_RATE = 0.03")),
    ),
    ("rename", "inventory", "Rename refill to restock everywhere.", renamed("refill", "restock")),
    (
        "rename",
        "bank",
        "The class BankError should be called AccountError. Please rename it.",
        renamed("BankError", "AccountError"),
    ),
    ("rename", "weather", "rename the function warmest to hottest_day", renamed("warmest", "hottest_day")),
    (
        "rename",
        "textkit",
        "I'd like frequencies to be named word_frequencies in all files",
        renamed("frequencies", "word_frequencies"),
    ),
    (
        "rename",
        "weather",
        "Rename KELVIN_OFFSET to ABSOLUTE_ZERO_OFFSET",
        renamed("KELVIN_OFFSET", "ABSOLUTE_ZERO_OFFSET"),
    ),
    (
        "rename",
        "shop",
        "formatPrice -> formatMoney, in every file please",
        renamed("formatPrice", "formatMoney"),
    ),
    (
        "rename",
        "notes",
        "save_notes is a bad name, call it store_notes",
        renamed("save_notes", "store_notes"),
    ),
    (
        "rename",
        "bank",
        "Use the name move_money in place of transfer across the code base.",
        renamed("transfer", "move_money"),
    ),
    ("rename", "notes", "Rename the file todo.txt to tasks.txt", moved("todo.txt", "tasks.txt")),
    ("rename", "notes", "move hello.sh into ideas", moved("hello.sh", "ideas/hello.sh")),
    (
        "replace",
        "shop",
        'Change the headline "Welcome" to "Hello there" in public/index.html.',
        replaced("public/index.html", ("Welcome", "Hello there")),
    ),
    (
        "replace",
        "notes",
        "in todo.txt replace milk with oat milk",
        replaced("todo.txt", ("buy milk", "buy oat milk")),
    ),
    (
        "replace",
        "shop",
        "The setup docs say Node 18, it should say Node 20.",
        replaced("docs/setup.md", ("Node 18", "Node 20")),
    ),
    (
        "replace",
        "weather",
        "tick the box for humidity in docs/notes.md",
        replaced("docs/notes.md", ("- [ ] add humidity", "- [x] add humidity")),
    ),
    (
        "replace",
        "shop",
        "change the color teal to navy in style.css",
        replaced("public/style.css", ("teal", "navy")),
    ),
    ("replace", "inventory", "README: warehouse -> depot", replaced("README.md", ("warehouse", "depot"))),
    ("replace", "notes", "delete garden.txt", removed("ideas/garden.txt")),
]

ADDING: list[Row] = [
    (
        "addline",
        "notes",
        'Add the line "water the plants" to the end of todo.txt',
        contains("todo.txt", "water the plants"),
    ),
    (
        "addline",
        "inventory",
        "add rich==13.7.0 to requirements.txt",
        contains("requirements.txt", "rich==13.7.0"),
    ),
    (
        "addline",
        "notes",
        "Put import os at the top of notes.py, next to the other imports.",
        contains("notes.py", "import os"),
    ),
    (
        "addline",
        "bank",
        "Add a constant MAX_TRANSFER = 10000 to bank/account.py",
        contains(ACCOUNT, "MAX_TRANSFER = 10000"),
    ),
    (
        "addline",
        "textkit",
        "Append the row Dora,52 to data/sample.csv",
        contains("data/sample.csv", "Dora,52"),
    ),
    (
        "addline",
        "bank",
        'give monthly_payment the docstring "Equal payments over the months."',
        all_of(
            evaluates(
                "import bank.interest as m; assert m.monthly_payment.__doc__.strip() == 'Equal payments over the months.'",
                INTEREST,
            ),
            contains(INTEREST, "def monthly_payment(loan, months):"),
        ),
    ),
    (
        "addline",
        "textkit",
        'add "and" to STOP_WORDS',
        evaluates(
            "from textkit.words import STOP_WORDS as s; assert list(s) == ['the', 'a', 'an', 'of', 'and']",
            WORDS,
        ),
    ),
    (
        "addline",
        "notes",
        "remove the line call Anna from todo.txt",
        replaced("todo.txt", ("call Anna\n", "")),
    ),
    (
        "addline",
        "textkit",
        "Delete the function longest_word from textkit/words.py.",
        evaluates(
            "import textkit.words as w; assert not hasattr(w, 'longest_word') and w.word_count('a b') == 2",
            WORDS,
        ),
    ),
    (
        "addline",
        "weather",
        'docs/notes.md: new bullet "- [ ] write tests" at the end',
        contains("docs/notes.md", "- [ ] write tests"),
    ),
    (
        "addfunc",
        "weather",
        "Add a function celsius_to_kelvin(value) to convert.py that returns value plus KELVIN_OFFSET.",
        evaluates("from skycast.convert import celsius_to_kelvin as f; assert f(0) == 273.15", CONVERT),
    ),
    (
        "addfunc",
        "inventory",
        "I need a function count_parts(stock) in inventory/report.py which returns the number of entries in stock",
        evaluates("from inventory.report import count_parts as f; assert f({'a': 1, 'b': 5}) == 2", REPORT),
    ),
    (
        "addfunc",
        "bank",
        "add double(amount) to bank/interest.py, it returns amount * 2",
        evaluates("from bank.interest import double as f; assert f(21) == 42", INTEREST),
    ),
    (
        "addfunc",
        "textkit",
        "Write a function reverse(text) in shapes.py that returns the text reversed.",
        evaluates("from textkit.shapes import reverse as f; assert f('abc') == 'cba'", SHAPES),
    ),
    (
        "addfunc",
        "textkit",
        "in textkit/words.py: def is_long(word) returning True if word has more than 10 letters",
        evaluates("from textkit.words import is_long as f; assert f('abcdefghijk') and not f('abc')", WORDS),
    ),
    (
        "addfunc",
        "inventory",
        "Add a helper to inventory/stock.py: is_empty(stock) should tell whether stock has no entries.",
        evaluates("from inventory.stock import is_empty as f; assert f({}) and not f({'a': 1})", STOCK),
    ),
    (
        "addfunc",
        "bank",
        "Give the Account class a method is_overdrawn(self) that returns self.balance < 0",
        evaluates(
            "from bank.account import Account as A; assert A('x', -1).is_overdrawn() and not A('x').is_overdrawn()",
            ACCOUNT,
        ),
    ),
    (
        "addfunc",
        "textkit",
        "please add shout(text) to textkit/shapes.py; it returns text in upper case with an exclamation mark",
        evaluates("from textkit.shapes import shout as f; assert f('hi') == 'HI!'", SHAPES),
    ),
    (
        "create",
        "notes",
        'Create a file called shopping.txt with the content "eggs".',
        created("shopping.txt", "eggs"),
    ),
    (
        "create",
        "inventory",
        "make a new file inventory/limits.py containing MAX_WEIGHT = 40",
        created("inventory/limits.py", "MAX_WEIGHT = 40"),
    ),
    ("create", "shop", "create docs/faq.md with the heading FAQ", created("docs/faq.md", "# FAQ")),
    (
        "create",
        "textkit",
        "New module textkit/numbers.py with a function square(x) that returns x * x",
        evaluates("from textkit.numbers import square as f; assert f(7) == 49", "textkit/numbers.py"),
    ),
    ("create", "weather", "add an empty file src/skycast/alerts.py", created("src/skycast/alerts.py", "")),
    (
        "create",
        "bank",
        'Create settings.json with {"currency": "EUR"} in it',
        created_json("settings.json", {"currency": "EUR"}),
    ),
    (
        "create",
        "notes",
        "write these lines to ideas/balcony.txt:\n```\nbasil\nmint\n```",
        created("ideas/balcony.txt", "basil\nmint"),
    ),
]
