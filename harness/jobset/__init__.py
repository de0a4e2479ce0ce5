"""Real multi-slice jobs on GKE: a JobSet, what runs in its pods, and how reports come out."""
