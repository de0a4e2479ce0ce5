"""The frameworks that a case asks: how each is started. A new framework is one module here."""
