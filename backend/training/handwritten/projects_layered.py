"""Three more small projects as people write them: helpers behind methods, fixtures and tables of cases, unittest, settings
with versions, addresses and dates. Nobody trains on them.
"""

BILLING = {
    "README.md": "# Billing\n\nInvoices for the workshop. See docs/rounding-rules.md.\n\n## Tests\n\npython -m pytest\n",
    "pyproject.toml": '[project]\nname = "billing"\nversion = "2.14.0"\nrequires-python = ">=3.11"\n',
    "docs/rounding-rules.md": "# Rounding rules\n\n- cents are never rounded up\n- leftover cents go to the first payer\n",
    "conftest.py": "",
    "billing/__init__.py": "",
    "billing/rates.py": '''"""What changes once a year."""

VAT_PERCENT = 19
REMINDER_DAYS = 14
EXCHANGE_FEE = -0.35
SUPPORT_EMAIL = "billing@kirschbaum.example"
PORTAL_URL = "https://portal.kirschbaum.example/login"
VALID_FROM = "2023-11-05"
CURRENCIES = ["EUR", "CHF"]
''',
    "billing/amounts.py": '''"""Arithmetic on amounts in cents."""

from billing.rates import VAT_PERCENT


def discounted_subtotal(line_items, percent_off=0):
    """Quantity times unit price of all items, less the discount in percent."""
    subtotal = 0
    for quantity, unit_price in line_items:
        subtotal += quantity * unit_price
    return subtotal - subtotal * percent_off // 100


def with_vat(net_amount):
    return net_amount + net_amount * VAT_PERCENT // 100


def split_evenly(total_amount, num_payers):
    """The payers' shares; the first ones pay the cents that are left over."""
    share, leftover = divmod(total_amount, num_payers)
    return [share + 1 if index < leftover else share for index in range(num_payers)]
''',
    "billing/invoice.py": '''"""An invoice and how it is shown."""

import re

from billing.amounts import discounted_subtotal, split_evenly, with_vat


class Invoice:
    def __init__(self, customer, line_items, percent_off=0):
        self.customer = customer
        self.line_items = line_items
        self.percent_off = percent_off

    def gross_amount(self):
        """What the customer has to pay."""
        return with_vat(discounted_subtotal(self.line_items, self.percent_off))

    def shares(self, num_payers):
        if num_payers < 1:
            raise ValueError("nobody pays")
        return split_evenly(self.gross_amount(), num_payers)

    def headline(self):
        return f"{self.customer.strip()}: {self.gross_amount() / 100:.2f} EUR"


def is_invoice_number(text):
    return bool(re.fullmatch(r"INV-[0-9]{4}", text))
''',
    "tests/test_invoice.py": """import pytest

from billing import amounts
from billing.invoice import Invoice, is_invoice_number


@pytest.fixture
def invoice():
    return Invoice(" Blume & Sohn", [(2, 1000), (1, 500)], percent_off=10)


def test_gross_amount(invoice):
    assert invoice.gross_amount() == 2677


def test_headline(invoice):
    assert invoice.headline() == "Blume & Sohn: 26.77 EUR"


def test_shares(invoice):
    assert invoice.shares(2) == [1339, 1338]


def test_shares_without_payers(invoice):
    with pytest.raises(ValueError):
        invoice.shares(0)


@pytest.mark.parametrize(
    ("net_amount", "expected"),
    [(100, 119), (0, 0), (250, 297)],
)
def test_with_vat(net_amount, expected):
    assert amounts.with_vat(net_amount) == expected


@pytest.mark.parametrize("text, expected", [("INV-2041", True), ("INV-20", False), ("2041", False)])
def test_is_invoice_number(text, expected):
    assert is_invoice_number(text) is expected
""",
}

LENDING = {
    "README.md": "# Lending\n\nWho has which book.\n",
    "settings.ini": "[loans]\nmax_days = 28\nfine_per_day = 0.2\n\n[mail]\nsender = desk@lending.example\nenabled = no\n",
    "lending/__init__.py": "",
    "lending/titles.py": '''"""Titles as they are compared and shown."""


def comparable_title(raw_title):
    """Without case and needless spaces, so that two spellings are one title."""
    return " ".join(raw_title.split()).casefold()


def shelf_mark(raw_title, author_surname):
    """The mark on the book's back: three letters of the author, one of the title."""
    return f"{author_surname[:3].upper()}-{comparable_title(raw_title)[0]}"
''',
    "lending/catalogue.py": '''"""The copies of each title."""

from lending.titles import comparable_title

MAX_COPIES = 12


class UnknownTitle(KeyError):
    """No such book."""


class Catalogue:
    """Counts the copies that are there."""

    def __init__(self):
        self.copies_by_title = {}

    def add_copies(self, raw_title, num_copies=1):
        key = comparable_title(raw_title)
        self.copies_by_title[key] = min(self.copies_left(raw_title) + num_copies, MAX_COPIES)

    def copies_left(self, raw_title):
        return self.copies_by_title.get(comparable_title(raw_title), 0)

    def borrow(self, raw_title):
        if self.copies_left(raw_title) == 0:
            raise UnknownTitle(raw_title)
        self.copies_by_title[comparable_title(raw_title)] -= 1
        return self.copies_left(raw_title)
''',
    "lending/fines.py": '''"""What late readers pay."""


def days_late(days_out, max_days):
    return max(0, days_out - max_days)


def fine_for(days_out, max_days=28, fine_per_day=0.2):
    """Euros for a book that was out for some days."""
    return round(days_late(days_out, max_days) * fine_per_day, 2)
''',
    "test_catalogue.py": """import unittest

from lending.catalogue import Catalogue, UnknownTitle
from lending.fines import fine_for
from lending.titles import shelf_mark


class TestCatalogue(unittest.TestCase):
    def setUp(self):
        self.catalogue = Catalogue()
        self.catalogue.add_copies("The Magic  Mountain", 2)

    def test_copies_left(self):
        self.assertEqual(self.catalogue.copies_left("the magic mountain"), 2)

    def test_borrow(self):
        self.assertEqual(self.catalogue.borrow("The Magic Mountain"), 1)

    def test_borrow_unknown(self):
        with self.assertRaises(UnknownTitle):
            self.catalogue.borrow("Emma")

    def test_never_more_than_the_shelf_holds(self):
        self.catalogue.add_copies("Emma", 40)
        self.assertEqual(self.catalogue.copies_left("Emma"), 12)


class TestFines(unittest.TestCase):
    def test_late(self):
        self.assertAlmostEqual(fine_for(33), 1.0)

    def test_in_time(self):
        self.assertEqual(fine_for(20), 0)


class TestShelfMark(unittest.TestCase):
    def test_mark(self):
        self.assertIn("MAN", shelf_mark("The Magic Mountain", "Mann"))
        self.assertEqual(shelf_mark("Emma", "Austen"), "AUS-e")


if __name__ == "__main__":
    unittest.main()
""",
}

SENSORS = {
    "readings.py": '''"""Readings of the weather mast."""

SAMPLE_SECONDS = 30
OFFSET_CELSIUS = -1.5
FIRMWARE = "4.0.11"


def usable_readings(raw_readings, lowest=-40.0, highest=60.0):
    """Readings that the sensor can really have measured."""
    return [value for value in raw_readings if lowest <= value <= highest]


def corrected(raw_readings):
    return [round(value + OFFSET_CELSIUS, 1) for value in usable_readings(raw_readings)]


def summary_line(station_name, raw_readings):
    values = corrected(raw_readings)
    if not values:
        return f"{station_name}: no data"
    return f"{station_name}: {min(values)} to {max(values)}"
''',
    "test_readings.py": """from readings import corrected, summary_line


def test_corrected():
    assert corrected([20.0, 99.0, 3.25]) == [18.5, 1.8]


class TestSummaryLine:
    def test_range(self):
        assert summary_line("Kap Arkona", [10.0, 12.0]) == "Kap Arkona: 8.5 to 10.5"

    def test_nothing(self):
        assert "no data" in summary_line("Kap Arkona", [99.0])
""",
    "config/sensor-map.json": '{\n  "mastHeight": 10,\n  "uplinkUrl": "http://10.0.3.7:8086",\n'
    '  "keepRaw": true,\n  "owner": "t.ibrahim@mast.example"\n}\n',
    "docs/field-guide.md": "# Field guide\n\n## Before you climb\n\n- [ ] switch off the heater\n- [x] sign the log\n\n"
    "## Afterwards\n\nCall the Greifswald office.\n",
    "data/2024-readings.csv": "day,low,high\n2024-01-01,-3.5,2.1\n2024-01-02,-4.0,1.9\n",
    "scripts/export_readings.py": 'from pathlib import Path\n\nTARGET = Path("export")\n\n\ndef main():\n'
    '    print(f"writing to {TARGET}")\n\n\nif __name__ == "__main__":\n    main()\n',
}
