"""Virtual environments from a wheelhouse, and whether a set of wheels installs."""
