"""A pytest session with cases in it: options, collection, running, the record, the summary."""
