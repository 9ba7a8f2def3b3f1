"""A recipe file or mapping, and ``key=value`` overrides -> Resolved: a Recipe and where its values came from.

``schema`` is the tree of keys, ``load`` reads, ``presets`` holds the papers' objectives, ``checks`` refuses
what cannot work, ``derived`` says what follows from a recipe. Lies beneath every other folder and imports
none of them.
"""
