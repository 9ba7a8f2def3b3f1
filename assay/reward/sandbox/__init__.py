"""Programs of the model -> what they printed, or whether they passed their tests: run apart, bounded, seen by nobody."""
