"""The smallest program that fails as another one does."""
