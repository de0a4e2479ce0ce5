"""The static site that a team opens each morning, made from a history; no server, no torch."""
