"""Gives each case a fresh process in milliseconds, forked from one that has started no runtime."""
