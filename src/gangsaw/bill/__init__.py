"""Bill."""
