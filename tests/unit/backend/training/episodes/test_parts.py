"""Words, functions, bugs, explanations, values, test output, and fast Python runs against a real shell."""

import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from k3agent.backend.training.episodes import words as words_module
from k3agent.backend.training.episodes.classes import class_concepts, draw_class_sample, find_class_bug
from k3agent.backend.training.episodes.concepts import concepts, instantiate, random_concept, same_results
from k3agent.backend.training.episodes.explain import explain_python
from k3agent.backend.training.episodes.expressions import described_function
from k3agent.backend.training.episodes.families.values import fit_value, split_value
from k3agent.backend.training.episodes.mutate import candidates, find_bug, with_bug
from k3agent.backend.training.episodes.outputs import Look
from k3agent.backend.training.episodes.project import draw_project
from k3agent.backend.training.episodes.testruns import name_under_test, parse_run
from k3agent.backend.training.episodes.words import Words
from k3agent.backend.training.episodes.zygote import Zygote, parse_python


def test_held_out_words_are_apart() -> None:
    for train, held_out in zip(words_module.POOLS[False], words_module.POOLS[True], strict=True):
        assert not set(train) & set(held_out)
        assert len(held_out) > 10


def test_every_concept_works_in_every_form() -> None:
    rng = random.Random(1)
    for concept in concepts():
        assert any(instantiate(concept, rng, Words(rng)) for _ in range(10)), concept.names


def test_described_functions_do_what_their_cases_say() -> None:
    rng = random.Random(2)
    for _ in range(60):
        func = described_function(rng, Words(rng))
        assert same_results("\n".join(func.source()), func)


def test_bugs_are_noticed() -> None:
    rng = random.Random(3)
    for _ in range(60):
        func = random_concept(rng, Words(rng))
        bug = find_bug(func, rng)
        if bug is not None:
            assert not same_results("\n".join(with_bug(func, bug).source()), func)


def test_no_bug_lets_a_list_grow_while_a_loop_runs_over_it() -> None:
    concept = next(item for item in concepts() if "product_all" in item.names)
    for seed in range(60):
        rng = random.Random(seed)
        func = instantiate(concept, rng, Words(rng))
        if func is None:
            continue
        for bug in candidates(func, rng):
            if "*=" in bug.right and "*=" in bug.wrong:
                assert bug.wrong.split("*=")[0] == bug.right.split("*=")[0], bug


def test_class_bugs_are_noticed() -> None:
    rng = random.Random(4)
    assert len(class_concepts()) > 10
    for _ in range(40):
        sample = draw_class_sample(rng, Words(rng))
        assert sample.works("\n".join(sample.lines))
        bug = find_class_bug(sample, rng)
        if bug is not None:
            lines = [*sample.lines[: bug.index], bug.wrong, *sample.lines[bug.index + 1 :]]
            assert not sample.works("\n".join(lines))


def test_python_files_of_projects_compile() -> None:
    rng = random.Random(5)
    for _ in range(25):
        for path, text in draw_project(rng, Words(rng)).files.items():
            if path.endswith(".py"):
                compile(text, path, "exec")


@pytest.mark.parametrize(
    ("name", "line", "parts"),
    [
        ("A", "A = 3", ("A = ", "3", "")),
        ("A", "A: int = 3  # why", ("A: int = ", "3", "  # why")),
        ("a", '  "a": "x, y",', ('  "a": ', '"x, y"', ",")),
        ("a", "a: blue", ("a: ", "blue", "")),
        ("A", "export const A = 'x';", ("export const A = ", "'x'", ";")),
        ("A", "A=3", ("A=", "3", "")),
        ("A", "    if A == 3:", None),
        ("A", "print(A, B)", None),
    ],
)
def test_values_are_cut_out_of_lines(name: str, line: str, parts: tuple[str, str, str] | None) -> None:
    assert split_value(name, line) == parts


@pytest.mark.parametrize(
    ("old", "said", "new"),
    [
        ("3", "4", "4"),
        ("'a'", "b", "'b'"),
        ('"a"', "'b'", '"b"'),
        ("True", "off", "False"),
        ("false", "True", "true"),
    ],
)
def test_values_are_written_like_the_old_one(old: str, said: str, new: str) -> None:
    assert fit_value(old, said) == new


def test_explanation_tells_parameters_and_returns() -> None:
    found = explain_python(
        ["def f(a, b=2):", '    """Add."""', "    if a:", "        return b", "    return a + b"]
    )
    assert found is not None
    assert found.params == ["a", "b=2"]
    assert found.returns == ["b", "a + b"]


def test_test_output_is_understood(tmp_path: Path) -> None:
    (tmp_path / "m.py").write_text("def add(a, b):\n    return a - b\n")
    (tmp_path / "test_m.py").write_text("from m import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    zygote = Zygote()
    try:
        output, code = zygote.run(str(tmp_path), ["-m", "pytest", "-q", "--tb=short"])
    finally:
        zygote.close()
    run = parse_run(f"{output.rstrip()}\n[exit code {code}]")
    assert not run.ok
    assert [item.name for item in run.failures] == ["test_add"]
    assert run.failures[0].places == [("test_m.py", 5, "test_add", "assert add(2, 3) == 5")]
    assert (
        name_under_test("assert add(2, 3) == 5")
        == name_under_test("self.assertEqual(m.add(2, 3), 5)")
        == "add"
    )


def plain(text: str) -> str:
    return re.sub(r"in \d+\.\d+s", "in T", text.rstrip())


@pytest.mark.parametrize(
    "arguments",
    [
        ["-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"],
        ["-m", "unittest"],
        ["m.py"],
        ["missing.py"],
        ["-c", "from m import add; print(add(1, 2))"],
    ],
)
def test_fast_runs_print_what_a_shell_shows(tmp_path: Path, arguments: list[str]) -> None:
    (tmp_path / "m.py").write_text(
        "def add(a, b):\n    return a - b\n\n\nif __name__ == '__main__':\n    print(1 / 0)\n"
    )
    (tmp_path / "test_m.py").write_text("from m import add\n\n\ndef test_add():\n    assert add(2, 3) == 5\n")
    (tmp_path / "test_u.py").write_text(
        "import unittest\nfrom m import add\n\n\nclass T(unittest.TestCase):\n"
        "    def test_add(self):\n        self.assertEqual(add(2, 3), 5)\n"
    )
    environ = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1", "PATH": "/usr/bin:/bin"}
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=tmp_path,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    zygote = Zygote()
    try:
        output, code = zygote.run(str(tmp_path), arguments)
    finally:
        zygote.close()
    assert code == done.returncode
    assert plain(output).replace("python: can't", "can't") == re.sub(
        r"^\S+: can't", "can't", plain(done.stdout.decode())
    )


def test_only_plain_python_commands_are_taken() -> None:
    assert parse_python('python -c "a; b"') == ["-c", "a; b"]
    assert parse_python("python a.py && ls") is None
    assert parse_python("python a.py > out") is None
    assert parse_python("ls") is None


def test_functions_have_cases_whatever_their_names() -> None:
    for concept in concepts("natural.txt") + concepts("varied.txt") + concepts():
        made = []
        for seed in range(12):
            rng = random.Random(seed)
            made.append(instantiate(concept, rng, Words(rng)))
        assert any(func is not None and len(func.cases) >= 2 for func in made), concept.names


def test_the_summary_names_what_fails_where_nothing_else_does() -> None:
    run = parse_run(
        ".F\n=========================== short test summary info ============================\n"
        "FAILED tests/test_a.py::TestA::test_b - NameError: na...\n"
        "!!!!!!!!!!!!!!!!!!!!!!!!!! stopping after 1 failures !!!!!!!!!!!!!!!!!!!!!!!!!!!\n"
        "1 failed, 1 passed in 0.02s\n[exit code 1]"
    )
    assert [(item.name, item.error) for item in run.failures] == [("test_b", "NameError: na...")]
    assert run.summary == "1 failed, 1 passed" and not run.ok


def test_other_computers_print_the_same_counts_and_failures() -> None:
    output = (
        "F.                                                                       [100%]\n"
        "=================================== FAILURES ===================================\n"
        "____________________________________ test_a ____________________________________\n"
        "test_a.py:6: in test_a\n    assert f(1, 0) == 2\n           ^^^^^^^\n"
        "test_a.py:2: in f\n    return a / b\n           ^^^^^\nE   ZeroDivisionError: division by zero\n"
        "=========================== short test summary info ============================\n"
        "FAILED test_a.py::test_a - ZeroDivisionError: division by zero\n1 failed, 1 passed in 0.29s"
    )
    seen = set()
    for seed in range(200):
        shown = Look.draw(random.Random(seed)).pytest_output(output, "/work/x")
        run = parse_run(f"{shown}\n[exit code 1]")
        assert run.summary.startswith("1 failed, 1 passed") and " in " not in run.summary
        assert [item.name for item in run.failures] == ["test_a"]
        assert run.failures[0].places[-1][:3] == ("test_a.py", 2, "f")
        assert run.failures[0].error == "ZeroDivisionError: division by zero"
        seen.add(shown)
    assert len(seen) > 150
    for part in ("warnings.warn", "coverage", "bringing up nodes...", "_UNSET", "warnings summary"):
        assert any(part in text for text in seen), part
    looks = [Look.draw(random.Random(seed)) for seed in range(400)]
    noisy = [look for look in looks if look.before or look.warned or look.coverage or look.nodes]
    assert 100 < len(noisy) < 200
