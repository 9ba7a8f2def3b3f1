"""llama.cpp as an engine: the policy's weights -> a GGUF file of a new version -> a server that is started on it.

``family`` knows the architectures, ``gguf`` writes the files, ``process`` starts and stops servers (``serve`` is what
runs in them), ``engine`` is the :class:`~assay.rollout.engine.Engine`.
"""
