"""Data specs of the recipe -> rows -> ``Prompt``.

``sources`` reads rows, ``conventions`` finds the question and the gold answer in them, ``problems`` says
which rows ask the same thing, ``chat`` renders and tokenises, ``prompts`` puts it together, ``sampler``
decides the order.
"""
