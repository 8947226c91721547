"""Plant small wrong changes, and see which of them the tests find: `python -m tools.mutants`.

`table.txt` describes each mutant by its meaning, and by its present place in the code.
"""
