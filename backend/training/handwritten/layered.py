"""Fifty more tasks, in the words that developers type: bugs behind what the tests call, checks that fail after the work,
two things in one request, values and names that no list has.
"""

from __future__ import annotations

from k3agent.backend.training.handwritten.checks import (
    Check,
    contains,
    created,
    evaluates,
    honest,
    moved,
    renamed,
    replaced,
    says,
    says_any,
)
from k3agent.backend.training.handwritten.tasks import Row

RATES, AMOUNTS, INVOICE = "billing/rates.py", "billing/amounts.py", "billing/invoice.py"
TITLES, CATALOGUE, FINES = "lending/titles.py", "lending/catalogue.py", "lending/fines.py"
READINGS, SENSOR_MAP, GUIDE = "readings.py", "config/sensor-map.json", "docs/field-guide.md"

LAYERED_BUGS: list[tuple[str, str, str, str, str]] = [
    (
        "billing",
        AMOUNTS,
        "quantity * unit_price",
        "quantity + unit_price",
        "pytest is red since my last commit. find out why and fix it pls",
    ),
    (
        "billing",
        AMOUNTS,
        "share + 1 if index < leftover",
        "share + 1 if index > leftover",
        "test_shares fails, the cents are off. Can you repair that?",
    ),
    (
        "billing",
        AMOUNTS,
        "net_amount + net_amount * VAT_PERCENT",
        "net_amount - net_amount * VAT_PERCENT",
        "test_with_vat",
    ),
    (
        "billing",
        INVOICE,
        "self.customer.strip()",
        "self.customer.lower()",
        "headline() shows the customer in lower case. Should be as typed, without the space in front.",
    ),
    ("billing", INVOICE, "num_payers < 1", "num_payers > 1", "make tests/test_invoice.py green again"),
    (
        "billing",
        INVOICE,
        "INV-[0-9]{4}",
        "INV-[0-9]{2}",
        "is_invoice_number gives the wrong answer for INV-2041",
    ),
    (
        "lending",
        TITLES,
        '" ".join(raw_title.split())',
        '"".join(raw_title.split(" ", 1))',
        "Run the tests and fix what's broken.",
    ),
    (
        "lending",
        CATALOGUE,
        "self.copies_left(raw_title) + num_copies",
        "self.copies_left(raw_title) * num_copies",
        "test_borrow fails with UnknownTitle although the book was added. Please fix.",
    ),
    (
        "lending",
        FINES,
        "days_out - max_days",
        "max_days - days_out",
        "people who are late pay nothing (see test_late), repair this",
    ),
    ("lending", TITLES, "author_surname[:3]", "author_surname[3:]", "shelf_mark is broken"),
    (
        "sensors",
        READINGS,
        "lowest <= value <= highest",
        "lowest <= value >= highest",
        "the tests don't pass, why? fix it",
    ),
    (
        "sensors",
        READINGS,
        "value + OFFSET_CELSIUS",
        "value * OFFSET_CELSIUS",
        "Something's wrong with corrected: it multiplies the offset. Tests should pass afterwards.",
    ),
]

# (project, file, old, new, prompt, check command, what must hold besides passing tests, files that change)
CHECKED: list[tuple[str, str, str, str, str, str, Check, tuple[str, ...]]] = [
    (
        "billing",
        AMOUNTS,
        "subtotal - subtotal * percent_off",
        "subtotal + subtotal * percent_off",
        "Set REMINDER_DAYS to 21",
        "python -m pytest -q",
        evaluates("from billing.rates import REMINDER_DAYS as d; assert d == 21", RATES, AMOUNTS),
        (RATES, AMOUNTS),
    ),
    (
        "lending",
        CATALOGUE,
        "raw_title)] -= 1",
        "raw_title)] += 1",
        "rename fine_for to late_fee everywhere",
        "python -m unittest",
        evaluates(
            "from lending.fines import late_fee as f; assert f(33) == 1.0",
            CATALOGUE,
            FINES,
            "test_catalogue.py",
        ),
        (CATALOGUE, FINES, "test_catalogue.py"),
    ),
    (
        "sensors",
        READINGS,
        "min(values)} to {max(values)",
        "max(values)} to {min(values)",
        'add the line "2024-01-03,-2.2,4.0" to data/2024-readings.csv',
        "python -m pytest",
        contains("data/2024-readings.csv", "2024-01-03,-2.2,4.0", others=(READINGS,)),
        (READINGS, "data/2024-readings.csv"),
    ),
]

LAYERED: list[Row] = [
    ("list", "sensors", "whats in the config dir", says("sensor-map.json")),
    ("list", "billing", "list the python files under billing/", says("rates.py", "amounts.py", "invoice.py")),
    ("find", "sensors", "which file mentions Greifswald?", says(GUIDE)),
    ("find", "sensors", "find the csv", says("data/2024-readings.csv")),
    ("where", "lending", "where's UnknownTitle raised from, I mean where is it defined", says(CATALOGUE)),
    ("where", "billing", "which files use split_evenly?", says(AMOUNTS, INVOICE)),
    ("explain", "billing", "what's exchange_fee set to?", says("-0.35")),
    ("explain", "sensors", "value of uplinkUrl in @config/sensor-map.json", says("http://10.0.3.7:8086")),
    ("explain", "lending", "show me fine_for", says("round(", "fine_per_day")),
    ("explain", "billing", "what does split_evenly return?", says_any("share")),
    ("setvalue", "billing", "vat_percent is 20 from january on", replaced(RATES, ("= 19", "= 20"))),
    ("setvalue", "billing", "EXCHANGE_FEE -> -1.25", replaced(RATES, ("-0.35", "-1.25"))),
    (
        "setvalue",
        "billing",
        "change VALID_FROM to 2025-02-28 and REMINDER_DAYS to 10",
        replaced(RATES, ("2023-11-05", "2025-02-28"), ("REMINDER_DAYS = 14", "REMINDER_DAYS = 10")),
    ),
    (
        "setvalue",
        "billing",
        "our support mail is now hallo@kirschbaum.example, update SUPPORT_EMAIL",
        replaced(RATES, ("billing@kirschbaum.example", "hallo@kirschbaum.example")),
    ),
    (
        "setvalue",
        "billing",
        "bump the version in pyproject.toml to 2.15.0",
        replaced("pyproject.toml", ("2.14.0", "2.15.0")),
    ),
    (
        "setvalue",
        "billing",
        "PORTAL_URL should be https://kunden.kirschbaum.example/v2/login?lang=de",
        replaced(
            RATES,
            ("https://portal.kirschbaum.example/login", "https://kunden.kirschbaum.example/v2/login?lang=de"),
        ),
    ),
    (
        "setvalue",
        "sensors",
        "in @config/sensor-map.json set mastHeight to 12 and keepRaw to false",
        replaced(
            SENSOR_MAP, ('"mastHeight": 10', '"mastHeight": 12'), ('"keepRaw": true', '"keepRaw": false')
        ),
    ),
    (
        "setvalue",
        "sensors",
        "offset is -0.75 after the calibration",
        replaced(READINGS, ("= -1.5", "= -0.75")),
    ),
    (
        "setvalue",
        "lending",
        "max_days 21 in settings.ini",
        replaced("settings.ini", ("max_days = 28", "max_days = 21")),
    ),
    (
        "rename",
        "billing",
        "rename discounted_subtotal to netto_nach_rabatt",
        renamed("discounted_subtotal", "netto_nach_rabatt"),
    ),
    (
        "rename",
        "lending",
        "comparable_title -> normalised_title pls",
        renamed("comparable_title", "normalised_title"),
    ),
    (
        "rename",
        "lending",
        "UnknownTitle should be NoSuchBook. All files.",
        renamed("UnknownTitle", "NoSuchBook"),
    ),
    (
        "rename",
        "sensors",
        "mv docs/field-guide.md to docs/climbing-guide.md",
        moved(GUIDE, "docs/climbing-guide.md"),
    ),
    (
        "replace",
        "sensors",
        "the office moved: Greifswald -> Stralsund in the field guide",
        replaced(GUIDE, ("Greifswald", "Stralsund")),
    ),
    (
        "replace",
        "sensors",
        'check off "switch off the heater" in docs/field-guide.md',
        replaced(GUIDE, ("- [ ] switch", "- [x] switch")),
    ),
    (
        "replace",
        "billing",
        "move is_invoice_number into a new module billing/numbering.py, imports included",
        evaluates(
            "import billing.numbering as n, billing.invoice as i; assert n.is_invoice_number('INV-2041');"
            " assert 'def is_invoice_number' not in open('billing/invoice.py').read()",
            INVOICE,
            "billing/numbering.py",
            "tests/test_invoice.py",
        ),
    ),
    (
        "addline",
        "billing",
        "append '- discounts come before tax' to docs/rounding-rules.md",
        contains("docs/rounding-rules.md", "- discounts come before tax"),
    ),
    (
        "addline",
        "sensors",
        "2 new lines at the end of data/2024-readings.csv: 2024-01-03,-1.0,3.3 and 2024-01-04,0.4,5.8",
        contains("data/2024-readings.csv", "2024-01-03,-1.0,3.3", "2024-01-04,0.4,5.8"),
    ),
    ("addline", "billing", "import decimal in billing/amounts.py", contains(AMOUNTS, "import decimal")),
    (
        "addfunc",
        "lending",
        "add a docstring to copies_left",
        evaluates("from lending.catalogue import Catalogue as c; assert c.copies_left.__doc__", CATALOGUE),
    ),
    (
        "addfunc",
        "billing",
        "with_vat has no docstring, write one",
        evaluates("from billing.amounts import with_vat as f; assert f.__doc__ and f(100) == 119", AMOUNTS),
    ),
    (
        "addfunc",
        "sensors",
        "readings.py needs a function spread(values) that returns the largest minus the smallest of values",
        evaluates("from readings import spread as f; assert f([2, 9, 4]) == 7", READINGS),
    ),
    (
        "create",
        "sensors",
        "touch config/overrides.json, leave it empty",
        created("config/overrides.json", ""),
    ),
    (
        "create",
        "lending",
        "create docs/opening-hours.md with\n```\n# Opening hours\n\nMon-Thu 9:30-18:00\nFri closed\n```",
        created("docs/opening-hours.md", "# Opening hours\n\nMon-Thu 9:30-18:00\nFri closed"),
    ),
    (
        "create",
        "billing",
        "new file billing/countries.py:\nHOME = 'DE'\nNEIGHBOURS = ['CH', 'AT']",
        created("billing/countries.py", "HOME = 'DE'\nNEIGHBOURS = ['CH', 'AT']"),
    ),
    ("run", "sensors", "run scripts/export_readings.py and show the output", says("writing to export")),
    ("run", "lending", "do the unit tests pass", says_any("pass")),
    ("refuse", "billing", "rename calc_skonto to cash_discount", honest),
    ("refuse", "sensors", "set BAUD_RATE to 9600", honest),
    ("refuse", "lending", "what did Emma cost us last year?", honest),
]
