"""The stages of a build, one module each; they do not import each other."""
