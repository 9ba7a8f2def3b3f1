"""The native engine in a process of its own: requests over a socket, weights through shared memory -> rollouts."""
