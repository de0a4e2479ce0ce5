"""StableHLO's operators on one device, against NumPy: level 1."""
