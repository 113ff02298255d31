"""How fast a bundle is, side by side with what else could be run."""
