"""Which lines people see of a failed check, and of an answer that found no end."""

import pytest

from k3agent.agent.excerpts import head_and_end, repeats_itself, telling_lines

NODE = """TAP version 13
# Subtest: throws TypeError
ok 1 - throws TypeError
# Subtest: adds
not ok 2 - adds
  ---
  duration_ms: 0.9
  location: '/w/sum.test.js:4:1'
  error: |-
    Expected values to be strictly equal:

    -1 !== 5

  code: 'ERR_ASSERTION'
  ...
1..2
# tests 2
# suites 0
# pass 1
# fail 1
# cancelled 0
# skipped 0
# todo 0
# duration_ms 48.1
"""
SPEC = """✔ throws TypeError (0.4ms)
✖ adds (0.8ms)
ℹ tests 2
ℹ fail 1
ℹ duration_ms 50

✖ failing tests:

test at sum.test.js:4:1
✖ adds (0.8ms)
  AssertionError [ERR_ASSERTION]: Expected values to be strictly equal
      at TestContext.<anonymous> (sum.test.js:5:3) {
    generatedMessage: true,
    code: 'X',
    actual: -1,
    expected: 5,
    operator: 'strictEqual'
  }
"""
PYTEST = """    def test_add():
>       assert add(2, 3) == 5
E       assert -1 == 5
test_sum.py:4: AssertionError
=========== short test summary info ===========
FAILED test_sum.py::test_add - assert -1 == 5
1 failed in 0.02s
"""
GO = """--- FAIL: TestAdd (0.00s)
    add_test.go:8: got -1, want 5
FAIL
FAIL\tsum\t0.002s
FAIL
"""


def test_lines_of_failures_come_before_the_statistics_that_close_a_run() -> None:
    assert [line.strip() for line in telling_lines(NODE, 4)] == [
        "not ok 2 - adds",
        "error: |-",
        "Expected values to be strictly equal:",
        "-1 !== 5",
    ]
    said = telling_lines(SPEC, 4)
    assert said[0] == "✖ adds (0.8ms)" and "AssertionError" in said[3]


@pytest.mark.parametrize(("output", "last"), [(PYTEST, "1 failed in 0.02s"), (GO, "FAIL")])
def test_last_lines_stay_where_they_tell_of_the_failure(output: str, last: str) -> None:
    assert telling_lines(output, 4) == output.splitlines()[-4:] and output.splitlines()[-1] == last


def test_passed_tests_with_telling_names_are_no_failures() -> None:
    output = "".join(f"ok {n} - raises ValueError\n" for n in range(9)) + "not ok 9 - adds\n" + "# done\n" * 9
    assert telling_lines(output, 4) == ["not ok 9 - adds"]


def test_output_that_tells_nothing_or_is_short_is_shown_as_it_is() -> None:
    plain = "".join(f"line {n}\n\n" for n in range(9))
    assert telling_lines(plain, 2) == ["line 7", "line 8"]
    assert telling_lines("a\nb\n", 4) == ["a", "b"]
    assert telling_lines("", 4) == []


@pytest.mark.parametrize(
    "text",
    [
        "I look at it.\n" + "I read the file again.\n" * 60 + "I read the fi",
        "So: " + "the same again, and " * 40,
        "start\n" + "".join(f"step {n}\nI try it once more.\n" for n in range(30)),
        "a\n" + "first line\nsecond line\nthird line\n" * 20,
    ],
)
def test_a_text_that_goes_in_circles_is_known(text: str) -> None:
    assert repeats_itself(text)
    assert len(head_and_end(text).splitlines()) <= 9


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no no no",
        "".join(f"{n}. the function number {n} of the file\n" for n in range(80)),
        "def f():\n    if x:\n        return 1\n    }\n" * 5,
        "".join(f'  "{n}": {{\n    "size": {n * n},\n  }},\n' for n in range(40)),
    ],
)
def test_lists_and_code_are_no_circles(text: str) -> None:
    assert not repeats_itself(text)


def test_of_a_long_text_head_and_end_are_shown() -> None:
    text = "\n".join(f"line {n} of them" for n in range(100))
    shown = head_and_end(text).splitlines()
    assert shown[0] == "line 0 of them" and shown[-1] == "line 99 of them"
    assert len(shown) == 41 and shown[30] == "[... 60 lines left out]"
    assert head_and_end("a\nb") == "a\nb"
    long = head_and_end("".join(f"word{n} " for n in range(9000)))
    assert len(long) < 1100 and long.startswith("word0 ") and "characters left out" in long
