"""What a failure is about: its layer, its frames, its signature."""
