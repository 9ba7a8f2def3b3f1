"""Programs of the model -> what they printed, or whether they passed their tests: run apart and bounded."""
