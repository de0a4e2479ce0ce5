"""The regression suites: one package for each upstream area. They test XLA, not the harness."""
