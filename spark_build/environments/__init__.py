"""Virtual environments made from one generation."""
