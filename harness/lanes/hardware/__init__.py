"""Lanes of real devices."""
