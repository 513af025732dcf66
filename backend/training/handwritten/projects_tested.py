"""Two more of the projects in `projects`: the ones whose tests reach every function, so most seeded bugs live here."""

from __future__ import annotations

BANK = {
    "bank/__init__.py": "",
    "bank/account.py": '''"""Accounts and what can be done with them."""

from bank.errors import InsufficientFunds

OVERDRAFT_LIMIT = 500
MONTHLY_FEE = 3.5


class Account:
    def __init__(self, owner, balance=0):
        self.owner = owner
        self.balance = balance
        self.history = []

    def deposit(self, amount):
        if amount <= 0:
            raise ValueError("amount must be positive")
        self.balance += amount
        self.history.append(("deposit", amount))

    def withdraw(self, amount):
        if self.balance + OVERDRAFT_LIMIT < amount:
            raise InsufficientFunds(self.owner)
        self.balance -= amount
        self.history.append(("withdraw", amount))

    def statement(self):
        return [f"{kind} {amount}" for kind, amount in self.history]


def transfer(source, target, amount):
    """Move money between two accounts."""
    source.withdraw(amount)
    target.deposit(amount)
''',
    "bank/errors.py": '''class BankError(Exception):
    """Base of all errors of the bank."""


class InsufficientFunds(BankError):
    pass
''',
    "bank/interest.py": """BASE_RATE = 0.02
BONUS_RATE = 0.005


def yearly_interest(balance, years=1, loyal=False):
    rate = BASE_RATE + (BONUS_RATE if loyal else 0)
    return balance * ((1 + rate) ** years - 1)


def monthly_payment(loan, months):
    if months <= 0:
        raise ValueError("months")
    return round(loan / months, 2)
""",
    "bank/audit.py": """from bank.account import OVERDRAFT_LIMIT


def overdrawn(accounts):
    return [account.owner for account in accounts if account.balance < 0]


def at_risk(accounts):
    # close to the OVERDRAFT_LIMIT
    return [account.owner for account in accounts if account.balance < -0.9 * OVERDRAFT_LIMIT]
""",
    "tests/test_account.py": """import pytest

from bank.account import Account, transfer
from bank.errors import InsufficientFunds


def test_deposit():
    account = Account("eva")
    account.deposit(50)
    account.deposit(20)
    assert account.balance == 70


def test_withdraw_too_much():
    with pytest.raises(InsufficientFunds):
        Account("eva").withdraw(501)


def test_transfer():
    eva, tom = Account("eva", 100), Account("tom")
    transfer(eva, tom, 40)
    assert (eva.balance, tom.balance) == (60, 40)


def test_statement():
    account = Account("eva")
    account.deposit(5)
    assert account.statement() == ["deposit 5"]
""",
    "tests/test_interest.py": """from bank.interest import monthly_payment, yearly_interest


def test_yearly():
    assert round(yearly_interest(1000), 2) == 20.0


def test_two_years():
    assert round(yearly_interest(1000, 2), 2) == 40.4


def test_payment():
    assert monthly_payment(1000, 3) == 333.33
""",
    "conftest.py": "",
    "CHANGES.md": "# Changes\n\n## 0.2\n\n- overdraft limit\n\n## 0.1\n\n- first version\n",
}

TEXTKIT = {
    "textkit/__init__.py": "",
    "textkit/words.py": """import re

STOP_WORDS = ["the", "a", "an", "of"]


def words(text):
    return re.findall(r"[a-z']+", text.lower())


def word_count(text):
    return len(words(text))


def frequencies(text):
    counts = {}
    for word in words(text):
        counts[word] = counts.get(word, 0) + 1
    return counts


def top_words(text, n=3):
    ranked = sorted(frequencies(text).items(), key=lambda pair: (-pair[1], pair[0]))
    return [word for word, _ in ranked[:n]]


def longest_word(text):
    return max(words(text), key=len)
""",
    "textkit/shapes.py": '''def shorten(text, width):
    """Cut text to width characters, with dots at the end when it was cut."""
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."


def slug(title):
    return title.strip().lower().replace(" ", "-")


def is_palindrome(text):
    letters = [c for c in text.lower() if c.isalpha()]
    return letters == letters[::-1]


def initials(name):
    return "".join(part[0].upper() for part in name.split())
''',
    "tests/test_words.py": """from textkit.words import frequencies, longest_word, top_words, word_count


def test_word_count():
    assert word_count("one two three") == 3


def test_frequencies():
    assert frequencies("a b a") == {"a": 2, "b": 1}


def test_top_words():
    assert top_words("x y x z y x", 2) == ["x", "y"]


def test_longest_word():
    assert longest_word("I saw elephants") == "elephants"
""",
    "tests/test_shapes.py": """from textkit.shapes import initials, is_palindrome, shorten, slug


def test_shorten():
    assert shorten("hello world", 8) == "hello..."
    assert shorten("short", 8) == "short"


def test_slug():
    assert slug(" My First Post ") == "my-first-post"


def test_palindrome():
    assert is_palindrome("Never odd or even")
    assert not is_palindrome("abc")


def test_initials():
    assert initials("ada lovelace") == "AL"
""",
    "conftest.py": "",
    "data/sample.csv": "name,age\nAnna,31\nBob,27\nCarla,45\n",
    "Makefile": "test:\n\tpython -m pytest -q\n",
}
