"""Procedurally generated tool-use episodes: projects, tasks, the oracle that plays them and the
checkers that judge them.
"""
