"""The page and the service: `tellapart serve` (extra `serve`)."""
