"""The nouns: what a case, a topology and an outcome are. No pytest and no framework here."""
