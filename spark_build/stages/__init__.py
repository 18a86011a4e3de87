"""One file per stage; stages never import each other."""
