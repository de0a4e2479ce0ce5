"""A fresh process for a case, in milliseconds: forked from one that has started nothing."""
