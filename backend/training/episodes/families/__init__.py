"""The kinds of tasks: each goal draws its slots from a project, has an oracle that plays it and a
checker that judges it.
"""
