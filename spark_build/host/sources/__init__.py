"""Sources and build requirements: found, fetched, verified, kept."""
