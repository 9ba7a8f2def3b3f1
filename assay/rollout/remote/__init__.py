"""Engines behind HTTP: a ``Request`` goes out -> tokens with their log-probs stream in -> ``Rollout``.

``client`` speaks HTTP and server-sent events; ``dialect`` says how a kind of server is asked and how its events are
read; ``answer`` is one rollout in the making; ``exchange`` has what is waiting and running, retries what failed, and
keeps the tokens of what was interrupted; ``handshake`` finds out what a running server can do.
"""
