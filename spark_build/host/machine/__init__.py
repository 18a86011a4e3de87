"""What kind of machine this is: facts for `doctor`, and what mends it."""
