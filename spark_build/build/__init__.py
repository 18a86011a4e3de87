"""Plan and run builds."""
