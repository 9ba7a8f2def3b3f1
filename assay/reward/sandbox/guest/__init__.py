"""What runs inside the sandbox: standard library only, mounted alone, so nothing else of the project is there."""
