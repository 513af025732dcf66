"""`todo` and `ask`."""


async def test_todo_replaces_the_list(ctx, call):
    items = [{"text": "look", "status": "done"}, {"text": "act", "status": "active"}]
    assert await call("todo", items=items) == "[x] look\n[>] act"
    assert ctx.todo == items
    assert await call("todo", items=[]) == "The list is empty."
    assert ctx.todo == []


async def test_ask_gives_the_answer(ctx, call):
    async def answer(question):
        assert (question.text, question.options) == ("Which?", ("a", "b"))
        return " b \n"

    ctx.ask = answer
    assert await call("ask", question="Which?", options=["a", "b"]) == "b"


async def test_ask_fails_where_nobody_is(call):
    assert await call.error("ask", question="Which?") == "Nobody can answer: Which?"
