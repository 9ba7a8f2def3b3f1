"""Policy -> engine: new weights as a new version, and a probe that they arrived.

What comes in: a `Policy` that has moved. What goes out: an engine whose next `Rollout`s carry the new version.
"""
