"""Frames for several wishes in one message: numbered, with dashes, in one sentence; and a change with its commit."""

from random import Random

from k3agent.backend.training.wordings.join import is_command, join, lower_start

LISTS = {
    "train": (
        "1. {0}\n2. {1}\n3. {2}", "1) {0}\n2) {1}\n3) {2}", "- {0}\n- {1}\n- {2}", "* {0}\n* {1}\n* {2}", "{0}\n{1}\n{2}",
        "Three things:\n1. {0}\n2. {1}\n3. {2}", "Three things:\n- {0}\n- {1}\n- {2}", "Please do this:\n- {0}\n- {1}\n- {2}",
        "Please do the following:\n1. {0}\n2. {1}\n3. {2}", "My list for today:\n- {0}\n- {1}\n- {2}", "To do:\n- {0}\n- {1}\n- {2}",
        "TODO\n1. {0}\n2. {1}\n3. {2}", "Tasks:\n{0}\n{1}\n{2}", "I need three things: {0}; {1}; {2}", "I need this: {0}; {1}; and {2}",
        "first {0}. Then {1}. Finally {2}", "First {0}. Second, {1}. Third, {2}", "first {0}, then {1}, then {2}", "{0}; {1}; {2}",
        "{0}. Then {1}. Then {2}", "{0}. After that {1}. At the end {2}", "{0}. Also {1}. And {2}", "{0}, and {1}, and {2}",
        "a) {0}\nb) {1}\nc) {2}", "a) {0} b) {1} c) {2}", "step 1: {0}\nstep 2: {1}\nstep 3: {2}", "(1) {0} (2) {1} (3) {2}",
        "several changes: {0}; {1}; {2}", "a few things: {0}. {1}. {2}", "please {0}, {1}, and {2}", "can you do these three?\n- {0}\n- {1}\n- {2}",
        "could you: {0}; {1}; {2}", "One: {0}. Two: {1}. Three: {2}", "Do these in order:\n1. {0}\n2. {1}\n3. {2}", "{0}\n\n{1}\n\n{2}",
        "{0}. Next, {1}. Last, {2}", "{0}, then {1}. When that is done, {2}", "small stuff:\n- {0}\n- {1}\n- {2}",
        "the review says:\n1. {0}\n2. {1}\n3. {2}", "for the release:\n- {0}\n- {1}\n- {2}",
        "# Wishes\n\n+ {0}\n+ {1}\n+ {2}", "{0} / {1} / {2}", "It's a triple: {0} | {1} | {2}", "{0}. While you're at it, {1}. And {2}",
        "{0}. Besides that, {1}. Also {2}", "I have three tasks for you:\n1. {0}\n2. {1}\n3. {2}",
        "there are some things to do:\n- {0}\n- {1}\n- {2}", "the following needs to be done:\n- {0}\n- {1}\n- {2}",
        "{0}. Once you have that, {1}. Then {2}", "{0}\nthen {1}\nthen {2}", "could you help me with these?\n1. {0}\n2. {1}\n3. {2}",
        "1st: {0}\n2nd: {1}\n3rd: {2}", "some small edits please: {0}; {1}; {2}", "{0}, then {1}, and finally {2}", "• {0}\n• {1}\n• {2}",
        "from my colleague:\n- {0}\n- {1}\n- {2}", "{0}. The next one: {1}. And the last: {2}", "## Tasks\n- {0}\n- {1}\n- {2}",
    ),
    "held_out": (
        "here's what I need:\n- {0}\n- {1}\n- {2}", "I have a couple of small changes. {0}. {1}. {2}", "+ {0}\n+ {1}\n+ {2}",
        "[ ] {0}\n[ ] {1}\n[ ] {2}", "please make these changes:\n1) {0}\n2) {1}\n3) {2}", "to begin with, {0}; then {1}; lastly {2}",
        "i. {0}\nii. {1}\niii. {2}", "{0}. Additionally, {1}. And lastly, {2}", "A: {0}\nB: {1}\nC: {2}", "do all of this: {0}; {1}; {2}",
    ),
}  # fmt: skip
COMMITS = {
    "train": (
        "{0} and commit it with the message {1}", "{0}, then commit with the message {1}", "{0}. Then commit it as {1}",
        "{0}. Commit this with the message {1}", "{0} and commit the change as {1}", "{0}; commit message {1}", "{0}, and commit that: {1}",
        "{0}. Afterwards commit everything with the message {1}", "{0}, then make a commit with the message {1}", "{0} and make a commit: {1}",
        "{0}. When done, commit with the message {1}", "{0}. Then git commit with the message {1}", "{0}; then git commit -am {1}",
        "{0}, commit: {1}", "{0}. Please also commit it, message {1}", "{0} and check it in with the comment {1}", "first {0}, then commit as {1}",
        "1. {0}\n2. commit with the message {1}", "1. {0}\n2. git commit, message {1}", "- {0}\n- commit it as {1}", "{0}\ncommit message: {1}",
        "{0}, save it as a commit with the message {1}", "{0}. Put that into a commit called {1}", "make a commit {1} in which you {0}",
        "{0} and don't forget to commit, with the message {1}", "{0}. The commit message should be {1}", "{0}; the commit should say {1}",
        "commit {1}: {0}", "with the commit message {1}, {0} and commit", "{0}. Once that works, commit it with {1} as message",
        "{0}, and then record it in git with the message {1}", "please {0} and commit with message {1}", "could you {0} and commit it as {1}?",
        "can you {0} and then commit with the message {1}?", "{0}; add and commit it with the message {1}", "{0}. Stage and commit it: {1}",
        "{0}; git should remember that as {1}", "{0}. History entry: {1}", "{0} ({1} goes into git log)", "{0}, ci {1}",
        "as revision {1}: {0}", "{0} and commit (message {1})", "{0}, commit -m {1}", "{0} && git commit -am {1}",
        "{0}. I want a commit for that: {1}",
        "{0}. It should be committed as {1}", "{0}, and create a commit {1} for it", "{0}. Then create a git commit, {1}",
        "{0}; when finished, commit the result as {1}", "two things: {0}, and commit it with the message {1}", "{0}\nthen commit: {1}",
        "{0}\ngit commit -m {1}", "{0}. Commit when ready, with {1}", "{0}, and commit. Use {1} as the message", "{0} (commit message: {1})",
        "{0}, commit included, the message is {1}", "{0}. Make that one commit, {1}", "{0}. Please put it in a commit {1}", "{0}, commit with {1}",
        "{0} and then commit it: {1}", "{0} and then commit with {1}", "{0} and commit your change, message: {1}", "{0}. Commit text: {1}",
        "{0}. After the edit run git commit -m {1}", "{0}; once done, git commit -m {1}", "{0}, git add and git commit -m {1}",
        "{0}. It needs a commit too: {1}", "{0}. Also commit it ({1})", "{0}. Also create a commit with the message {1}", "{0}\n\nCommit: {1}",
        "{0}\n\nCommit message: {1}", "{0}\nmsg: {1}, please commit", "{0}. Commit it under {1}", "{0}, and commit under the title {1}",
        "{0}. Title of the commit: {1}", "{0}, committed with the subject {1}", "{0}. Subject line for git: {1}", "{0}, then commit ({1})",
        "after you {0}, commit with the message {1}", "I want you to {0} and to commit it as {1}", "I need you to {0} and commit with {1}",
        "help me {0}, and commit that as {1}", "{0}. The change should end up in a commit called {1}", "{0}; log it in git as {1}",
        "{0} and save that in git as {1}", "{0}, stage it, commit it with {1}", "let's {0} and commit it with the message {1}",
        "{0}. Then a commit, message {1}", "{0}. One commit for that please: {1}", "{0}. Commit only this, with {1}", "both: {0}, and a commit {1}",
    ),
    "held_out": (
        "{0}. When you're done, please commit that using the message {1}", "{0}, and I'd like that committed as {1}", "{0} + commit ({1})",
        "{0}. This should be a commit of its own, {1}", "{0}. Don't leave it uncommitted, the message is {1}", "{0}, and please commit, {1}",
        "two steps: {0}, then git commit -m {1}", "{0}\n\nand then commit, msg {1}", "{0}. Message for the commit: {1}",
    ),
}  # fmt: skip


COMMITS_OWN = {
    "train": (
        "{0} and commit", "{0} and commit it", "{0} and commit that", "{0} and commit the change", "{0}, then commit", "{0}, then commit it",
        "{0}. Then commit", "{0}. Then commit it", "{0}. Commit it afterwards", "{0}. Commit this", "{0}. Please commit it too", "{0}; commit",
        "{0}; then make a commit", "{0} and make a commit", "{0}, and commit everything", "{0} and then git commit", "{0} && git commit",
        "{0}. When done, commit", "{0}. When that's done, make a commit", "{0} and check it in", "{0}, then check that in", "{0}. Git commit too",
        "1. {0}\n2. commit", "1. {0}\n2. commit the change", "- {0}\n- commit it", "{0}\nthen commit", "first {0}, then commit",
        "could you {0} and commit that?", "can you {0} and then commit?", "two things: {0}, and commit the result",
        "{0} and commit it with a fitting message", "{0}. Commit it with a good message", "{0}, then commit with a message of your choice",
        "{0}. Make a commit of it", "{0}. Make a commit out of that", "{0}. Make that a commit", "{0}. It should be in a commit too", "{0}. Also commit",
        "{0}. Also commit it", "{0} and also commit it", "{0} and commit your change", "{0} and commit your work", "{0}. Commit your work", "{0}. Then a commit",
        "{0}. Then save it in git", "{0} and save that in git", "{0} and record it in git", "{0}. Put it into a commit", "{0} and put it into a commit",
        "{0}, stage and commit", "{0}; stage it and commit it", "{0}, git add, git commit", "{0}, then git add and git commit", "{0}, commit the edit",
        "{0} and commit the edit", "{0} and commit the result", "{0}. Commit afterwards, any message", "{0}, commit with any message",
        "{0}. Commit it, you know how to word it", "{0}. Commit it, pick a message", "{0} and commit with a sensible message", "after you {0}, commit",
        "after you {0}, make a commit", "please {0} and commit it", "please {0}, then commit", "I want you to {0} and commit it", "I need you to {0} and then commit",
        "let's {0} and commit it", "help me {0} and commit", "{0}\ncommit it", "{0}\n\nThen commit please", "{0}. A commit for this, too", "{0}; commit when done",
        "{0}. Commit as soon as it's done", "{0}. Once done, commit", "{0}. Once that's done, please commit", "could you {0} and make a commit?",
        "can you {0}? Commit it as well", "{0}. With a commit please", "{0}, plus a commit", "{0}, and a commit for it", "both please: {0}, and commit",
        "{0}. The commit too please", "{0} and commit, thanks", "{0}. I'd like a commit of that", "{0}. We need a commit for it",
    ),
    "held_out": (
        "{0}. And please commit the result", "{0}, and don't forget to commit", "{0}. That should be committed as well", "{0} + commit",
        "{0}. I want that committed when you're done", "{0}\n\nCommit when finished, you can choose the message", "{0}, commit included",
        "once you've done this, commit: {0}",
    ),
}  # fmt: skip


HEADS = (
    "{n} things:", "{n} things please:", "{n} small things:", "{n} tasks:", "{n} changes:", "{n} items for you:", "do these {n}:",
    "I have {n} things:", "I've got {n} tasks for you:", "there are {n} things to do:", "can you do these {n} things?",
    "could you take care of these?", "please do all of these:", "please do these:", "do the following:", "what I need:", "what I'd like:",
    "I need a few things:", "a couple of things:", "some things I noticed:", "leftovers from yesterday:", "before the release:",
    "for this branch:", "for the next commit:", "review comments:", "feedback from the review:", "from the ticket:", "the ticket says:",
    "checklist:", "todo list:", "to-do:", "next steps:", "open points:", "cleanup:", "housekeeping:", "small fixes:", "quick changes:",
    "hi, {n} things:", "hey, could you do these?", "ok, {n} more things:", "now these:", "one after the other:", "in this order please:",
    "work through this:", "work through this list:", "go through these in order:", "handle these:", "all of these please:",
    "we agreed on this:", "here are my notes:", "here is the list:", "this is what's left:", "this needs doing:", "my wishes:",
    "acceptance criteria:", "### Tasks", "# TODO", "Steps:", "Plan:", "Agenda:",
)  # fmt: skip
MARKS = (
    "{i}. ",
    "{i}. ",
    "{i}. ",
    "{i}) ",
    "{i}) ",
    "({i}) ",
    "- ",
    "- ",
    "- ",
    "* ",
    "* ",
    "\u2022 ",
    "",
    "",
    "{a}) ",
    "{a}. ",
    "#{i} ",
    "{i}: ",
    "step {i}: ",
    "> ",
    "-> ",
    "  - ",
    "- [ ] ",
    "\u2013 ",
)
"""What stands before each wish of a list; training's only."""
CHAINS = (
    ("", ", then ", ", then ", ""), ("", ", and then ", ", and then ", ""), ("", " and then ", ", then ", ""), ("", " and ", " and ", ""),
    ("", ", ", ", and ", ""), ("", ", ", ", and also ", ""), ("", "; ", "; ", ""), ("", "; ", "; and ", ""), ("", "; then ", "; then ", ""),
    ("", ". Then ", ". Then ", ""), ("", ". Also ", ". Also ", ""), ("", ". Also, ", ". And ", ""), ("", ". After that, ", ". Finally, ", ""),
    ("", ". Next, ", ". Finally ", ""), ("", ". And ", ". And ", ""), ("", ". Then ", ". After that, ", ""), ("", ". ", ". ", ""),
    ("first ", ", then ", ", finally ", ""), ("first ", ", then ", ", and last ", ""), ("First ", ". Then ", ". Finally, ", ""),
    ("first ", ", second ", ", third ", ""), ("start with this: ", "; then ", "; then ", ""), ("please ", ", ", " and ", ""),
    ("please ", ", then ", ", then ", "."), ("can you ", ", ", " and ", "?"), ("can you ", ", then ", ", and then ", "?"),
    ("could you ", ", and also ", ", and ", "?"), ("could you ", " and ", " and ", "?"), ("I need you to ", ", ", " and ", ""),
    ("I want you to ", ", then ", ", then ", ""), ("I'd like you to ", ", ", ", and ", ""), ("you should ", " and ", " and ", ""),
    ("", ", plus ", ", plus ", ""), ("", " + ", " + ", ""), ("", " && ", " && ", ""), ("", " & ", " & ", ""), ("", ", afterwards ", ", and at the end ", ""),
    ("", "; besides, ", "; and ", ""), ("", ". Besides that, ", ". Lastly, ", ""), ("", ". While you are there, ", ". And ", ""),
    ("", ". Oh, and ", ". And one more: ", ""), ("", ". One more thing: ", ". And: ", ""), ("", ". When that's done, ", ". Then ", ""),
    ("", ". Once that works, ", ". After that ", ""), ("", ". Furthermore, ", ". Moreover, ", ""), ("", ", as well as: ", ", and: ", ""),
    ("", " -> ", " -> ", ""), ("", " => ", " => ", ""), ("", " | ", " | ", ""), ("", "\nand then ", "\nand then ", ""), ("", "\nalso ", "\nalso ", ""),
    ("", "\nThen ", "\nFinally ", ""), ("", ",\n", ",\n", ""), ("", ";\n", ";\n", ""), ("", ".\n", ".\n", "."), ("", "\n\n", "\n\n", ""),
    ("", ". Same session: ", ". Then: ", ""), ("", "... and ", "... and ", ""), ("both: ", " and ", " and ", ""), ("", ". In addition ", ". And ", ""),
    ("do this: ", ", and this: ", ", and this: ", ""), ("", ", next ", ", and finally ", ""), ("", "; also ", "; and also ", ""),
)  # fmt: skip
"""What stands before the first wish, between two, before the last of three or more, and at the end; training's only."""
_LOOSE = tuple(
    row
    for row in CHAINS
    if (not row[0] or row[0].endswith(": ")) and any(sign in ".;|>\n" for sign in row[1])
)
"""Those that also hold questions and statements."""
NUMBERS = {2: ("two", "2", "a couple of"), 3: ("three", "3", "a few"), 4: ("four", "4", "some")}


def listed(texts: list[str], rng: Random, part: str) -> str:
    """Two to four wishes in one message."""
    if part == "train":
        roll = rng.random()
        if len(texts) == 2 and roll < 0.25:
            return join(texts[0], texts[1], rng)
        if len(texts) != 3 or roll < 0.65:
            return _running(texts, rng) if rng.random() < 0.5 else _marked(texts, rng)
    frame = _pick(LISTS, rng, part)
    if len(texts) == 3:
        return frame.format(*texts)
    lines = frame.split("\n")
    marked = [line for line in lines if "{1}" in line and "{0}" not in line and "{2}" not in line]
    if not marked or any(sign.isalnum() for sign in marked[0].replace("{1}", "")):
        mark = rng.choice(("- ", "* ", "", "- "))
        return "\n".join(f"{mark}{text}" for text in texts)
    mark = marked[0].partition("{1}")[0]
    return "\n".join(f"{mark}{text}" for text in texts)


def _marked(texts: list[str], rng: Random) -> str:
    """The wishes one below the other, with or without a line above them."""
    mark = rng.choice(MARKS)
    rows = [f"{mark.format(i=i + 1, a='abcd'[i])}{text}" for i, text in enumerate(texts)]
    if rng.random() < 0.5:
        head = rng.choice(HEADS).format(n=rng.choice(NUMBERS[len(texts)]))
        rows.insert(0, _capital(head, rng))
        if rng.random() < 0.2:
            rows.insert(1, "")
    if rng.random() < 0.3:
        rows = [_capital(row, rng, 1.0) for row in rows]
    return "\n".join(rows)


def _running(texts: list[str], rng: Random) -> str:
    """The wishes in one sentence, or in some that follow each other."""
    fitting = CHAINS if all(is_command(text) for text in texts) else _LOOSE
    start, between, last, end = rng.choice([row for row in fitting if row[0] != "both: " or len(texts) == 2])
    text = start + lower_start(texts[0])
    for index, wish in enumerate(texts[1:], 1):
        link = last if index > 1 and index == len(texts) - 1 else between
        stopped = text.endswith((".", "?", "!"))
        text += (link[1:] if stopped and link[0] in ",.;" else link) + lower_start(wish)
    return _capital(text, rng) + ("" if text.endswith((".", "?", "!")) else end)


def _capital(text: str, rng: Random, share: float = 0.4) -> str:
    """With a capital at the start, now and then, where the first word is a common one."""
    common = lower_start(text[:1].upper() + text[1:]) == text
    return text[:1].upper() + text[1:] if common and rng.random() < share else text


def committed(wish: str, message: str, rng: Random, part: str) -> str:
    """A change and the message of the commit that it goes into."""
    mark = rng.choice(('"', '"', "'", "`"))
    text = f"{mark}{message}{mark}" if mark not in message else message
    return _pick(COMMITS, rng, part).format(wish, text)


def committed_own(wish: str, rng: Random, part: str) -> str:
    """A change and a commit of it, whose message is not given."""
    return _pick(COMMITS_OWN, rng, part).format(wish)


def _pick(frames: dict[str, tuple[str, ...]], rng: Random, part: str) -> str:
    chosen = frames["train" if part == "train" else "held_out"]
    return chosen[int(rng.random() * len(chosen))]
