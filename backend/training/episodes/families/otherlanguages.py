"""The main goals of the first edition, and of git, asked for in German and Chinese and answered so."""

from k3agent.backend.training.episodes.registry import GOALS, Maker, Setting, goal
from k3agent.backend.training.episodes.session import Plan
from k3agent.backend.training.episodes.tongues import LANGUAGES, in_language
from k3agent.backend.training.wordings import tongues

MAIN = {
    "list_root": 2,
    "list_dir": 2,
    "list_ext": 2,
    "find_file": 3,
    "find_text": 3,
    "where_defined": 3,
    "where_used": 3,
    "explain": 4,
    "show_file": 2,
    "value_of": 3,
    "set_const": 4,
    "set_key": 3,
    "rename": 4,
    "replace_text": 4,
    "add_line_end": 4,
    "create_file": 4,
    "run_tests": 2,
    "fix_tests": 4,
    "show_def": 2,
    "set_const_in": 2,
    "key_value": 1.5,
    "delete_file": 1.5,
    "delete_def": 1.5,
    "delete_line": 1.5,
    "rename_file": 1.5,
    "add_import": 1.5,
    "add_const": 1.5,
    "count_lines": 1,
    "list_defs": 1.5,
    "git_commit": 2,
    "git_changed": 1.5,
    "git_commit_own": 1.5,
    "git_branch": 1,
    "git_switch": 1,
    "git_current": 0.7,
    "git_diff": 1,
    "git_last_commit": 0.8,
    "add_key": 1.2,
    "add_bullet": 1,
    "tick_checkbox": 1,
    "move_file": 1,
    "is_used": 1,
    "missing": 3,
    "near_name": 1,
    "two_names": 1,
    "two_files": 1,
    "refuse_out_of_scope": 1,
    "vague": 1,
    "greet": 0.5,
    "thanks": 0.4,
    "who_are_you": 0.4,
    "what_can_you_do": 0.4,
}
"""Goals and how often they come; some makers draw a goal of their own, which must have wordings here."""


def draw_main(ctx: Setting, language: str) -> Plan | None:
    """A plan of one of the goals, asked for in the language."""
    known = tongues.GOALS[language]
    for _ in range(12):
        name = ctx.rng.choices(list(MAIN), list(MAIN.values()))[0]
        plan = GOALS[name].make(ctx)
        if plan is None or plan.goal not in known or plan.prompt is not None:
            continue
        if set(plan.slots) - set(known[plan.goal].slots):
            continue
        prompt = tongues.phrase(language, plan.goal, plan.slots, ctx.rng, ctx.words.part)
        return in_language(plan, language, language, prompt)
    return None


def _maker(language: str) -> Maker:
    return lambda ctx: draw_main(ctx, language)


for _language in LANGUAGES:
    goal(f"main_{_language}", _language, 1.0, level=1)(_maker(_language))
