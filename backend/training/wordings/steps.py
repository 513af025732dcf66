"""Frames for several wishes in one message: numbered, with dashes, in one sentence; and a change with its commit."""

from random import Random

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
    ),
    "held_out": (
        "{0}. And please commit the result", "{0}, and don't forget to commit", "{0}. That should be committed as well", "{0} + commit",
        "{0}. I want that committed when you're done", "{0}\n\nCommit when finished, you can choose the message", "{0}, commit included",
        "once you've done this, commit: {0}",
    ),
}  # fmt: skip


def listed(texts: list[str], rng: Random, part: str) -> str:
    """Two to four wishes in one message."""
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
