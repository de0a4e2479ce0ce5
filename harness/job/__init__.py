"""The processes that run one case together: how they start, meet and exchange data."""
