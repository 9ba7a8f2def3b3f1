r"""The mathematics of an answer: a text -> a tree -> values -> are two answers the same?

Read in this order: ``notation`` makes one spelling of many (Unicode, LaTeX decoration); ``tokens`` and ``grammar``
(with ``functions``, ``commands`` and ``operators``) read an expression into the nodes of ``tree``; ``reading``
reads a whole answer (a list, a name, a unit, an approximation); ``value`` evaluates a node exactly or to many
digits, never beyond a bound; ``structure``, ``items`` and ``equality`` compare nodes, items and whole answers, as
``question`` settles it.

Nothing here simplifies. Two expressions are equal when their exact values are, or when they agree to a hundred digits
at every point that was tried; sizes are estimated before anything is computed, so that a tower of powers costs nothing.
"""
